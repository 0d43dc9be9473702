"""The executor on real arrays over an in-memory fabric that delivers in any order Hypothesis likes."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_world import MemoryWorld

from fauxrdma.collectives import (
    Channel,
    NumpyArithmetic,
    PlanExecutor,
    chunk_elements,
    dissemination_barrier,
    gloo_blocks,
    ring_all_gather,
    ring_all_reduce,
    ring_broadcast,
    ring_reduce_scatter,
)
from fauxrdma.collectives.executor import Arrived, PutMessage
from fauxrdma.errors import LocalProtocolError, RemoteProtocolError

worlds = st.integers(1, 5)
seeds = st.integers(0, 2**32)
SLOTS, SLOT_BYTES = 8, 128


def ring_reference(inputs: list[np.ndarray], itemsize: int) -> np.ndarray:
    """The sum in the documented order, by plain numpy."""
    n, count = len(inputs), inputs[0].size
    out = np.empty_like(inputs[0])
    part = gloo_blocks(count, n, itemsize)
    for b in range(n):
        where = slice(part.offset(b), part.offset(b) + part.length(b))
        value = inputs[(b - 1) % n][where].copy()
        for k in range(2, n + 1):
            value = inputs[(b - k) % n][where] + value
        out[where] = value
    return out


@settings(max_examples=60, deadline=None)
@given(worlds, st.integers(0, 300), st.sampled_from(["f4", "f8", "f2", "c8", "i4", "u1"]), seeds)
def test_all_reduce_gives_the_bits_of_its_order(n: int, count: int, dtype: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype)
    inputs = [(rng.standard_normal(count) * 100).astype(kind) for _ in range(n)]
    world = MemoryWorld(n, slots=SLOTS, slot_bytes=SLOT_BYTES, choose=random.Random(seed).randrange)
    chunk = chunk_elements(gloo_blocks(count, n, kind.itemsize).block, kind.itemsize, SLOT_BYTES, 4)
    plan = ring_all_reduce(count, n, itemsize=kind.itemsize, chunk=chunk, lanes=4)
    expected = ring_reference(inputs, kind.itemsize)
    # Three in a row over the same slots: what one leaves behind must suit the next.
    for _ in range(3):
        data = [x.copy() for x in inputs]
        world.run(plan, [{"data": x} for x in data], lambda: NumpyArithmetic("sum", kind, n))
        for x in data:
            assert x.tobytes() == expected.tobytes()
    assert world.nbytes == [3 * plan.traffic(r).elements * kind.itemsize for r in range(n)]


@settings(max_examples=40, deadline=None)
@given(worlds, st.integers(0, 100), st.sampled_from(["sum", "avg", "product", "min", "max"]), seeds)
def test_reduce_scatter_and_all_gather(n: int, count: int, op: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    inputs = [rng.uniform(0.5, 1.5, n * count) for _ in range(n)]
    world = MemoryWorld(n, slots=4, slot_bytes=SLOT_BYTES, choose=random.Random(seed).randrange)
    outputs = [np.empty(count) for _ in range(n)]
    plan = ring_reduce_scatter(count, n, chunk=16, lanes=2)
    buffers = [{"input": i, "output": o} for i, o in zip(inputs, outputs, strict=True)]
    world.run(plan, buffers, lambda: NumpyArithmetic(op, np.dtype("f8"), n))
    stacked = np.stack(inputs)
    whole = {
        "sum": stacked.sum(0),
        "avg": stacked.mean(0),
        "product": stacked.prod(0),
        "min": stacked.min(0),
        "max": stacked.max(0),
    }[op]
    for rank in range(n):
        np.testing.assert_allclose(outputs[rank], whole[rank * count : (rank + 1) * count], rtol=1e-12)
    gathered = [np.empty(n * count) for _ in range(n)]
    plan = ring_all_gather(count, n, chunk=13, lanes=2)
    world.run(plan, [{"input": o, "output": g} for o, g in zip(outputs, gathered, strict=True)])
    for g in gathered:
        np.testing.assert_array_equal(g, np.concatenate(outputs))


@settings(max_examples=40, deadline=None)
@given(worlds, st.integers(0, 200), st.integers(0, 4), seeds)
def test_broadcast_and_barrier_share_the_slots(n: int, count: int, root: int, seed: int) -> None:
    root %= n
    world = MemoryWorld(n, slots=2, slot_bytes=SLOT_BYTES, choose=random.Random(seed).randrange)
    data = [np.full(count, rank, np.int64) for rank in range(n)]
    for _ in range(2):
        world.run(ring_broadcast(count, n, root, chunk=16), [{"data": x} for x in data])
        world.run(dissemination_barrier(n), [{} for _ in range(n)])
    for x in data:
        assert (x == root).all()


def test_large_world_in_a_fixed_order() -> None:
    n, count = 33, 2000
    world = MemoryWorld(n, slots=SLOTS, slot_bytes=SLOT_BYTES, choose=lambda k: 0)
    inputs = [np.arange(count, dtype=np.int64) * (rank + 1) for rank in range(n)]
    plan = ring_all_reduce(count, n, itemsize=8, chunk=16, lanes=4)
    data = [x.copy() for x in inputs]
    world.run(plan, [{"data": x} for x in data], lambda: NumpyArithmetic("sum", np.dtype("i8"), n))
    for x in data:
        np.testing.assert_array_equal(x, np.arange(count) * (n * (n + 1) // 2))


def two_ranks(slots: int = 8) -> tuple[Channel, PlanExecutor]:
    memory = [np.zeros(slots * 128, np.uint8) for _ in range(2)]
    channel = Channel(1, slots, 128, *memory)
    plan = ring_all_reduce(8, 2, itemsize=4, chunk=4, lanes=2)
    arithmetic = NumpyArithmetic("sum", np.dtype("f4"), 2)
    return channel, PlanExecutor(plan, 0, {"data": np.ones(8, "f4")}, {1: channel}, arithmetic)


def test_different_sizes_on_two_ranks_are_reported() -> None:
    _, executor = two_ranks()
    (put,) = (a for a in executor.start() if isinstance(a, PutMessage))
    assert put.nbytes == 16
    assert executor.waiting_for() == "message 0 from rank 1"
    with pytest.raises(RemoteProtocolError, match=r"rank 1 sent 12 bytes where rank 0 expects 16: the ranks called"):
        list(executor.handle(Arrived(1, 0, 12, 0)))


def test_a_peer_that_breaks_the_rules_is_named() -> None:
    channel, executor = two_ranks(slots=4)
    list(executor.start())
    with pytest.raises(RemoteProtocolError, match="sent message 5 where 0 was expected"):
        list(executor.handle(Arrived(1, 5, 16, 0)))
    for k in range(4):
        channel.data(k, 16)
    with pytest.raises(RemoteProtocolError, match="overran the 4 staging slots"):
        channel.data(4, 16)
    with pytest.raises(RemoteProtocolError, match="returned 2 staging slots, but only 1 were used"):
        channel.credit(2)


def test_wrong_buffers_are_refused_before_anything_runs() -> None:
    channel, _ = two_ranks()
    plan = ring_all_reduce(8, 2, itemsize=4, chunk=4, lanes=2)
    arithmetic = NumpyArithmetic("sum", np.dtype("f4"), 2)
    for buffers in ({}, {"data": np.ones(7, "f4")}, {"data": np.ones((2, 4), "f4")}, {"data": np.ones(16, "f4")[::2]}):
        with pytest.raises(LocalProtocolError, match="data"):
            PlanExecutor(plan, 0, buffers, {1: channel}, arithmetic)
    big = ring_all_reduce(80, 2, itemsize=4, chunk=40, lanes=2)
    with pytest.raises(LocalProtocolError, match="do not fit slots of 128 bytes"):
        PlanExecutor(big, 0, {"data": np.ones(80, "f4")}, {1: channel}, arithmetic)
    wide = ring_all_reduce(8, 2, itemsize=4, chunk=1, lanes=7)
    with pytest.raises(LocalProtocolError, match="lanes need more than 8 staging slots"):
        PlanExecutor(wide, 0, {"data": np.ones(8, "f4")}, {1: channel}, arithmetic)


@pytest.mark.parametrize(
    ("op", "dtype", "text"),
    [("median", "f4", "known: sum, avg"), ("avg", "?", "has no avg"), ("sum", "U3", "cannot be reduced")],
)
def test_operations_a_dtype_does_not_have(op: str, dtype: str, text: str) -> None:
    with pytest.raises(LocalProtocolError, match=text):
        NumpyArithmetic(op, np.dtype(dtype), 2)


def test_a_message_goes_out_before_the_rank_works_on_the_next() -> None:
    """Whoever carries out an action sees the channel as it is after that message: what completes with it is exact."""
    channel = Channel(1, 8, 128, np.zeros(1024, np.uint8), np.zeros(1024, np.uint8))
    plan = ring_all_reduce(64, 2, itemsize=4, chunk=8, lanes=4)
    executor = PlanExecutor(
        plan, 0, {"data": np.ones(64, "f4")}, {1: channel}, NumpyArithmetic("sum", np.dtype("f4"), 2)
    )
    numbers = []
    for action in executor.start():
        if isinstance(action, PutMessage):
            assert channel.sent == action.number + 1
            numbers.append(action.number)
    assert numbers == [0, 1, 2, 3]


def test_a_peer_whose_messages_are_all_here_is_needed_no_more() -> None:
    """Rank 1 of a chain 0, 2, 1 (root 0) only receives; its neighbour may leave once everything is here, however much
    of it is still to be worked on."""
    plan = ring_broadcast(32, 3, 0, chunk=8)
    channels = {
        peer: Channel(peer, 2, 128, np.zeros(256, np.uint8), np.zeros(256, np.uint8)) for peer in plan.program(2).peers
    }
    executor = PlanExecutor(plan, 2, {"data": np.zeros(32, "f4")}, channels, None)
    list(executor.start())
    for number in range(2):
        assert executor.needs(0)
        list(executor.handle(Arrived(0, number, 32, 0)))
    channels[0].given_back = 2  # as if the slots were free again, so that the rest may land
    list(executor.handle(Arrived(0, 2, 32, 0)))
    assert executor.needs(0)
    list(executor.handle(Arrived(0, 3, 32, 0)))
    assert not executor.done  # rank 1 has given no slot back
    assert not executor.needs(0)
    assert executor.needs(1)
