"""Plans proved on symbols: right values, fixed reduction order, declared traffic, no deadlock, no slot misused."""

from __future__ import annotations

import random
from collections.abc import Hashable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fauxrdma.collectives import (
    Plan,
    PlanDefect,
    dissemination_barrier,
    gloo_blocks,
    predict_ns,
    ring_all_gather,
    ring_all_reduce,
    ring_broadcast,
    ring_reduce_scatter,
    run_symbolically,
)
from fauxrdma.collectives.plan import Free, Program, Reduce, Wait
from fauxrdma.errors import LocalProtocolError

worlds = st.integers(1, 7)
counts = st.integers(0, 60)
chunks = st.integers(1, 12)
lane_counts = st.integers(1, 5)
batches = st.integers(1, 3)
seeds = st.integers(0, 2**32)


def in_ring_order(block: int, n: int, buffer: str, element: int) -> Hashable:
    """The value the module's text promises for an element of `block`: ((x[b-1] op x[b-2]) op ...) op x[b]."""
    value: Hashable = ((block - 1) % n, buffer, element)
    for k in range(2, n + 1):
        value = ("op", ((block - k) % n, buffer, element), value)
    return value


def check_traffic(plan: Plan, counted: list) -> None:
    assert counted == [plan.traffic(rank) for rank in range(plan.world_size)]


@settings(max_examples=150, deadline=None)
@given(worlds, counts, chunks, lane_counts, batches, seeds)
def test_all_reduce(n: int, count: int, chunk: int, lanes: int, batch: int, seed: int) -> None:
    plan = ring_all_reduce(count, n, itemsize=4, chunk=chunk, lanes=lanes)
    result = run_symbolically(plan, slots=lanes + batch, credit_batch=batch, choose=random.Random(seed).randrange)
    blocks = gloo_blocks(count, n, 4)
    for buffers in result.buffers:
        assert buffers["data"] == [in_ring_order(i // blocks.block, n, "data", i) for i in range(count)]
    check_traffic(plan, result.traffic)
    # Every byte that must cross does, and no more: 2 (n-1) times the data over all ranks.
    assert sum(t.elements for t in result.traffic) == 2 * (n - 1) * count


@settings(max_examples=100, deadline=None)
@given(worlds, st.integers(0, 15), chunks, lane_counts, batches, seeds)
def test_reduce_scatter(n: int, count: int, chunk: int, lanes: int, batch: int, seed: int) -> None:
    plan = ring_reduce_scatter(count, n, chunk=chunk, lanes=lanes)
    result = run_symbolically(plan, slots=lanes + batch, credit_batch=batch, choose=random.Random(seed).randrange)
    for rank, buffers in enumerate(result.buffers):
        expected = [in_ring_order(rank, n, "input", rank * count + i) for i in range(count)]
        assert buffers["output"] == expected
        assert buffers["input"] == [(rank, "input", i) for i in range(n * count)], "the input must stay as it was"
    check_traffic(plan, result.traffic)
    assert [t.elements for t in result.traffic] == [(n - 1) * count] * n


@settings(max_examples=100, deadline=None)
@given(worlds, st.integers(0, 15), chunks, lane_counts, batches, seeds)
def test_all_gather(n: int, count: int, chunk: int, lanes: int, batch: int, seed: int) -> None:
    plan = ring_all_gather(count, n, chunk=chunk, lanes=lanes)
    result = run_symbolically(plan, slots=lanes + batch, credit_batch=batch, choose=random.Random(seed).randrange)
    for buffers in result.buffers:
        assert buffers["output"] == [(rank, "input", i) for rank in range(n) for i in range(count)]
    check_traffic(plan, result.traffic)


@settings(max_examples=100, deadline=None)
@given(worlds, counts, chunks, st.integers(0, 6), batches, seeds)
def test_broadcast(n: int, count: int, chunk: int, root: int, batch: int, seed: int) -> None:
    root %= n
    plan = ring_broadcast(count, n, root, chunk=chunk)
    result = run_symbolically(plan, slots=1 + batch, credit_batch=batch, choose=random.Random(seed).randrange)
    for buffers in result.buffers:
        assert buffers["data"] == [(root, "data", i) for i in range(count)]
    check_traffic(plan, result.traffic)
    assert sum(t.elements for t in result.traffic) == (n - 1) * count


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 13])
def test_barrier_hears_of_every_rank(n: int) -> None:
    plan = dissemination_barrier(n)
    result = run_symbolically(plan, slots=2, choose=random.Random(n).randrange)
    check_traffic(plan, result.traffic)
    # Who knows of whom: played on the programs themselves, round by round.
    knows = [{rank} for rank in range(n)]
    for k in range(plan.rounds):
        senders = [[s for s in plan.program(r).steps if isinstance(s, Wait)][k].peer for r in range(n)]
        knows = [knows[r] | knows[senders[r]] for r in range(n)]
    assert knows == [set(range(n))] * n


def test_a_plan_does_not_depend_on_when_it_is_built() -> None:
    one = ring_all_reduce(1000, 5, itemsize=8, chunk=7, lanes=3)
    other = ring_all_reduce(1000, 5, itemsize=8, chunk=7, lanes=3)
    assert [one.program(r) for r in range(5)] == [other.program(r) for r in reversed(range(5))][::-1]


def test_blocks_are_those_of_gloo() -> None:
    # numSegments = roundUp(max(ceil(bytes / 1 MiB), 2 n), n); a block is numSegments / n segments of ceil(...) bytes.
    assert gloo_blocks(10, 4, 4).block == 4  # 8 segments of 2 elements
    assert [gloo_blocks(10, 4, 4).length(b) for b in range(4)] == [4, 4, 2, 0]
    big = gloo_blocks(4 << 20, 3, 4)  # 16 MiB: 18 segments of ceil(2^22 / 18) elements
    assert big.block == 6 * 233017


def test_too_few_slots_is_found_as_a_deadlock() -> None:
    plan = ring_all_reduce(400, 4, itemsize=4, chunk=5, lanes=4)
    with pytest.raises(PlanDefect, match=r"deadlocks with 3 slots per peer: rank 0 at"):
        run_symbolically(plan, slots=3)


def broken(plan: Plan, change) -> Plan:
    def build(rank: int) -> Program:
        program = plan.program(rank)
        return replace(program, steps=tuple(change(list(program.steps))))

    return replace(plan, build=build)


def test_defects_are_named() -> None:
    plan = ring_all_reduce(40, 3, itemsize=4, chunk=5, lanes=2)

    def never_free(steps: list) -> list:
        return [s for s in steps if not (isinstance(s, Free) and s.index == 2)]

    def free_first(steps: list) -> list:
        at = next(i for i, s in enumerate(steps) if isinstance(s, Reduce))
        return [*steps[:at], steps[at + 1], steps[at], *steps[at + 2 :]]

    with pytest.raises(PlanDefect, match="freed"):
        run_symbolically(broken(plan, never_free), slots=50)
    with pytest.raises(PlanDefect, match="after freeing it"):
        run_symbolically(broken(plan, free_first), slots=8)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ring_all_reduce(-1, 2, itemsize=4, chunk=1, lanes=1),
        lambda: ring_all_gather(1, 0, chunk=1, lanes=1),
        lambda: ring_reduce_scatter(1, 2, chunk=0, lanes=1),
        lambda: ring_broadcast(1, 2, 2, chunk=1),
        lambda: dissemination_barrier(0),
        lambda: ring_all_reduce(4, 2, itemsize=4, chunk=1, lanes=1).program(2),
    ],
)
def test_impossible_sizes_are_refused(make) -> None:
    with pytest.raises(LocalProtocolError):
        make()


def test_cost_of_a_ring_is_the_textbook_formula() -> None:
    n, count = 4, 1 << 20
    block = count // n
    one_chunk = ring_all_reduce(count, n, itemsize=4, chunk=block, lanes=4)
    expected = 2 * (n - 1) * (1000 + block * 4 / 25)
    assert predict_ns(one_chunk, 1000, 25, 4) == pytest.approx(expected, rel=1e-9)
    # Pipelining a broadcast: (n - 2 + chunks) rounds instead of (n - 1) whole messages.
    pipelined = ring_broadcast(count, n, 1, chunk=count // 16)
    assert pipelined.rounds == n - 2 + 16
    assert predict_ns(pipelined, 0, 25, 4) == pytest.approx(pipelined.rounds * (count // 16) * 4 / 25, rel=1e-9)
    assert predict_ns(dissemination_barrier(8), 1000, 25) == pytest.approx(3 * 1000)
