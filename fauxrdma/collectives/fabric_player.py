"""All ranks' programs played in virtual time over links that they share: what the paced clock does, without bytes.

A pair of ranks that talk is a *flow*, as one queue pair is in a running lab (`fauxrdma.fabric.link_scheduler`): its
messages drain one after the other at the flow's rate, and each arrives a constant latency after its last bit has left.
Active flows share the links in the max-min fair way, and the rates are computed anew whenever one starts or runs empty
(`fauxrdma.fabric.model`). Work is counted in nanobits, as there, so that times agree to the nanosecond.

Most flows of most plans can never meet a full link; those keep the rate of their path and need no events but arrivals.
The others form *groups* that can meet, each with its own rates, remembered by which of its flows are active: a plan
that repeats itself computes each situation once.

Not modelled: time to compute, and staging slots running out (a plan's `lanes` are well below what slots there are).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence

import numpy as np

from fauxrdma.errors import LocalProtocolError
from fauxrdma.fabric.maxmin import max_min_rates

__all__ = ["Flight", "Operation", "PlayedFlow", "play"]

_NANOBITS_PER_BYTE = 8 * 10**9
_DEPARTURE, _ARRIVAL = 0, 1
"""In this order within a nanosecond: a flow that is given more in the instant in which it runs empty starts afresh."""


class PlayedFlow:
    """The messages of one rank to another. `links` index the capacities given to `play`, `shares` says what part of the
    flow crosses each (all of it unless given); `rate_bps` is the flow's rate when it is alone."""

    __slots__ = (
        "arrived",
        "at_ns",
        "group",
        "latency_ns",
        "links",
        "need",
        "number",
        "queue",
        "rate_bps",
        "shares",
        "started_ns",
        "surplus",
        "target",
        "version",
    )  # fmt: skip

    def __init__(
        self, target: int, links: Sequence[int], rate_bps: int, latency_ns: int, shares: Sequence[float] = ()
    ) -> None:
        self.target = target
        self.links = links
        self.shares = shares or (1.0,) * len(links)
        self.rate_bps = rate_bps
        self.latency_ns = latency_ns
        self.arrived = 0
        self.at_ns = 0
        self.started_ns = 0
        self.surplus = 0
        self.need = 0
        self.queue: deque[int] = deque()
        self.group: _Group | None = None
        self.number = 0
        self.version = 0


Operation = tuple[PlayedFlow, int]
"""A step of a rank that takes time: put this many bytes into a flow (0 and more), or wait for message k of a flow (~k,
which is negative)."""

Flight = tuple[PlayedFlow, int, int, int]
"""A message: its flow, when its first bit left, when its last bit had left, when it arrived; ns. Those of one flow are
in order."""


class _Group:
    """Flows that can meet on a full link."""

    def __init__(self, flows: list[PlayedFlow], capacities: Sequence[int]) -> None:
        self.flows = flows
        self.active = 0
        self.dirty = False
        used = sorted({link for flow in flows for link in flow.links})
        place = {link: number for number, link in enumerate(used)}
        width = max(len(flow.links) for flow in flows)
        self._capacity = np.array([capacities[link] for link in used], dtype=np.float64)
        self._links = np.full((len(flows), width), len(used), dtype=np.intp)
        self._shares = np.ones((len(flows), width))
        for number, flow in enumerate(flows):
            flow.group, flow.number = self, number
            self._links[number, : len(flow.links)] = [place[link] for link in flow.links]
            self._shares[number, : len(flow.links)] = flow.shares
        self._known: dict[int, list[tuple[PlayedFlow, int]]] = {}

    def rates(self) -> list[tuple[PlayedFlow, int]]:
        """The rate in bits/s of each active flow."""
        known = self._known.get(self.active)
        if known is None:
            rows = [number for number in range(len(self.flows)) if self.active >> number & 1]
            exact = max_min_rates(self._capacity, self._links[rows], np.ones(len(rows)), self._shares[rows])
            rates = np.maximum(np.rint(exact), 1).astype(np.int64).tolist()
            known = [(self.flows[row], rate) for row, rate in zip(rows, rates, strict=True)]
            self._known[self.active] = known
        return known


def _groups(flows: Sequence[PlayedFlow], capacities: Sequence[int]) -> list[_Group]:
    """The flows that can meet on a full link: one that is narrower than all that may come over it together."""
    users: dict[int, list[PlayedFlow]] = {}
    demand: dict[int, float] = {}
    for flow in flows:
        for link, share in zip(flow.links, flow.shares, strict=True):
            users.setdefault(link, []).append(flow)
            demand[link] = demand.get(link, 0) + flow.rate_bps * share
    leader: dict[PlayedFlow, PlayedFlow] = {}

    def find(flow: PlayedFlow) -> PlayedFlow:
        while (above := leader.setdefault(flow, flow)) is not flow:
            leader[flow] = leader[above]
            flow = above
        return flow

    for link, own in users.items():
        if demand[link] > capacities[link]:
            for flow in own[1:]:
                leader[find(flow)] = find(own[0])
    members: dict[PlayedFlow, list[PlayedFlow]] = {}
    for flow in flows:
        if flow in leader:
            members.setdefault(find(flow), []).append(flow)
    return [_Group(own, capacities) for own in members.values()]


def play(
    programs: Sequence[Sequence[Operation]],
    flows: Sequence[PlayedFlow],
    capacities: Sequence[int],
    flights: list[Flight] | None = None,
) -> list[int]:
    """The time in ns, by rank, at which each program ends when all start at 0.

    `capacities`: payload rates of the links in bits/s. `flights` gets every message, if given. Flows are used up: make
    new ones for another run. Raises LocalProtocolError when ranks wait for each other for ever.
    """
    return _Play(programs, _groups(flows, capacities), flights).run()


class _Play:
    def __init__(
        self, programs: Sequence[Sequence[Operation]], groups: list[_Group], flights: list[Flight] | None
    ) -> None:
        self._programs = programs
        self._flights = flights
        self._groups = groups
        self._position = [0] * len(programs)
        self._end = [0] * len(programs)
        self._events: list[tuple[int, int, int, PlayedFlow, int]] = []
        self._order = 0

    def run(self) -> list[int]:
        for rank in range(len(self._programs)):
            self._advance(rank, 0)
        self._settle(0)
        events = self._events
        while events:
            now = events[0][0]
            while events and events[0][0] == now:
                _, kind, _, flow, version = heapq.heappop(events)
                if kind == _ARRIVAL:
                    flow.arrived += 1
                    rank = flow.target
                    program, position = self._programs[rank], self._position[rank]
                    if position < len(program) and program[position][0] is flow:
                        self._advance(rank, now)
                elif version == flow.version:
                    self._depart(flow, now)
            self._settle(now)
        self._check_end()
        return self._end

    def _advance(self, rank: int, now: int) -> None:
        """Run a rank up to the first message that has not arrived."""
        program, position = self._programs[rank], self._position[rank]
        count = len(program)
        while position < count:
            flow, size = program[position]
            if size >= 0:
                if flow.group is None:
                    self._send(flow, size, now)
                else:
                    self._submit(flow, size, now)
            elif flow.arrived <= ~size:
                break
            position += 1
        self._position[rank] = position
        self._end[rank] = now

    def _push(self, at: int, kind: int, flow: PlayedFlow, version: int = 0) -> None:
        self._order += 1
        heapq.heappush(self._events, (at, kind, self._order, flow, version))

    def _fly(self, flow: PlayedFlow, started_ns: int, departed_ns: int) -> None:
        arrival = departed_ns + flow.latency_ns
        self._push(arrival, _ARRIVAL, flow)
        if self._flights is not None:
            self._flights.append((flow, started_ns, departed_ns, arrival))

    def _send(self, flow: PlayedFlow, nbytes: int, now: int) -> None:
        """Of a flow whose rate is constant, the arrival is known at once."""
        need = nbytes * _NANOBITS_PER_BYTE
        start = flow.at_ns
        if start > now:
            need -= flow.surplus
        else:
            start = now
            if not nbytes:
                self._fly(flow, now, now)
                return
        took = -(-need // flow.rate_bps)
        flow.at_ns = start + took
        flow.surplus = flow.rate_bps * took - need
        self._fly(flow, start, flow.at_ns)

    def _submit(self, flow: PlayedFlow, nbytes: int, now: int) -> None:
        if flow.queue:
            flow.queue.append(nbytes)
            return
        if not nbytes:
            self._fly(flow, now, now)
            return
        flow.queue.append(nbytes)
        flow.at_ns = flow.started_ns = now
        flow.need = nbytes * _NANOBITS_PER_BYTE
        flow.rate_bps = 0  # until the group is settled, before time goes on
        group = flow.group
        assert group is not None
        group.active |= 1 << flow.number
        group.dirty = True

    def _depart(self, flow: PlayedFlow, now: int) -> None:
        """The head of the queue has left, and whatever is out in the same nanosecond."""
        queue = flow.queue
        while queue:
            left = flow.need - flow.rate_bps * (now - flow.at_ns)
            if left > 0:
                self._expect(flow)
                return
            queue.popleft()
            self._fly(flow, flow.started_ns, now)
            flow.at_ns = flow.started_ns = now
            flow.need = queue[0] * _NANOBITS_PER_BYTE + left if queue else 0
        flow.version += 1
        group = flow.group
        assert group is not None
        group.active &= ~(1 << flow.number)
        group.dirty = True

    def _expect(self, flow: PlayedFlow) -> None:
        flow.version += 1
        self._push(flow.at_ns - (-flow.need // flow.rate_bps), _DEPARTURE, flow, flow.version)

    def _settle(self, now: int) -> None:
        """Give the flows of groups in which something changed their new rates."""
        for group in self._groups:
            if not group.dirty:
                continue
            group.dirty = False
            for flow, rate_bps in group.rates():
                if flow.rate_bps != rate_bps:
                    flow.need -= flow.rate_bps * (now - flow.at_ns)
                    flow.at_ns = now
                    flow.rate_bps = rate_bps
                    self._expect(flow)

    def _check_end(self) -> None:
        waiting = [rank for rank, program in enumerate(self._programs) if self._position[rank] < len(program)]
        if waiting:
            raise LocalProtocolError(f"this plan never ends: ranks {waiting[:16]} wait for each other")
