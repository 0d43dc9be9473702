"""When faults begin and end.

The timeline's zero is set once (`start`); faults declared with a time wait for it, others begin at once. Every fault
has a number, from 1. A flap is one fault that begins and ends several times.

Sans-IO: `now` is fabric time in ns. Call `poll(now)` at `next_ns()`.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from fauxrdma.topology.fault_events import describe_fault
from fauxrdma.wire.fault_messages import FaultEvent, FaultRecord

__all__ = ["FaultTimeline"]


@dataclass(slots=True)
class _Fault:
    event: FaultEvent
    steps: int  # beginnings and ends that are to come
    began_ns: int = -1
    ended_ns: int = -1


class FaultTimeline:
    """`active`: the faults in force, by number, in the order in which they began."""

    def __init__(self) -> None:
        self.zero_ns = -1
        self.active: dict[int, FaultEvent] = {}
        self._faults: dict[int, _Fault] = {}
        self._steps: list[tuple[int, int, bool]] = []  # a heap of (when, number, whether it begins)

    def start(self, now_ns: int) -> None:
        """The timeline's zero is now. Only the first time counts."""
        if self.zero_ns < 0:
            self.zero_ns = now_ns
            for number, fault in self._faults.items():
                if fault.event.at_ns >= 0 and fault.steps:
                    self._schedule(number, fault, now_ns + fault.event.at_ns)

    def add(self, event: FaultEvent, now_ns: int) -> int:
        """Declare a fault (`at_ns` -1: it begins now); its number."""
        number = len(self._faults) + 1
        rounds = event.times if event.every_ns else 1
        fault = self._faults[number] = _Fault(event, rounds * (2 if event.for_ns else 1))
        if event.at_ns < 0:
            self._schedule(number, fault, now_ns)
        elif self.zero_ns >= 0:
            self._schedule(number, fault, max(now_ns, self.zero_ns + event.at_ns))
        return number

    def _schedule(self, number: int, fault: _Fault, begin_ns: int) -> None:
        event = fault.event
        for turn in range(event.times if event.every_ns else 1):
            at_ns = begin_ns + turn * event.every_ns
            heapq.heappush(self._steps, (at_ns, number, True))
            if event.for_ns:
                heapq.heappush(self._steps, (at_ns + event.for_ns, number, False))

    def next_ns(self) -> int | None:
        """When `poll` has something to do; None when nothing is to come."""
        return self._steps[0][0] if self._steps else None

    def poll(self, now_ns: int) -> bool:
        """Let time pass. Returns whether a fault has begun or ended."""
        changed = False
        while self._steps and self._steps[0][0] <= now_ns:
            at_ns, number, begins = heapq.heappop(self._steps)
            changed = True
            fault = self._faults[number]
            fault.steps -= 1
            if begins:
                self.active[number] = fault.event
                if fault.began_ns < 0:
                    fault.began_ns = at_ns
            else:
                self.active.pop(number, None)
                fault.ended_ns = at_ns
        return changed

    def clear(self, number: int, now_ns: int) -> list[int]:
        """End a fault, or take it off the timeline; 0: all. The numbers of those that were not over."""
        chosen = [n for n, fault in self._faults.items() if number in (0, n) and (fault.steps or n in self.active)]
        for n in chosen:
            fault = self._faults[n]
            fault.steps = 0
            if fault.began_ns >= 0:
                fault.ended_ns = now_ns
            self.active.pop(n, None)
        self._steps = [step for step in self._steps if step[1] not in chosen]
        heapq.heapify(self._steps)
        return chosen

    def records(self) -> list[FaultRecord]:
        """All that was declared, and what has become of it."""
        return [self._record(number, fault) for number, fault in self._faults.items()]

    def _record(self, number: int, fault: _Fault) -> FaultRecord:
        event = fault.event
        begun = fault.began_ns >= 0
        state = "over" if not fault.steps and number not in self.active else "active" if begun else "waiting"
        ended_ns = fault.ended_ns if state == "over" else -1
        return FaultRecord(number, event.kind, event.target, describe_fault(event), state, fault.began_ns, ended_ns)
