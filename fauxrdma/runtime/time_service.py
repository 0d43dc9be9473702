"""The subnet manager as the keeper of virtual time: `fabric.timekeeper` driven by what daemons say and by pauses.

A pause ends looks that found a rank at work; it grows while ranks compute. When all have been blocked with nothing due
for a while of wall time, that is a deadlock: `on_deadlock(sentence)` is called, once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fauxrdma.fabric.timekeeper import Go, Look, NodeWord, Timekeeper, Turn, Verdict
from fauxrdma.units import format_ns
from fauxrdma.wire.control import Message
from fauxrdma.wire.fabric_messages import ClockGo, ClockLook, ClockTurn, ClockWord

__all__ = ["TimeService"]

_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.0002, 0.02
_BLOCKED_PAUSE_S = 0.01
_REST_S = 5.0
"""A report waits this long for a daemon that says nothing, as a stopped one does."""
DEADLOCK_S = 5.0
"""How long all must have been blocked: a rank may sleep by the wall clock, too."""
_MOSTLY = 0.8
"""The part of looks in that time that must have found all blocked; ranks that wait look up now and then."""


class TimeService:
    """`send(node, message)` reaches a daemon. `due_ns()`: when the subnet manager has something to do; `carry_out()`
    does it. `busy()`: whether it has begun something that ends by itself. `nodes`: how many there will be."""

    def __init__(
        self,
        nodes: int,
        send: Callable[[int, Message], None],
        due_ns: Callable[[], int | None],
        carry_out: Callable[[], None],
        busy: Callable[[], bool],
        on_deadlock: Callable[[str], None],
    ) -> None:
        self.keeper = Timekeeper()
        self._expected = nodes
        self._send = send
        self._due_ns = due_ns
        self._carry_out = carry_out
        self._busy = busy
        self._on_deadlock = on_deadlock
        self._timer: asyncio.TimerHandle | None = None
        self._turn_due = False
        self._all_blocked = False  # in the pause that is
        self._pause_s = _SHORTEST_PAUSE_S
        self._started = False
        self._closed = False
        self._blocked: dict[int, list[str]] = {}
        self._resting: list[Callable[[], None]] = []  # to be called when all is at rest
        self._unheard: set[int] = set()  # who has said nothing since that was asked for
        self._since_s: float | None = None  # wall time since which nothing has happened
        self._looks = 0
        self._blocked_looks = 0

    def now_ns(self) -> int:
        """Fabric time."""
        return self.keeper.now_ns

    def said(self, node: int, msg: ClockWord) -> None:
        """A daemon's word."""
        self._unheard.discard(node)
        word = NodeWord(
            msg.step, msg.heard, msg.sent, msg.received, msg.due_ns, msg.woke, msg.polling, msg.participants
        )
        self.keeper.word(node, word)
        if msg.look:
            self.keeper.looked(node, Look(msg.look, msg.phase), msg.asleep)
            if msg.phase == 2:
                self._blocked[node] = msg.blocked
        else:
            self._since_s = None
            if self._all_blocked and self._timer is not None:
                self._timer.cancel()
                self._timer = None
        self.turn()

    def when_at_rest(self, call: Callable[[], None]) -> None:
        """Call back when those that have ended are known to have, and, if nobody is left, all that they left under way
        is done: so that a report is the same whether the clock or the end of a program comes first."""
        self._unheard = set(self.keeper.nodes)
        self._resting.append(call)
        for node in self.keeper.nodes:
            self._send(node, ClockLook(0, 2))  # no look of the keeper's: just for a word
        asyncio.get_running_loop().call_later(_REST_S, self._rest_over)
        self.turn()

    def _rest_over(self) -> None:
        resting, self._resting = self._resting, []
        for call in resting if not self._closed else ():
            call()

    def left(self, node: int) -> None:
        """A daemon is gone."""
        self.keeper.leave(node)
        self._unheard.discard(node)
        self.turn()

    def turn(self) -> None:
        """See what is to be done, once this turn of the loop is over."""
        if not self._turn_due and not self._closed:
            self._turn_due = True
            asyncio.get_running_loop().call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._turn_due = False
        if self._closed or self._busy() or not (self._started or len(self.keeper.nodes) == self._expected):
            return
        self._started = True
        if self._timer is not None:
            return
        order = self.keeper.next(self._due_ns())
        if self._resting and not self._unheard and (order is Verdict.UNUSED or self.keeper.participants):
            self._rest_over()
        if isinstance(order, Go):
            self._since_s = None
            self._pause_s = _SHORTEST_PAUSE_S
            for node in self.keeper.nodes:
                self._send(node, ClockGo(order.step, order.now_ns))
        elif isinstance(order, Turn):
            self._since_s = None
            for node in self.keeper.nodes:
                self._send(node, ClockTurn(order.now_ns))
            self._carry_out()
        elif isinstance(order, Look):
            for node in self.keeper.nodes:
                self._send(node, ClockLook(order.number, order.phase))
        elif order is not Verdict.WAIT:
            self._rest(order)

    def _rest(self, verdict: Verdict) -> None:
        """Look again after a while."""
        loop = asyncio.get_running_loop()
        if self._since_s is None or verdict is Verdict.UNUSED:
            self._since_s, self._looks, self._blocked_looks = loop.time(), 0, 0
        self._looks += 1
        if verdict is Verdict.BLOCKED:
            self._blocked_looks += 1
            if loop.time() > self._since_s + DEADLOCK_S and self._blocked_looks > _MOSTLY * self._looks:
                self._closed = True
                self._on_deadlock(self._story())
                return
        self._all_blocked = verdict is not Verdict.RETRY
        if not self._all_blocked:
            pause_s = self._pause_s
            self._pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        else:
            pause_s = _BLOCKED_PAUSE_S
        self._timer = loop.call_later(pause_s, self._rested)

    def _rested(self) -> None:
        self._timer = None
        self.turn()

    def _story(self) -> str:
        who = [sentence for node in sorted(self._blocked) for sentence in self._blocked[node]]
        return (
            f"deadlock at {format_ns(self.keeper.now_ns)} of fabric time: all are blocked and nothing is under way. "
            + ". ".join(who)
        )

    def close(self) -> None:
        """Stop. Idempotent."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
