"""Where bytes go on a fabric of rails, measured by its link counters and equal to arithmetic (REFERENCE E).

N nodes of G GPUs, n = N G ranks, S bytes. A ring all-reduce sends 2 S (n-1)/n from each node over all its channels, a
hierarchical one 2 S (N-1)/N; the spines see none of it when rings keep to rails. Of an all-to-all between nodes (G-1)/G
cross rails, with PXN nothing. Every link's counter also equals what plan, routes and forwarding tables say.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from rank_threads import all_well, run_ranks

from fauxrdma.collectives import Plan
from fauxrdma.collectives.channelled import ChannelledPlan
from fauxrdma.collectives.plan import Put
from fauxrdma.communicator import Communicator, mesh
from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.lab.local import LocalLab

NODES, GPUS = 2, 2
RANKS = NODES * GPUS
COUNT = 1 << 18
SIZE = 4 * COUNT
"""Bytes of float32; everything divides evenly."""

Work = Callable[[Communicator], None]


@pytest.fixture(scope="module")
def rails() -> Iterator[LocalLab]:
    """hca1 and hca2 of the nodes are on leaves of their own, joined by spines."""
    with LocalLab("seed-rail8", nodes=NODES, gpus=GPUS, clock="none") as running:
        yield running


@pytest.fixture(autouse=True)
def over_hcas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks of a node talk over their HCAs, so that every message is on some link; nothing is repeated only because
    this host stalls for half a second."""
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    monkeypatch.setenv("NCCL_SHM_DISABLE", "1")
    monkeypatch.setattr(mesh, "ACK_TIMEOUT_S", 30.0)


def all_reduce(communicator: Communicator, **how: Any) -> None:
    mine = np.full(COUNT, communicator.rank, np.float32)
    communicator.all_reduce(mine, **how)
    assert (mine == sum(range(RANKS))).all()


def hierarchical(communicator: Communicator) -> None:
    all_reduce(communicator, algorithm="hierarchical")


def hierarchical_tree(communicator: Communicator) -> None:
    all_reduce(communicator, algorithm="hierarchical-tree")


def all_to_all(communicator: Communicator) -> None:
    out = np.empty(COUNT, np.float32)
    communicator.all_to_all(out, np.repeat(np.arange(RANKS, dtype=np.float32), COUNT // RANKS))
    assert (out == communicator.rank).all()


class Measured:
    """What one run sent: `plan` as rank 0 ran it, bytes by link as the counters have them and as plan and tables say,
    the latter also for the messages within nodes alone."""

    def __init__(self, lab: LocalLab, monkeypatch: pytest.MonkeyPatch, work: Work, **options: Any) -> None:
        plans: list[Plan | ChannelledPlan] = []
        run = Communicator._run

        def recording(communicator: Communicator, plan: Plan | ChannelledPlan, *arguments: Any) -> None:
            if communicator.rank == 0:
                plans.append(plan)
            run(communicator, plan, *arguments)

        monkeypatch.setattr(Communicator, "_run", recording)
        for _ in range(5):
            plans.clear()
            lab.report(reset=True)
            all_well(run_ranks(lab, RANKS, work, slot_bytes=64 << 10, **options))
            report = lab.report()
            if report.retransmits == 0:
                break
        else:
            pytest.fail("five runs, and in each of them frames were repeated: this host is too slow now")
        self.links = Counter({link.name: link.nbytes for link in report.links if link.nbytes})
        self.plan = plans[0]
        self.predicted: Counter[str] = Counter()
        self.within: Counter[str] = Counter()
        self.between_nodes = 0
        self._predict(lab)

    def _predict(self, lab: LocalLab) -> None:
        manager = SubnetManager(lab.topology, lab.seed)
        own = tuple(rank % GPUS + 1 for rank in range(RANKS))
        if isinstance(self.plan, ChannelledPlan):
            parts = [(part, route.hcas) for part, route in zip(self.plan.parts, self.plan.routes, strict=True)]
        else:
            parts = [(self.plan, own)]
        for part, hcas in parts:
            lid = [manager.lid(f"n{rank // GPUS}.hca{hcas[rank]}") for rank in range(RANKS)]
            for rank in range(RANKS):
                for step in part.program(rank).steps:
                    if not isinstance(step, Put):
                        continue
                    nbytes = step.src.count * 4
                    same = rank // GPUS == step.peer // GPUS
                    self.between_nodes += 0 if same else nbytes
                    for link in manager.path(lid[rank], lid[step.peer]).links:
                        name = lab.topology.links[link].name
                        self.predicted[name] += nbytes
                        self.within[name] += nbytes if same else 0

    @property
    def across(self) -> int:
        """Measured bytes that crossed rails between nodes: what came down from the spines, but for what ranks of one
        node sent each other."""
        down = [name for name in self.links if name.startswith("spine")]
        return sum(self.links[name] - self.within[name] for name in down)

    def cables(self) -> Counter[str]:
        """Measured bytes on the cables of HCAs and switches, where it does not matter whose memory they are from."""
        return Counter({name: n for name, n in self.links.items() if _is_cable(name)})

    def predicted_cables(self) -> Counter[str]:
        """The same as plan, routes and tables say."""
        return Counter({name: n for name, n in self.predicted.items() if _is_cable(name)})


def _is_cable(name: str) -> bool:
    return all("hca" in end or not end.startswith("n") for end in name.split("->"))


RING = 2 * SIZE * (RANKS - 1) // RANKS
"""From each node, over all channels."""
NO_OPTIONS: dict[str, Any] = {}


@pytest.mark.parametrize(
    ("work", "options", "between", "across"),
    [
        # In rank order, each over its own HCA: from GPU 0 of a node to GPU 1 of the one before.
        (all_reduce, NO_OPTIONS, NODES * RING, NODES * RING),
        (all_reduce, {"channels": 1, "cross_nic": 0}, NODES * RING, 0),
        (all_reduce, {"channels": 2, "cross_nic": 0}, NODES * RING, 0),
        (all_reduce, {"channels": 2, "cross_nic": 1}, NODES * RING, NODES * RING),
        (all_reduce, {"channels": 2, "cross_nic": 2}, NODES * RING, 0),
        (all_reduce, {"channels": 2}, NODES * RING, 0),
        (hierarchical, NO_OPTIONS, NODES * 2 * SIZE * (NODES - 1) // NODES, 0),
        (hierarchical_tree, NO_OPTIONS, NODES * 2 * SIZE * (NODES - 1) // NODES, 0),
    ],
)
def test_all_reduce(
    rails: LocalLab, monkeypatch: pytest.MonkeyPatch, work: Work, options: dict[str, Any], between: int, across: int
) -> None:
    found = Measured(rails, monkeypatch, work, **options)
    assert found.cables() == found.predicted_cables()
    assert found.between_nodes == between
    assert found.across == across


def test_the_same_nic_leaves_the_spines_nothing_at_all(rails: LocalLab, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Measured(rails, monkeypatch, all_reduce, channels=2, cross_nic=0)
    assert not [name for name in found.links if "spine" in name]
    # Each rail carries half of what the ring sends between nodes, each way.
    for node in range(NODES):
        for hca in (1, 2):
            assert found.links[f"n{node}.hca{hca}->leaf{hca}"] == RING // 2


@pytest.mark.parametrize(("disable", "algorithm", "share"), [("1", "pairwise", (GPUS - 1) / GPUS), ("0", "pxn", 0.0)])
def test_all_to_all(
    rails: LocalLab, monkeypatch: pytest.MonkeyPatch, disable: str, algorithm: str, share: float
) -> None:
    monkeypatch.setenv("NCCL_PXN_DISABLE", disable)
    found = Measured(rails, monkeypatch, all_to_all)
    between = RANKS * (RANKS - GPUS) * SIZE // RANKS
    assert found.plan.algorithm == algorithm
    assert found.cables() == found.predicted_cables()
    assert found.between_nodes == between
    assert found.across == between * share


def test_nccl_ib_hca_takes_all_traffic_to_one_rail(rails: LocalLab) -> None:
    """Ranks whose own HCA is not allowed use another: what leaves the nodes is all on rail 1."""
    code = (
        "import numpy as np\n"
        "from fauxrdma.communicator import Communicator\n"
        "with Communicator.from_env(timeout_s=60) as c:\n"
        "    a = np.ones(1000)\n"
        "    c.all_reduce(a)\n"
        "    print(c.statistics.hca, a[0])\n"
    )
    rails.report(reset=True)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, **rails.env_of_rank(rank), "NCCL_IB_HCA": "=mlx5_0", "NCCL_DEBUG": "INFO"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    said = [rank.communicate(timeout=60) for rank in ranks]
    assert [out.strip() for out, _ in said] == ["hca1 4.0"] * RANKS, said
    used = {link.name for link in rails.report().links if link.nbytes}
    assert "n0.hca1->leaf1" in used
    assert not any("spine" in name or "hca2" in name for name in used)
    # Rank 0 says what NCCL's users look for; the others nothing.
    assert "fauxrdma NCCL INFO Channel 00/01 : 0 1 2 3" in said[0][1]
    assert "fauxrdma NCCL INFO all_reduce ring: 2 flows between nodes, none crosses rails" in said[0][1]
    assert [err for _, err in said[1:]] == [""] * (RANKS - 1)


def test_rank_0_says_which_flows_cross(
    rails: LocalLab, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    all_well(run_ranks(rails, RANKS, lambda c: [all_reduce(c), all_reduce(c)]))
    all_well(run_ranks(rails, RANKS, all_reduce, channels=2))
    said = capfd.readouterr().err
    assert said.splitlines() == [
        "fauxrdma NCCL INFO Channel 00/01 : 0 1 2 3",
        "fauxrdma NCCL INFO all_reduce ring: 2 of 2 flows between nodes cross rails, 100% of the data: "
        "0 (n0.hca1) -> 3 (n1.hca2), 2 (n1.hca1) -> 1 (n0.hca2)",
        "fauxrdma NCCL INFO Channel 00/02 : 0 1 3 2",
        "fauxrdma NCCL INFO Channel 01/02 : 1 0 2 3",
        "fauxrdma NCCL INFO all_reduce ring: 4 flows between nodes, none crosses rails",
    ]
