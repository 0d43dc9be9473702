"""Every step-wise algorithm, proved on symbols: right values on every rank, declared traffic, no deadlock with lanes
and the credit batch as slots, and no more steps than declared."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fauxrdma.collectives import Plan, PlanDefect, predict_ns, run_symbolically
from fauxrdma.collectives.bcube import bcube_all_reduce, factors
from fauxrdma.collectives.direct import (
    all_to_all,
    direct_all_gather,
    direct_reduce_scatter,
    gather,
    scatter,
)
from fauxrdma.collectives.hierarchical import hierarchical_all_reduce
from fauxrdma.collectives.plan import Put
from fauxrdma.collectives.pxn import pxn_all_to_all
from fauxrdma.collectives.recursive import halving_doubling_all_reduce, recursive_doubling_all_reduce
from fauxrdma.collectives.stepwise_rings import (
    bidirectional_ring_all_reduce,
    scatter_all_gather_broadcast,
    uneven_ring_all_gather,
)
from fauxrdma.collectives.trees import binary_tree, double_tree_all_reduce, tree_broadcast, tree_reduce
from fauxrdma.errors import LocalProtocolError

Buffers = list[dict[str, list[Hashable]]]

worlds = st.integers(1, 13)
counts = st.integers(0, 40)
chunks = st.integers(1, 12)
lane_counts = st.integers(1, 4)
batches = st.integers(1, 3)
seeds = st.integers(0, 2**32)

ALL_REDUCE: dict[str, Callable[..., Plan]] = {
    "recursive-doubling": recursive_doubling_all_reduce,
    "halving-doubling": halving_doubling_all_reduce,
    "double-tree": lambda count, n, *, chunk, lanes: double_tree_all_reduce(count, n, chunk=chunk),
    "bcube": bcube_all_reduce,
    "direct": lambda count, n, **sizes: bcube_all_reduce(count, n, base=max(2, n), **sizes),
    "bidirectional-ring": bidirectional_ring_all_reduce,
}


def leaves(value: Any) -> Counter[Hashable]:
    """How often each rank's own value is in a reduced one."""
    return leaves(value[1]) + leaves(value[2]) if value[0] == "op" else Counter([value])


def play(plan: Plan, lanes: int, batch: int, seed: int) -> Buffers:
    result = run_symbolically(plan, slots=lanes + batch, credit_batch=batch, choose=random.Random(seed).randrange)
    assert result.traffic == [plan.traffic(rank) for rank in range(plan.world_size)]
    return result.buffers


def check_all_reduced(buffers: Buffers, count: int) -> None:
    for mine in buffers:
        assert len(mine["data"]) == count
        for i, value in enumerate(mine["data"]):
            assert leaves(value) == Counter((rank, "data", i) for rank in range(len(buffers)))


@pytest.mark.parametrize("algorithm", ALL_REDUCE)
@given(n=worlds, count=counts, chunk=chunks, lanes=lane_counts, batch=batches, seed=seeds)
def test_all_reduce(algorithm: str, n: int, count: int, chunk: int, lanes: int, batch: int, seed: int) -> None:
    plan = ALL_REDUCE[algorithm](count, n, chunk=chunk, lanes=lanes)
    check_all_reduced(play(plan, lanes, batch, seed), count)


@pytest.mark.parametrize("algorithm", ALL_REDUCE)
@pytest.mark.parametrize("n", [2, 3, 7, 8, 12])
def test_every_rank_ends_with_the_same_bits(algorithm: str, n: int) -> None:
    """Operations commute bitwise, so the order of two operands is no matter; the way they are bracketed is."""

    def shape(value: Any) -> Hashable:
        return value if value[0] != "op" else ("op", frozenset((shape(value[1]), shape(value[2]))))

    plan = ALL_REDUCE[algorithm](24, n, chunk=3, lanes=2)
    first, *rest = [[shape(value) for value in mine["data"]] for mine in play(plan, 2, 1, n)]
    assert all(other == first for other in rest)


@pytest.mark.parametrize("algorithm", ALL_REDUCE)
@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 13, 16])
def test_rounds_are_the_critical_path(algorithm: str, n: int) -> None:
    """With a latency of 1 and no cost per byte, the prediction is the number of message times in a row. Where ranks are
    folded to a power of two, helping and the first exchange may overlap."""
    plan = ALL_REDUCE[algorithm](64, n, chunk=64, lanes=1)
    longest = predict_ns(plan, 1.0, 1e18)
    if n & (n - 1) == 0:
        assert longest == pytest.approx(plan.rounds)
    else:
        assert longest - 0.01 <= plan.rounds <= longest + 1.01


@pytest.mark.parametrize("n", [2, 4, 8, 16])
def test_all_reduces_that_are_optimal_send_no_more_than_the_ring(n: int) -> None:
    for name in ("halving-doubling", "bcube", "direct", "bidirectional-ring"):
        plan = ALL_REDUCE[name](16 * n, n, chunk=7, lanes=2)
        assert {plan.traffic(rank).elements for rank in range(n)} == {2 * (n - 1) * 16}, name


@given(worlds, counts, chunks, st.integers(0, 12), lane_counts, batches, seeds)
def test_broadcast_and_reduce(n: int, count: int, chunk: int, root: int, lanes: int, batch: int, seed: int) -> None:
    root %= n
    plans = (
        tree_broadcast(count, n, root, chunk=chunk),
        scatter_all_gather_broadcast(count, n, root, chunk=chunk, lanes=lanes),
    )
    for plan in plans:
        for mine in play(plan, lanes, batch, seed):
            assert mine["data"] == [(root, "data", i) for i in range(count)], plan.algorithm
    at_root = play(tree_reduce(count, n, root, chunk=chunk), lanes, batch, seed)[root]["data"]
    assert [leaves(value) for value in at_root] == [Counter((r, "data", i) for r in range(n)) for i in range(count)]


@given(st.data(), worlds, chunks, lane_counts, batches, seeds, st.booleans())
def test_blocks_of_any_size(
    data: st.DataObject, n: int, chunk: int, lanes: int, batch: int, seed: int, pairwise: bool
) -> None:
    sizes = data.draw(st.lists(st.integers(0, 9), min_size=n, max_size=n))
    root = data.draw(st.integers(0, n - 1))
    starts = [sum(sizes[:r]) for r in range(n)]
    everything = [(r, "input", i) for r in range(n) for i in range(sizes[r])]
    sized = {"chunk": chunk, "lanes": lanes}
    for plan in (direct_all_gather(sizes, pairwise=pairwise, **sized), uneven_ring_all_gather(sizes, **sized)):
        assert all(mine["output"] == everything for mine in play(plan, lanes, batch, seed)), plan.algorithm
    assert play(gather(sizes, root, **sized), lanes, batch, seed)[root]["output"] == everything
    for rank, mine in enumerate(play(scatter(sizes, root, **sized), lanes, batch, seed)):
        assert mine["output"] == [(root, "input", starts[rank] + i) for i in range(sizes[rank])]
    reduced = play(direct_reduce_scatter(sizes, pairwise=pairwise, **sized), lanes, batch, seed)
    for rank, mine in enumerate(reduced):
        assert [leaves(value) for value in mine["output"]] == [
            Counter((r, "input", starts[rank] + i) for r in range(n)) for i in range(sizes[rank])
        ]


def check_exchanged(buffers: Buffers, table: Sequence[Sequence[int]]) -> None:
    for b, mine in enumerate(buffers):
        parts = [(a, "input", sum(row[:b]) + i) for a, row in enumerate(table) for i in range(row[b])]
        assert mine["output"] == parts


@st.composite
def exchanges(draw: st.DrawFn) -> tuple[list[list[int]], list[list[int]]]:
    """Nodes of one to four ranks in any order, and what everybody sends to everybody."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    ranks = draw(st.permutations(range(sum(sizes))))
    nodes = [list(ranks[sum(sizes[:i]) : sum(sizes[: i + 1])]) for i in range(len(sizes))]
    n = len(ranks)
    table = draw(st.lists(st.lists(st.integers(0, 6), min_size=n, max_size=n), min_size=n, max_size=n))
    return nodes, table


@given(exchanges(), chunks, lane_counts, batches, seeds, st.booleans())
def test_all_to_all(
    given_: tuple[list[list[int]], list[list[int]]], chunk: int, lanes: int, batch: int, seed: int, pairwise: bool
) -> None:
    nodes, table = given_
    check_exchanged(play(all_to_all(table, chunk=chunk, lanes=lanes, pairwise=pairwise), lanes, batch, seed), table)
    plan = pxn_all_to_all(table, nodes, chunk=chunk, lanes=lanes)
    check_exchanged(play(plan, lanes, batch, seed), table)


@given(exchanges(), counts, chunks, lane_counts, batches, seeds)
def test_hierarchical_all_reduce(
    given_: tuple[list[list[int]], Any], count: int, chunk: int, lanes: int, batch: int, seed: int
) -> None:
    plan = hierarchical_all_reduce(count, given_[0], chunk=chunk, lanes=lanes)
    check_all_reduced(play(plan, lanes, batch, seed), count)


NODES = [[4 * node + gpu for gpu in range(4)] for node in range(3)]


def crossing(plan: Plan) -> tuple[int, int]:
    """Elements that go between nodes, and those of them that change rails (NODES: rail = rank modulo 4)."""
    between = across = 0
    for rank in range(plan.world_size):
        for step in plan.program(rank).steps:
            if isinstance(step, Put) and step.peer // 4 != rank // 4:
                between += step.src.count
                across += step.src.count if step.peer % 4 != rank % 4 else 0
    return between, across


def test_rails_are_kept() -> None:
    """REFERENCE E: without PXN (G-1)/G of the bytes between nodes cross rails, with PXN none; as many go between nodes.
    A hierarchical all-reduce of S elements sends 2 S (N-1)/N from each node, none across."""
    table = [[5] * 12 for _ in range(12)]
    between = 12 * 8 * 5
    assert crossing(all_to_all(table, chunk=4, lanes=2)) == (between, between * 3 // 4)
    assert crossing(pxn_all_to_all(table, NODES, chunk=4, lanes=2)) == (between, 0)
    assert crossing(hierarchical_all_reduce(240, NODES, chunk=7, lanes=2)) == (3 * 2 * 240 * 2 // 3, 0)


@pytest.mark.parametrize("n", range(2, 40))
def test_the_inner_ranks_of_one_tree_are_leaves_of_the_other(n: int) -> None:
    tree = binary_tree(n)
    assert sorted(tree.depth) == list(range(n))
    assert tree.height <= (n - 1).bit_length()
    plan = double_tree_all_reduce(64, n, chunk=64)
    # Nobody sends more than two halves up or down and one the other way; the root one more at most.
    assert max(plan.traffic(rank).elements for rank in range(n)) <= 4 * 32


@pytest.mark.parametrize(
    ("number", "base", "expected"), [(1, 4, []), (8, 2, [2, 2, 2]), (12, 4, [4, 3]), (7, 4, [7]), (36, 6, [6, 6])]
)
def test_factors(number: int, base: int, expected: list[int]) -> None:
    assert factors(number, base) == expected


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="counts must be 2 rows"):
        all_to_all([[1, 2], [3]], chunk=1, lanes=1)
    with pytest.raises(LocalProtocolError, match="every rank must be on one node"):
        hierarchical_all_reduce(8, [[0, 1], [1]], chunk=1, lanes=1)
    with pytest.raises(LocalProtocolError, match="2 rows of counts for 3 ranks"):
        pxn_all_to_all([[1, 1], [1, 1]], [[0, 1, 2]], chunk=1, lanes=1)
    with pytest.raises(LocalProtocolError, match="chunk >= 1"):
        bcube_all_reduce(8, 2, chunk=0, lanes=1)


def test_one_slot_less_deadlocks() -> None:
    plan = halving_doubling_all_reduce(64, 4, chunk=2, lanes=3)
    with pytest.raises(PlanDefect, match="deadlocks"):
        run_symbolically(plan, slots=2, choose=random.Random(0).randrange)
