"""How many bytes each placement sends over the spines, by arithmetic: a ring all-reduce of S bytes over n ranks sends
2 S (n - 1) / n over every hop of the ring, and a hop crosses a spine when its two HCAs are on two leaves."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from rank_threads import all_well, run_ranks

from fauxrdma.communicator import Communicator, mesh
from fauxrdma.lab.local import LocalLab

ELEMENTS = 48_000
"""4 bytes each: divisible by any number of ranks here, and its parts by everything a plan cuts them into."""


@pytest.fixture(autouse=True)
def over_the_fabric(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks of one node talk over their HCAs, and nothing is repeated only because this host stalls."""
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    monkeypatch.setenv("NCCL_SHM_DISABLE", "1")
    monkeypatch.setattr(mesh, "ACK_TIMEOUT_S", 30.0)


def carried(lab: LocalLab) -> Counter[str]:
    """Bytes that an all-reduce puts on cables, by ``leaf->spine``, ``spine->leaf``, ``n0->leaf``, ``leaf->n0``..."""

    def work(communicator: Communicator) -> None:
        data = np.ones(ELEMENTS, "f4")
        communicator.all_reduce(data, algorithm="ring")
        assert (data == lab.world_size).all()

    for _ in range(5):
        lab.report(reset=True)
        all_well(run_ranks(lab, lab.world_size, work))
        report = lab.report()
        if report.retransmits == 0:
            break
    else:
        pytest.fail("five runs, and in each of them frames were repeated: this host is too slow now")
    found: Counter[str] = Counter()
    for link in report.links:
        if link.kind == "cable":
            ends = [end if end.startswith("n") else end.rstrip("0123456789") for end in (link.src, link.dst)]
            found["->".join(end.partition(".")[0] for end in ends)] += link.nbytes
    return +found


@pytest.mark.parametrize(
    ("placement", "nodes", "gpus", "crossing"),
    [
        # seed-rail8: HCA i of every node is on leaf i. Hops inside nodes go from rail to rail, too.
        ("block", 2, 2, 4),
        ("cyclic", 2, 2, 2),
        ("rail-aligned", 2, 2, 2),  # the two inside nodes: none between nodes
        ("rail-aligned", 3, 2, 2),
        ("block", 3, 1, 0),
        ("rail-aligned", 3, 1, 0),
        ("random:1", 2, 1, 2),  # GPUs 0.2 and 1.1
    ],
)
def test_spine_bytes_are_hops_times_what_a_hop_carries(placement: str, nodes: int, gpus: int, crossing: int) -> None:
    n = nodes * gpus
    hop = 2 * ELEMENTS * 4 * (n - 1) // n
    with LocalLab("seed-rail8", nodes, gpus, clock="none", placement=placement) as lab:
        found = carried(lab)
    assert found["leaf->spine"] == found["spine->leaf"] == crossing * hop
    # Every rank sends that much; so each node sends and receives as many times as it has ranks.
    for node in range(nodes):
        assert found[f"n{node}->leaf"] == found[f"leaf->n{node}"] == gpus * hop


@pytest.mark.parametrize(("on_nodes", "crossing"), [([0, 1, 2, 3], 2), ([0, 2, 1, 3], 4), ([2, 3], 0)])
def test_a_job_on_nodes_spread_over_leaves(on_nodes: list[int], crossing: int) -> None:
    n = len(on_nodes)
    with LocalLab("fat-tree,radix=36", 4, 1, clock="none", on_nodes=on_nodes) as lab:
        found = carried(lab)
    assert found["leaf->spine"] == crossing * 2 * ELEMENTS * 4 * (n - 1) // n
    assert {name for name in found if name.startswith("n")} == {f"n{node}->leaf" for node in on_nodes}
