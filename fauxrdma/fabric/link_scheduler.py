"""Pacing of one daemon's frames: each flow is a fluid server with a rate, followed by a constant latency.

A flow is one queue pair's traffic in one direction. Bytes drain from its queue at the granted rate, without gaps while
there are any; the last bit of a frame leaves at its *departure* and reaches the other side `latency_ns` later, at its
*release*::

    submit -> [ queue, drained at rate_bps ] -> departed -> latency -> released

**Exactness.** Work is counted in whole *nanobits* (bits x 1e9), and `rate_bps x dt_ns` is a whole number of them, so
no rounding adds up: N bursts at a constant rate end within 1 ns of `start + total / rate`, however many there are. A
burst is said to depart at the first whole nanosecond at which all its bits are out. What the server drained beyond that
within the nanosecond goes to the next burst if that one was already waiting, and is lost if the flow was idle; hence a
flow is never faster than its grant.

**Order.** FIFO within a flow. Zero-byte items (acknowledgements) take no bandwidth and, unless submitted with
`ordered=True`, do not wait behind data. Items of different flows come out in release order; ties in submit order.

Sans-IO: `now` is fabric time in ns and never goes back (an earlier `now` counts as the latest seen).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from fauxrdma.errors import LocalProtocolError

__all__ = ["Departure", "LinkScheduler"]

_NANOBITS_PER_BYTE = 8 * 10**9


@dataclass(slots=True)
class Departure:
    """An item that has arrived. `started_ns`: submitted; `departed_ns`: last bit left the sender; `release_ns`:
    departed + latency, when the receiver has it. All fabric time."""

    flow: int
    item: object
    nbytes: int
    departed_ns: int
    release_ns: int
    started_ns: int


class _Flow:
    """`need` is what the head burst still needs, in nanobits, as of `at_ns`; it may be negative by less than one
    nanosecond's work only inside `_drain`. `head_ns` caches when the head departs (None: paused or empty)."""

    __slots__ = ("at_ns", "backlog", "head_ns", "id", "last_release_ns", "latency_ns", "need", "queue", "rate")

    def __init__(self, flow: int, rate: int, latency_ns: int) -> None:
        self.id = flow
        self.rate = rate
        self.latency_ns = latency_ns
        self.queue: deque[tuple[int, object, int, int]] = deque()  # (order, item, nbytes, submit_ns)
        self.backlog = 0
        self.need = 0
        self.at_ns = 0
        self.head_ns: int | None = None
        self.last_release_ns = -1

    def reckon(self) -> None:
        """Bring `head_ns` in line with the queue, the need and the rate."""
        if not self.queue:
            self.head_ns = None
        elif self.need <= 0:
            self.head_ns = self.at_ns
        elif self.rate > 0:
            self.head_ns = self.at_ns - (-self.need // self.rate)
        else:
            self.head_ns = None


class LinkScheduler:
    """Paces the frames of one daemon's flows. `now` in fabric ns; see the module for the model.

    Typical loop: `submit` what there is to send; at `next_ns()` call `poll(now)` and hand over the departures, then
    `idle_flows(now)` and tell the subnet manager that those flows have stopped.

    `early`: `poll` gives items when they depart, and not when they arrive, so that the receiver, which then has to wait
    for `release_ns` itself, has them before.
    """

    def __init__(self, *, early: bool = False) -> None:
        self._early = early
        self._flows: dict[int, _Flow] = {}
        self._busy: dict[int, _Flow] = {}
        self._ready: list[tuple[int, int, Departure]] = []
        self._idle: dict[int, int] = {}
        self._order = 0
        self._now = 0
        self._polled = -1

    def open(self, flow: int, rate_bps: int, latency_ns: int) -> None:
        """Make `flow` known with its uncontended payload rate in bits/s and its one-way latency.

        Idempotent: a flow that is already open keeps its rate (a grant may be in force) and its latency.
        """
        if rate_bps < 0 or latency_ns < 0:
            raise LocalProtocolError(
                f"flow {flow}: rate {rate_bps} bits/s and latency {latency_ns} ns must not be negative"
            )
        if flow not in self._flows:
            self._flows[flow] = _Flow(flow, rate_bps, latency_ns)

    def close(self, flow: int) -> list[Departure]:
        """Forget `flow` and drop what it has not sent yet; what already departed still arrives, and is returned in
        that order. Idempotent."""
        self._flows.pop(flow, None)
        self._busy.pop(flow, None)
        self._idle.pop(flow, None)
        return [departure for _, _, departure in sorted(self._ready, key=_by_release) if departure.flow == flow]

    def under_way(self, flow: int) -> bool:
        """Whether anything of the flow waits to depart, or has departed and not come out of `poll`."""
        state = self._flows.get(flow)
        return state is not None and (bool(state.queue) or state.last_release_ns > self._polled)

    def items(self) -> Iterator[object]:
        """Everything submitted that has not been released, in no particular order."""
        for flow in self._flows.values():
            yield from (item for _, item, _, _ in flow.queue)
        yield from (departure.item for _, _, departure in self._ready)

    def set_rate(self, flow: int, rate_bps: int, now: int) -> None:
        """A grant: from `now` on the flow drains at `rate_bps` bits/s, the burst in service included. 0 pauses it.
        A grant for a flow that is not open (it closed while the grant travelled) is ignored."""
        if rate_bps < 0:
            raise LocalProtocolError(f"flow {flow}: a rate of {rate_bps} bits/s is negative")
        state = self._flows.get(flow)
        if state is None:
            return
        now = self._advance_clock(now)
        if state.queue:
            self._drain(state, now)
            state.need -= state.rate * (now - state.at_ns)
            state.at_ns = now
        state.rate = rate_bps
        state.reckon()

    def set_latency(self, flow: int, latency_ns: int) -> None:
        """A new path: what departs from now on takes `latency_ns`. Ignored for a flow that is not open."""
        state = self._flows.get(flow)
        if state is not None:
            state.latency_ns = latency_ns

    def submit(self, flow: int, item: object, nbytes: int, now: int, *, ordered: bool = False) -> None:
        """Queue `item`, which stands for `nbytes` of payload. Raises LocalProtocolError if the flow is not open.

        With `nbytes` 0 the item takes no bandwidth: it is released at `now` + latency, ahead of queued data; with
        `ordered` it keeps its place in the queue and departs right after what was submitted before it.
        """
        state = self._flows.get(flow)
        if state is None:
            raise LocalProtocolError(f"flow {flow} is not open: call open() with its rate and latency first")
        if nbytes < 0:
            raise LocalProtocolError(f"flow {flow}: {nbytes} bytes is not a size")
        now = self._advance_clock(now)
        self._order += 1
        if state.queue:
            self._drain(state, now)  # before appending: an idle gap must not be credited to the new burst
        if nbytes == 0 and not (ordered and state.queue):
            self._release(state, self._order, item, 0, now, now)
            return
        if not state.queue:
            state.at_ns = now
            state.need = nbytes * _NANOBITS_PER_BYTE
            self._busy[flow] = state
            self._idle.pop(flow, None)
        state.queue.append((self._order, item, nbytes, now))
        state.backlog += nbytes
        state.reckon()

    def backlog(self, flow: int) -> int:
        """Bytes submitted to `flow` whose frames have not departed as of the last call with a time; 0 if unknown."""
        state = self._flows.get(flow)
        return state.backlog if state is not None else 0

    def poll(self, now: int) -> list[Departure]:
        """Everything with `release_ns` <= now, in release order (ties: submit order); if early, all that has departed,
        in that order."""
        now = self._advance_clock(now)
        for state in list(self._busy.values()):
            if state.head_ns is not None and state.head_ns <= now:
                self._drain(state, now)
        out = []
        self._polled = now
        ready = self._ready
        while ready and ready[0][0] <= now:
            out.append(heapq.heappop(ready)[2])
        return out

    def next_ns(self) -> int | None:
        """The next instant at which `poll` or `idle_flows` gives something new; None if nothing is under way.

        It lies in the past when something is overdue, also when `idle_flows` has not been asked yet.
        """
        best = self._ready[0][0] if self._ready else None
        for state in self._busy.values():
            if state.head_ns is None:
                continue
            arrival = state.head_ns + (0 if self._early else state.latency_ns)
            if best is None or arrival < best:
                best = arrival
            if state.latency_ns:  # the flow may fall idle before its first bytes arrive
                work = state.need + (state.backlog - state.queue[0][2]) * _NANOBITS_PER_BYTE
                idle = state.at_ns - (-work // state.rate) if work > 0 else state.at_ns
                if idle < best:
                    best = idle
        for since in self._idle.values():
            if best is None or since < best:
                best = since
        return best

    def idle_flows(self, now: int) -> list[int]:
        """Flows whose queue ran empty, last burst departed, since the last call; in the order in which that happened.
        A flow that was given new data meanwhile is not among them."""
        now = self._advance_clock(now)
        for state in list(self._busy.values()):
            if state.head_ns is not None and state.head_ns <= now:
                self._drain(state, now)
        if not self._idle:
            return []
        idle = sorted(self._idle, key=self._idle.__getitem__)
        self._idle.clear()
        return idle

    # -- inside

    def _advance_clock(self, now: int) -> int:
        if now > self._now:
            self._now = now
        return self._now

    def _drain(self, state: _Flow, now: int) -> None:
        """Let every burst depart whose last bit is out by `now`."""
        queue = state.queue
        while state.head_ns is not None and state.head_ns <= now:
            departed = state.head_ns
            surplus = state.rate * (departed - state.at_ns) - state.need
            order, item, nbytes, started = queue.popleft()
            state.backlog -= nbytes
            self._release(state, order, item, nbytes, started, departed)
            state.at_ns = departed
            if queue:
                # It was waiting before this nanosecond: submit() drains up to its own `now` first.
                state.need = queue[0][2] * _NANOBITS_PER_BYTE - surplus
            else:
                state.need = 0
                del self._busy[state.id]
                self._idle[state.id] = departed
            state.reckon()

    def _release(self, state: _Flow, order: int, item: object, nbytes: int, started: int, departed: int) -> None:
        release = departed + state.latency_ns
        state.last_release_ns = max(state.last_release_ns, release)
        ready = departed if self._early else release
        heapq.heappush(self._ready, (ready, order, Departure(state.id, item, nbytes, departed, release, started)))


def _by_release(entry: tuple[int, int, Departure]) -> tuple[int, int]:
    return entry[:2]
