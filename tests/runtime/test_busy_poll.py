"""A daemon stays awake for a moment after a small message, and then sleeps."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import cast

from fauxrdma.runtime.busy_poll import BUSY_POLL_NS, BusyPoll


class Turns:
    """As much of an event loop as there is to see, a clock, and how often others were let through."""

    def __init__(self) -> None:
        self.due: deque[Callable[[], None]] = deque()
        self.now_ns = 1_000
        self.gave_way = 0

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.due.append(callback)

    def give_way(self) -> None:
        self.gave_way += 1

    def turn(self) -> None:
        self.due.popleft()()


def busy_poll(turns: Turns) -> BusyPoll:
    return BusyPoll(cast(asyncio.AbstractEventLoop, turns), lambda: turns.now_ns, turns.give_way)


def test_it_stays_awake_until_the_span_after_the_last_message_is_over() -> None:
    turns = Turns()
    poll = busy_poll(turns)
    assert not turns.due
    poll.stir()
    turns.now_ns += BUSY_POLL_NS - 1
    turns.turn()
    assert poll.awake
    poll.stir()
    assert len(turns.due) == 1, "one callback, however many messages"
    turns.now_ns += BUSY_POLL_NS - 1
    turns.turn()
    assert poll.awake
    assert turns.gave_way == 2
    turns.now_ns += 1
    turns.turn()
    assert not poll.awake
    assert not turns.due, "the loop sleeps"
    poll.stir()
    assert poll.awake
    assert len(turns.due) == 1


def test_closed_it_sleeps_at_the_next_turn() -> None:
    turns = Turns()
    poll = busy_poll(turns)
    poll.stir()
    poll.close()
    turns.turn()
    assert not turns.due
    assert not turns.gave_way
