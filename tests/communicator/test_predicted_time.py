"""The cost of a plan on the fabric is what the paced clock measures, in fabric time, and the bytes are its counters."""

from __future__ import annotations

import time

import numpy as np
import pytest
from rank_threads import all_well, run_ranks

from fauxrdma.collectives import NumpyArithmetic, Plan
from fauxrdma.collectives.algorithms import all_reduce_plan
from fauxrdma.collectives.fabric_cost import FabricCost, fabric_cost
from fauxrdma.collectives.hierarchical import hierarchical_all_reduce
from fauxrdma.collectives.rank_paths import HCA, NVLINK, RankPaths
from fauxrdma.communicator import Communicator, mesh
from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.lab.local import LocalLab
from fauxrdma.topology.rank_places import block_places, ranks_by_node

pytestmark = pytest.mark.alone

COUNT = 1 << 18
"""Elements, 4 bytes each: 1 MiB."""
DILATION = 8000
"""A message takes this host about a millisecond; that must be little beside the tens of microseconds it is modelled to
take."""
WITHIN = 0.05
PATIENCE_S = 60.0


def measured_ns(lab: LocalLab, plan: Plan, *, share_memory: bool) -> int:
    """From the last entry to the last return, in fabric time."""

    def work(communicator: Communicator) -> tuple[int, int]:
        data = np.ones(COUNT, "f4")
        communicator.barrier()
        buffers = {"data": data}
        communicator._run(plan, buffers, NumpyArithmetic("sum", data.dtype, plan.world_size), data.nbytes)
        assert (data == plan.world_size).all()
        last = communicator.statistics.operations[-1]
        return last.start_ns, last.end_ns

    spans = all_well(run_ranks(lab, plan.world_size, work, share_memory=share_memory))
    return max(end for _, end in spans) - max(start for start, _ in spans)


def cost_of(lab: LocalLab, plan: Plan, *, share_memory: bool) -> FabricCost:
    places = block_places(lab.topology, lab.nodes, lab.gpus)
    return fabric_cost(
        plan, 4, RankPaths(SubnetManager(lab.topology, lab.seed), places, NVLINK if share_memory else HCA)
    )


@pytest.mark.parametrize(
    ("fabric", "share_memory"),
    [
        ("seed-rail8", False),
        ("fat-tree", False),
        ("seed-two-switch", False),
        ("seed-rail8", True),
        ("fat-tree,nvlink=on", True),
    ],
)
def test_paced_time_is_predicted_time(fabric: str, share_memory: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulation never runs ahead of its model, and a host that stalls makes it late: the best run of a few tells
    whether the model is the same."""
    monkeypatch.setattr(mesh, "ACK_TIMEOUT_S", 30.0)
    with LocalLab(fabric, nodes=2, gpus=2, clock="paced", dilation=DILATION) as lab:
        nodes = ranks_by_node(block_places(lab.topology, 2, 2))
        plans = [
            all_reduce_plan("ring", COUNT, 4, 4, 2 << 20, 2),
            hierarchical_all_reduce(COUNT, nodes, chunk=COUNT // 8, lanes=2),
        ]
        for plan in plans:
            cost = cost_of(lab, plan, share_memory=share_memory)
            best = float("inf")
            deadline = time.monotonic() + PATIENCE_S
            while abs(best - 1) > WITHIN and time.monotonic() < deadline:
                lab.report(reset=True)
                best = min(best, measured_ns(lab, plan, share_memory=share_memory) / cost.predicted_ns)
            assert best == pytest.approx(1, abs=WITHIN), f"{plan.algorithm}: measured over predicted"
            report = lab.report()
            if not report.retransmits:  # what a stalled host repeats is carried twice
                carried = {link.name: link.nbytes for link in report.links if link.nbytes}
                assert carried == {lab.topology.links[link].name: n for link, n in cost.link_bytes.items()}
