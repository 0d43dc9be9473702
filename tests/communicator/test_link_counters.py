"""Measured traffic follows the tables: every link's byte counter is what plan and forwarding tables say, to the byte.

The prediction knows the collective's plan (which rank puts how many elements to which peer), the subnet manager's
tables and the shape of the hosts, and nothing of the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from rank_threads import all_well, run_ranks

from fauxrdma.collectives import Plan
from fauxrdma.collectives.plan import Put
from fauxrdma.communicator import Communicator, mesh
from fauxrdma.fabric.peer_way import peer_way
from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.fabric.sweep import LivingSubnet
from fauxrdma.lab.local import LocalLab

COUNT = 300_001
"""Elements, 4 bytes each: no multiple of anything, and more than one staging slot."""
RANKS = 4
SLOT_BYTES = 64 << 10

Work = Callable[[Communicator], None]


def all_reduce(communicator: Communicator) -> None:
    communicator.all_reduce(np.ones(COUNT, "f4"))


def reduce_scatter(communicator: Communicator) -> None:
    communicator.reduce_scatter(np.empty(COUNT, "f4"), np.ones(COUNT * RANKS, "f4"))


def all_gather(communicator: Communicator) -> None:
    communicator.all_gather(np.empty(COUNT * RANKS, "f4"), np.ones(COUNT, "f4"))


def broadcast(communicator: Communicator) -> None:
    communicator.broadcast(np.ones(COUNT, "f4"), root=1)


def barrier(communicator: Communicator) -> None:
    communicator.barrier()


COLLECTIVES: tuple[Work, ...] = (all_reduce, reduce_scatter, all_gather, broadcast, barrier)


@pytest.fixture(scope="module", params=["none", "paced"])
def four(request: pytest.FixtureRequest) -> Iterator[LocalLab]:
    """Two nodes of two GPUs. On this fabric hca1 and hca2 of a node are on different leaves: four hops, not all the
    same."""
    with LocalLab("seed-rail8", nodes=2, gpus=2, clock=request.param, dilation=1000) as running:
        yield running


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is repeated only because this host stalls for half a second."""
    monkeypatch.setattr(mesh, "ACK_TIMEOUT_S", 30.0)


class PlanRecorder:
    """Keeps the plans that a communicator runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.plans: list[Plan] = []
        run = Communicator._run

        def recording(communicator: Communicator, plan: Plan, *arguments: Any) -> None:
            if communicator.rank == 0:
                self.plans.append(plan)
            run(communicator, plan, *arguments)

        monkeypatch.setattr(Communicator, "_run", recording)


def predicted(
    lab: LocalLab, plan: Plan, manager: SubnetManager | None = None, *, share_memory: bool = False
) -> Counter[str]:
    """Bytes by link: every put of the plan, over the links that the tables give its two HCAs. With `share_memory` what
    stays on a node goes from GPU to GPU."""
    manager = manager or SubnetManager(lab.topology, lab.seed)
    hca = [f"n{rank // lab.gpus}.hca{rank % lab.gpus + 1}" for rank in range(plan.world_size)]
    out: Counter[str] = Counter()
    for rank in range(plan.world_size):
        for step in plan.program(rank).steps:
            if isinstance(step, Put) and share_memory and rank // lab.gpus == step.peer // lab.gpus:
                way = peer_way(lab.topology.shape, rank // lab.gpus, rank % lab.gpus, step.peer % lab.gpus)
                for name in way.links:
                    out[name] += step.src.count * 4
            elif isinstance(step, Put):
                path = manager.path(manager.lid(hca[rank]), manager.lid(hca[step.peer]))
                for link in path.links:
                    out[lab.topology.links[link].name] += step.src.count * 4
    return out


def carried(lab: LocalLab, work: Work, *, share_memory: bool = False) -> Counter[str]:
    """Bytes by link of one run. What a stalled host repeats is carried twice, so a run with repetitions tells nothing
    of the plan and is done again."""
    for _ in range(5):
        lab.report(reset=True)
        all_well(run_ranks(lab, RANKS, work, slot_bytes=SLOT_BYTES, share_memory=share_memory))
        report = lab.report()
        if report.retransmits == 0:
            return Counter({link.name: link.nbytes for link in report.links if link.nbytes})
    pytest.fail("five runs, and in each of them frames were repeated: this host is too slow now")


@pytest.mark.parametrize("share_memory", [False, True])
@pytest.mark.parametrize("work", COLLECTIVES, ids=lambda work: work.__name__)
def test_every_link_carries_what_plan_and_tables_say(
    four: LocalLab, work: Work, share_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = PlanRecorder(monkeypatch)
    got = carried(four, work, share_memory=share_memory)
    plan = recorder.plans[0]
    want = predicted(four, plan, share_memory=share_memory)
    assert got == want
    # And the plan's own declaration, which is by formula: what leaves each rank's GPU.
    for rank in range(RANKS):
        gpu = f"n{rank // 2}.gpu{rank % 2}->n{rank // 2}.pcie0"
        assert want[gpu] == plan.traffic(rank).elements * 4


def test_after_a_link_has_failed_they_follow_the_new_tables(four: LocalLab, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = PlanRecorder(monkeypatch)
    before = carried(four, all_reduce)
    dead = next(name for name in sorted(before) if name.startswith("leaf1->spine"))
    four.link_down(dead)
    four.swept()
    try:
        after = carried(four, all_reduce)
    finally:
        four.link_up(dead)
        four.swept()
    assert predicted(four, recorder.plans[0]) == before
    assert dead not in after
    # The same tables, computed here.
    subnet = LivingSubnet(SubnetManager(four.topology, four.seed))
    subnet.link_down(dead, 0)
    while (due := subnet.next_ns()) is not None:
        subnet.poll(due)
    assert predicted(four, recorder.plans[0], subnet.manager) == after
