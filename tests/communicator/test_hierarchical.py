"""Algorithms that go by nodes and rails, chosen through the communicator: even and uneven nodes, right results."""

from __future__ import annotations

import numpy as np
import pytest
from rank_threads import all_well, run_ranks

from fauxrdma.collectives.algorithms import plan_for
from fauxrdma.collectives.request import Request
from fauxrdma.communicator import Communicator
from fauxrdma.errors import LocalProtocolError
from fauxrdma.lab.local import LocalLab

SIZES = (0, 1, 1000, 1_000_001)


@pytest.mark.parametrize("n", [3, 4])  # nodes of 2 and 1, and of 2 and 2
def test_right_results(lab: LocalLab, n: int) -> None:
    def work(communicator: Communicator) -> list[str]:
        rank, used = communicator.rank, []
        for size in SIZES:
            for algorithm in ("hierarchical", "hierarchical-tree"):
                mine = np.arange(size, dtype=np.int64) * (rank + 1)
                communicator.all_reduce(mine, algorithm=algorithm)
                assert (mine == np.arange(size, dtype=np.int64) * (n * (n + 1) // 2)).all()
                average = np.full(size, rank, dtype=np.float64)
                communicator.all_reduce(average, "avg", algorithm=algorithm)
                assert (average == (n - 1) / 2).all()
            whole = np.arange(n * size, dtype=np.int32).reshape(n, size)
            part = np.empty(size, np.int32)
            communicator.reduce_scatter(part, whole, algorithm="hierarchical")
            assert (part == whole[rank] * n).all()
            assert (whole == np.arange(n * size).reshape(n, size)).all(), "the input is not for writing"
            gathered = np.empty((n, size), np.int32)
            communicator.all_gather(gathered, whole[rank], algorithm="hierarchical")
            assert (gathered == whole).all()
            out = np.empty(n * size)
            communicator.all_to_all(out, np.repeat(rank * 10.0 + np.arange(n), size), algorithm="pxn")
            assert (out == np.repeat(np.arange(n) * 10.0 + rank, size)).all()
        used = [operation.algorithm for operation in communicator.statistics.operations]
        return sorted(set(used))

    assert all_well(run_ranks(lab, n, work)) == [["hierarchical", "hierarchical-tree", "pxn"]] * n


def test_unequal_blocks_go_another_way(lab: LocalLab) -> None:
    counts = [1, 0, 5]

    def work(communicator: Communicator) -> list[str]:
        rank = communicator.rank
        out = np.empty(sum(counts))
        communicator.all_gather(out, np.full(counts[rank], float(rank)), counts=counts, algorithm="hierarchical")
        assert (out == np.repeat([0.0, 1.0, 2.0], counts)).all()
        part = np.empty(counts[rank])
        communicator.reduce_scatter(part, out, counts=counts, algorithm="hierarchical")
        assert (part == rank * 3.0).all()
        return [operation.algorithm for operation in communicator.statistics.operations]

    assert all_well(run_ranks(lab, 3, work)) == [["ring", "pairwise"]] * 3


def test_who_does_not_know_the_nodes_is_told() -> None:
    with pytest.raises(LocalProtocolError, match="the hierarchical all_reduce goes by nodes, and it is not known who"):
        plan_for(Request("all_reduce", 4, 8, 4, 64, 1), "hierarchical")
