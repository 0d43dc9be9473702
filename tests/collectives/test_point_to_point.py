"""The engine of sends and receives: any mix of sizes, tags and orders, any schedule of events, few slots."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_world import MemoryWorld

from fauxrdma.collectives.executor import apply_event
from fauxrdma.collectives.point_to_point import HEADER_BYTES, PointToPoint, Transfer
from fauxrdma.errors import RemoteProtocolError

SLOT_BYTES = 256
EAGER = 96
SIZES = (0, 1, 95, 96, 97, 999, 5000)


class Party(MemoryWorld):
    """Engines joined by the in-memory fabric."""

    def __init__(self, n: int, slots: int, seed: int) -> None:
        self.chance = random.Random(seed)
        super().__init__(n, slots=slots, slot_bytes=SLOT_BYTES, choose=self.chance.randrange)
        self.engines = [PointToPoint(rank, self.channels[rank], eager_bytes=EAGER) for rank in range(n)]

    def advance(self, rank: int) -> None:
        self._perform(rank, list(self.engines[rank].advance()))

    def settle(self) -> None:
        """Deliver in a random order until nothing moves."""
        for rank in range(self.n):
            self.advance(rank)
        while moves := [edge for edge, queue in self.wires.items() if queue]:
            src, dst = moves[self.choose(len(moves))]
            apply_event(self.channels[dst], self._deliver(src, dst))
            if self.chance.random() < 0.7 or len(moves) == 1:
                self.advance(dst)
        for rank in range(self.n):
            self.advance(rank)
        if any(self.wires.values()):
            self.settle()


def transfer(peer: int | None, tag: int, data: np.ndarray, dtype: str = "|u1") -> Transfer:
    return Transfer(peer, tag, data, dtype, data.size, lambda _: None)


@given(
    n=st.integers(2, 4),
    slots=st.integers(2, 5),
    seed=st.integers(0, 1 << 20),
    plan=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(-2, 2), st.sampled_from(SIZES)),
        max_size=12,
    ),
)
def test_everything_arrives_in_the_order_of_its_source_and_tag(
    n: int, slots: int, seed: int, plan: list[tuple[int, int, int, int]]
) -> None:
    party = Party(n, slots, seed)
    content = np.random.default_rng(seed)
    todo, pairs = [], []
    for a, b, tag, size in plan:
        source, target = a % n, b % n
        if source == target:
            continue
        sent = content.integers(0, 256, size, dtype=np.uint8)
        got = np.zeros(size, np.uint8)
        pairs.append((sent, got))
        todo.append((source, transfer(target, tag, sent), True))
        todo.append((target, transfer(source, tag, got), False))
    # Each rank asks in an order of its own, but sends (and receives) of one source and tag in the order of the plan.
    streams: dict[tuple[int, bool, int | None, int], list[tuple[int, Transfer, bool]]] = {}
    for entry in todo:
        streams.setdefault((entry[0], entry[2], entry[1].peer, entry[1].tag), []).append(entry)
    while live := [stream for stream in streams.values() if stream]:
        rank, what, send = party.chance.choice(live).pop(0)
        (party.engines[rank].send if send else party.engines[rank].receive)(what)
        if party.chance.random() < 0.3:
            party.settle()
    party.settle()
    assert all(what.finished and what.error is None for _, what, _ in todo)
    assert all(np.array_equal(sent, got) for sent, got in pairs)
    assert all(engine.idle for engine in party.engines)
    assert not any(engine.waiting_for() for engine in party.engines)


def test_any_source_takes_who_comes_first_and_says_who_it_was() -> None:
    party = Party(3, 4, 1)
    got = [transfer(None, 7, np.zeros(4, np.uint8)) for _ in range(2)]
    party.engines[0].receive(got[0])
    party.engines[2].send(transfer(0, 7, np.full(4, 2, np.uint8)))
    party.settle()
    party.engines[1].send(transfer(0, 7, np.full(4, 1, np.uint8)))
    party.settle()
    party.engines[0].receive(got[1])
    assert [(t.peer, t.data.tolist()) for t in got] == [(2, [2] * 4), (1, [1] * 4)]


@pytest.mark.parametrize("size", [4, 400])
@pytest.mark.parametrize(("count", "dtype", "text"), [(8, "|u1", "sends SIZE elements"), (None, "<f4", "SIZE bytes")])
def test_a_mismatch_names_both_sides_and_hurts_nobody_else(size: int, count: int | None, dtype: str, text: str) -> None:
    party = Party(2, 4, 0)
    sent = transfer(1, 3, np.ones(size, np.uint8))
    got = transfer(0, 3, np.zeros(count or size, np.uint8), dtype)
    party.engines[0].send(sent)
    party.engines[1].receive(got)
    party.settle()
    assert got.error is not None
    assert text.replace("SIZE", str(size)) in got.error
    assert f"rank 1 receives {count or size} elements of {dtype} under tag 3" in got.error
    assert sent.finished
    assert sent.error == (got.error if size > EAGER else None)  # a short one had left already
    again, got_again = transfer(1, 3, np.ones(size, np.uint8)), transfer(0, 3, np.zeros(size, np.uint8))
    party.engines[0].send(again)
    party.engines[1].receive(got_again)
    party.settle()
    assert got_again.error is None
    assert got_again.data.tolist() == [1] * size


def test_who_gives_up_is_not_written_to() -> None:
    party = Party(2, 4, 0)
    sent, got = transfer(1, 0, np.ones(5000, np.uint8)), transfer(0, 0, np.zeros(5000, np.uint8))
    party.engines[0].send(sent)
    party.engines[1].receive(got)
    party.advance(0)
    for _ in range(3):
        for edge in [edge for edge, queue in party.wires.items() if queue]:
            apply_event(party.channels[edge[1]], party._deliver(*edge))
            party.advance(edge[1])
    assert 0 < got.moved < 5000
    party.engines[1].give_up(got, "no longer wanted")
    got.data[:] = 9
    party.settle()
    assert got.error == "no longer wanted"
    assert got.data.tolist() == [9] * 5000


def test_a_lost_peer_fails_what_is_with_it_and_leaves_what_came() -> None:
    party = Party(2, 4, 0)
    party.engines[0].send(transfer(1, 1, np.full(8, 5, np.uint8)))
    party.settle()
    waiting = [transfer(1, 0, np.ones(5000, np.uint8)), transfer(1, 0, np.ones(5, np.uint8))]
    for what in waiting:
        party.engines[0].send(what)
    asked = transfer(1, 9, np.zeros(3, np.uint8))
    party.engines[0].receive(asked)
    party.engines[0].fail(1, "it is gone")
    assert [t.error for t in (*waiting, asked)] == ["it is gone"] * 3
    party.engines[1].fail(0, "it is gone")
    late = transfer(0, 1, np.zeros(8, np.uint8))
    party.engines[1].receive(late)
    assert late.error is None
    assert late.data.tolist() == [5] * 8


def test_a_message_too_short_for_its_header_is_not_trusted() -> None:
    party = Party(2, 4, 0)
    party.channels[0][1].data(0, HEADER_BYTES - 1)
    with pytest.raises(RemoteProtocolError, match="shorter than its header"):
        party.advance(0)
