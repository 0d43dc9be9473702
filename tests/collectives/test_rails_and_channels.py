"""Rails: hierarchical algorithms with any inner one, uneven nodes, PXN by rail; channels: every ring order gives the
right result over its part and nothing else, and the cross-NIC policies cross rails as often as they should."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fauxrdma.collectives import (
    Plan,
    ring_all_gather,
    ring_all_reduce,
    ring_broadcast,
    ring_reduce_scatter,
    run_symbolically,
)
from fauxrdma.collectives.channels import ChannelRoute, channel_routes, on_channel, split_evenly
from fauxrdma.collectives.embedding import Region, embedded_plan
from fauxrdma.collectives.hierarchical import (
    hierarchical_all_gather,
    hierarchical_all_reduce,
    hierarchical_reduce_scatter,
)
from fauxrdma.collectives.plan import Put, Slice
from fauxrdma.collectives.pxn import pxn_all_to_all
from fauxrdma.collectives.rail_order import align_rails, common_rails
from fauxrdma.collectives.recursive import recursive_doubling_all_reduce
from fauxrdma.collectives.trees import double_tree_all_reduce, tree_reduce
from fauxrdma.errors import LocalProtocolError

counts = st.integers(0, 30)
chunks = st.integers(1, 9)
lane_counts = st.integers(1, 3)
batches = st.integers(1, 3)
seeds = st.integers(0, 2**32)


@st.composite
def node_lists(draw: st.DrawFn) -> list[list[int]]:
    """Up to four nodes of up to four ranks, numbered in any order."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    names = iter(draw(st.permutations(range(sum(sizes)))))
    return [[next(names) for _ in range(size)] for size in sizes]


def leaves(value: Any) -> Counter[Hashable]:
    return leaves(value[1]) + leaves(value[2]) if value[0] == "op" else Counter([value])


def play(plan: Plan, batch: int, seed: int) -> list[dict[str, list[Hashable]]]:
    result = run_symbolically(plan, slots=plan.lanes + batch, credit_batch=batch, choose=random.Random(seed).randrange)
    assert result.traffic == [plan.traffic(rank) for rank in range(plan.world_size)]
    return result.buffers


def check_all_reduced(plan: Plan, count: int, batch: int, seed: int) -> None:
    buffers = play(plan, batch, seed)
    for mine in buffers:
        for i, value in enumerate(mine["data"]):
            assert leaves(value) == Counter((rank, "data", i) for rank in range(len(buffers)))


INNER: dict[str, Callable[[int, int, int, int], Plan]] = {
    "ring": lambda count, n, chunk, lanes: ring_all_reduce(count, n, itemsize=4, chunk=chunk, lanes=lanes),
    "double-tree": lambda count, n, chunk, lanes: double_tree_all_reduce(count, n, chunk=chunk),
    "recursive-doubling": lambda count, n, chunk, lanes: recursive_doubling_all_reduce(
        count, n, chunk=chunk, lanes=lanes
    ),
}


@pytest.mark.parametrize("kind", INNER)
@given(nodes=node_lists(), count=counts, chunk=chunks, lanes=lane_counts, batch=batches, seed=seeds, data=st.data())
def test_hierarchical_all_reduce_with_any_inner_one_and_any_number_of_rails(
    kind: str, nodes: list[list[int]], count: int, chunk: int, lanes: int, batch: int, seed: int, data: st.DataObject
) -> None:
    rails = data.draw(st.integers(1, min(map(len, nodes))))
    plan = hierarchical_all_reduce(
        count, nodes, chunk=chunk, lanes=lanes, inner=lambda c, n: INNER[kind](c, n, chunk, lanes), rails=rails
    )
    check_all_reduced(plan, count, batch, seed)


@given(node_lists(), counts, chunks, lane_counts, batches, seeds, st.data())
def test_hierarchical_reduce_scatter(
    nodes: list[list[int]], count: int, chunk: int, lanes: int, batch: int, seed: int, data: st.DataObject
) -> None:
    rails = data.draw(st.integers(1, min(map(len, nodes))))
    plan = hierarchical_reduce_scatter(count, nodes, chunk=chunk, lanes=lanes, rails=rails)
    n = plan.world_size
    for rank, mine in enumerate(play(plan, batch, seed)):
        assert mine["input"] == [(rank, "input", i) for i in range(n * count)]
        for i, value in enumerate(mine["output"]):
            assert leaves(value) == Counter((other, "input", rank * count + i) for other in range(n))


@given(node_lists(), counts, chunks, lane_counts, batches, seeds, st.data())
def test_hierarchical_all_gather(
    nodes: list[list[int]], count: int, chunk: int, lanes: int, batch: int, seed: int, data: st.DataObject
) -> None:
    rails = data.draw(st.integers(1, min(map(len, nodes))))
    plan = hierarchical_all_gather(count, nodes, chunk=chunk, lanes=lanes, rails=rails)
    for mine in play(plan, batch, seed):
        assert mine["output"] == [(rank, "input", i) for rank in range(plan.world_size) for i in range(count)]


NODES = [[4 * node + gpu for gpu in range(4)] for node in range(3)]


def between_and_across(plan: Plan, nodes: Sequence[Sequence[int]], rails: Sequence[int]) -> tuple[int, int]:
    """Elements that go between nodes, and those of them that change rails."""
    node = {rank: number for number, ranks in enumerate(nodes) for rank in ranks}
    between = across = 0
    for rank in range(plan.world_size):
        for step in plan.program(rank).steps:
            if isinstance(step, Put) and node[step.peer] != node[rank]:
                between += step.src.count
                across += step.src.count if rails[step.peer] != rails[rank] else 0
    return between, across


def test_hierarchical_algorithms_stay_on_their_rails() -> None:
    rails = [rank % 4 for rank in range(12)]
    for inner in INNER.values():
        plan = hierarchical_all_reduce(240, NODES, chunk=7, lanes=2, inner=lambda c, n, inner=inner: inner(c, n, 7, 2))  # type: ignore[misc]
        assert between_and_across(plan, NODES, rails)[1] == 0
    # S = 240 elements, N = 3: S (N-1)/N from each node, once for reduce-scatter, once for all-gather.
    scatter = hierarchical_reduce_scatter(20, NODES, chunk=7, lanes=2)
    assert between_and_across(scatter, NODES, rails) == (3 * 240 * 2 // 3, 0)
    gather = hierarchical_all_gather(20, NODES, chunk=7, lanes=2)
    assert between_and_across(gather, NODES, rails) == (3 * 240 * 2 // 3, 0)


def test_more_rails_than_the_smallest_node_has_ranks_are_refused() -> None:
    with pytest.raises(LocalProtocolError, match="3 rails, but the smallest node has 2 ranks"):
        hierarchical_all_gather(1, [[0, 1], [2, 3, 4]], chunk=1, lanes=1, rails=3)


@given(node_lists(), st.data())
def test_aligned_ranks_share_their_rails_as_far_as_nodes_have_them(nodes: list[list[int]], data: st.DataObject) -> None:
    n = sum(map(len, nodes))
    rails = data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
    aligned, common = align_rails(nodes, rails), common_rails(nodes, rails)
    assert [sorted(ranks) for ranks in aligned] == [sorted(ranks) for ranks in nodes]
    for place in range(common):
        assert len({rails[ranks[place]] for ranks in aligned}) == 1
    # No more could share: beyond, no rail has a rank left in every node.
    assert not set.intersection(*({rails[rank] for rank in ranks[common:]} for ranks in aligned))


def test_pxn_finds_the_rail_wherever_it_is() -> None:
    """Two nodes that have their GPUs on rails 0, 1, 2 and 2, 1: by place, ranks 2 and 3 would not meet."""
    nodes, rails = [[0, 1, 2], [3, 4]], [0, 1, 2, 2, 1]
    table = [[1] * 5 for _ in range(5)]
    assert between_and_across(pxn_all_to_all(table, nodes, chunk=1, lanes=1, rails=rails), nodes, rails) == (12, 2)
    assert between_and_across(pxn_all_to_all(table, nodes, chunk=1, lanes=1), nodes, rails)[1] > 2


# Channels.


def check_only(values: list[Hashable], rank: int, name: str, start: int, length: int) -> None:
    """Outside of the part everything is as it was."""
    for i, value in enumerate(values):
        if not start <= i < start + length:
            assert value == (rank, name, i)


@st.composite
def channel_cases(draw: st.DrawFn) -> tuple[list[int], int, int, int]:
    """The order of a ring, the whole count, and the part of one channel."""
    order = list(draw(st.permutations(range(draw(st.integers(1, 7))))))
    count, parts = draw(counts), draw(st.integers(1, 4))
    start, length = draw(st.sampled_from(split_evenly(count, parts)))
    return order, count, start, length


@given(channel_cases(), chunks, lane_counts, batches, seeds)
def test_all_reduce_on_a_channel(
    case: tuple[list[int], int, int, int], chunk: int, lanes: int, batch: int, seed: int
) -> None:
    order, count, start, length = case
    n = len(order)
    part = ring_all_reduce(length, n, itemsize=1, chunk=chunk, lanes=lanes)
    plan = on_channel(part, order, start, {"data": count})
    for rank, mine in enumerate(play(plan, batch, seed)):
        check_only(mine["data"], rank, "data", start, length)
        for i in range(start, start + length):
            assert leaves(mine["data"][i]) == Counter((other, "data", i) for other in range(n))


@given(channel_cases(), chunks, lane_counts, batches, seeds)
def test_reduce_scatter_and_all_gather_on_a_channel(
    case: tuple[list[int], int, int, int], chunk: int, lanes: int, batch: int, seed: int
) -> None:
    order, count, start, length = case
    n = len(order)
    part = ring_reduce_scatter(length, n, chunk=chunk, lanes=lanes)
    plan = on_channel(part, order, start, {"input": n * count, "output": count}, frozenset({"input"}))
    for rank, mine in enumerate(play(plan, batch, seed)):
        check_only(mine["output"], rank, "output", start, length)
        for i in range(start, start + length):
            assert leaves(mine["output"][i]) == Counter((other, "input", rank * count + i) for other in range(n))
    part = ring_all_gather(length, n, chunk=chunk, lanes=lanes)
    plan = on_channel(part, order, start, {"input": count, "output": n * count}, frozenset({"output"}))
    for rank, mine in enumerate(play(plan, batch, seed)):
        for at, value in enumerate(mine["output"]):
            other, i = divmod(at, count)
            assert value == ((other, "input", i) if start <= i < start + length else (rank, "output", at))


@given(channel_cases(), st.data(), chunks, batches, seeds)
def test_broadcast_and_reduce_on_a_channel(
    case: tuple[list[int], int, int, int], data: st.DataObject, chunk: int, batch: int, seed: int
) -> None:
    order, count, start, length = case
    root = data.draw(st.sampled_from(order))
    at = order.index(root)
    plan = on_channel(ring_broadcast(length, len(order), at, chunk=chunk), order, start, {"data": count})
    for rank, mine in enumerate(play(plan, batch, seed)):
        check_only(mine["data"], rank, "data", start, length)
        assert mine["data"][start : start + length] == [(root, "data", i) for i in range(start, start + length)]
    plan = on_channel(tree_reduce(length, len(order), at, chunk=chunk), order, start, {"data": count})
    for i, value in enumerate(play(plan, batch, seed)[root]["data"][start : start + length], start):
        assert leaves(value) == Counter((other, "data", i) for other in order)


@given(counts, st.integers(1, 9))
def test_parts_cover_everything_once_and_differ_by_one_at_most(count: int, parts: int) -> None:
    cut = split_evenly(count, parts)
    assert [i for start, length in cut for i in range(start, start + length)] == list(range(count))
    assert max(length for _, length in cut) - min(length for _, length in cut) <= 1


def test_the_order_of_reduction_names_the_ring() -> None:
    part = ring_all_reduce(4, 3, itemsize=4, chunk=4, lanes=1)
    assert on_channel(part, [0, 2, 1], 0, {"data": 4}).reduction_order.endswith("the i-th of 0 2 1")
    assert on_channel(part, [0, 1, 2], 0, {"data": 4}).reduction_order == part.reduction_order


def test_what_cannot_be_moved_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="not within one block of 3 elements"):
        Region("data", 3, [0, 10]).find(Slice("data", 2, 2))
    with pytest.raises(LocalProtocolError, match="not an order of the 2 ranks"):
        embedded_plan(ring_broadcast(1, 2, 0, chunk=1), [0, 0], {"data": 1}, lambda rank: {})
    with pytest.raises(LocalProtocolError, match="cross-NIC policy 3"):
        channel_routes([[0]], [1], [0], 1, 3)


# Cross-NIC policies.


def ring_edges(route: ChannelRoute, node: dict[int, int]) -> list[tuple[int, int]]:
    """The HCAs (from, to) of the ring's connections between nodes; a rank sends to the one before it."""
    pairs = [(route.order[i], route.order[i - 1]) for i in range(len(route.order))]
    return [(route.hcas[a], route.hcas[b]) for a, b in pairs if node[a] != node[b]]


def block(nodes: int, gpus: int) -> tuple[list[list[int]], list[int], list[int], dict[int, int]]:
    """Nodes, HCAs and rails of the block placement, and the node of each rank."""
    ranks = range(nodes * gpus)
    lists = [[node * gpus + gpu for gpu in range(gpus)] for node in range(nodes)]
    return lists, [r % gpus + 1 for r in ranks], [r % gpus for r in ranks], {r: r // gpus for r in ranks}


@given(st.integers(1, 5), st.integers(1, 6), st.integers(1, 9), st.integers(0, 2))
def test_routes_are_rings_of_all_ranks_over_hcas_of_their_nodes(
    nodes: int, gpus: int, channels: int, cross_nic: int
) -> None:
    lists, hcas, rails, node = block(nodes, gpus)
    routes = channel_routes(lists, hcas, rails, channels, cross_nic)
    assert len(routes) == channels
    for route in routes:
        assert sorted(route.order) == list(range(nodes * gpus))
        assert len(ring_edges(route, node)) == (nodes if nodes > 1 else 0)
        assert all(1 <= hca <= gpus for hca in route.hcas)
        across = sum(a != b for a, b in ring_edges(route, node))
        if cross_nic == 1:
            assert route.hcas == tuple(hcas)
            assert across == (nodes if nodes > 1 and gpus > 1 else 0)
        else:
            assert across == 0


@pytest.mark.parametrize("cross_nic", [0, 1, 2])
def test_all_hcas_carry_the_same(cross_nic: int) -> None:
    lists, hcas, rails, node = block(4, 4)
    out: Counter[int] = Counter()
    into: Counter[int] = Counter()
    for route in channel_routes(lists, hcas, rails, 4, cross_nic):
        for a, b in ring_edges(route, node):
            out[a] += 1
            into[b] += 1
    assert out == into == Counter({1: 4, 2: 4, 3: 4, 4: 4})


def test_alternating_rings_swap_in_odd_nodes() -> None:
    lists, hcas, rails, _ = block(2, 4)
    routes = channel_routes(lists, hcas, rails, 4, 2)
    assert [route.order for route in routes] == [
        (0, 2, 3, 1, 5, 6, 7, 4),
        (1, 2, 3, 0, 4, 6, 7, 5),
        (2, 0, 1, 3, 7, 4, 5, 6),
        (3, 0, 1, 2, 6, 4, 5, 7),
    ]
    assert all(route.hcas == tuple(hcas) for route in routes)


def test_the_same_nic_for_all_ranks_of_a_channel() -> None:
    lists, hcas, rails, _ = block(2, 2)
    routes = channel_routes(lists, hcas, rails, 3, 0)
    assert [route.hcas for route in routes] == [(1,) * 4, (2,) * 4, (1,) * 4]
    assert [route.order for route in routes] == [(0, 1, 2, 3), (1, 0, 3, 2), (0, 1, 2, 3)]


def test_ranks_of_different_gpus_still_meet_on_common_rails() -> None:
    """Node 0 has GPUs 0 and 1, node 1 has GPUs 1 and 2: the common rail comes first, the other channel must cross."""
    routes = channel_routes([[0, 1], [2, 3]], [1, 2, 2, 3], [0, 1, 1, 2], 2, 0)
    assert [route.hcas for route in routes] == [(2, 2, 2, 2), (1, 1, 3, 3)]
