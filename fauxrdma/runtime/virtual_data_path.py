"""The data path under clock `virtual`: nothing happens between two steps of the clock but the taking in.

A step is carried out in one order, whatever the order in which things came in: what applications posted, by HCA and
age of the queue pair; frames that are due, by arrival, sender and queue pair; what was to be done at a time; the
engines' and the link scheduler's deadlines. So two runs do the same things in the same order at the same times.

Payload is received into memory of its own and laid down in the step, since only then the engine is to say where.

`trace` hears of what was posted, sent, arrived and completed, and when (:mod:`fauxrdma.runtime.event_trace`).
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from fauxrdma.abi.timer_page import AppTimer
from fauxrdma.hca.events import Complete
from fauxrdma.runtime.data_path import DataPath
from fauxrdma.runtime.emulated_hca import EmulatedHca
from fauxrdma.runtime.event_pipe import EventGate
from fauxrdma.runtime.event_trace import EventTrace
from fauxrdma.runtime.peer_directory import PeerDirectory
from fauxrdma.runtime.peer_links import PeerLink, TcpLink
from fauxrdma.wire.fabric_messages import Directory
from fauxrdma.wire.headers import Frame, SmallWrite

__all__ = ["VirtualClock", "VirtualDataPath"]


class VirtualClock:
    """Fabric time as the timekeeper says. A nanosecond of it has no length in wall time."""

    dilation = 1.0

    def __init__(self, epoch_ns: int) -> None:
        self.epoch_ns = epoch_ns
        self.now = 0

    def now_ns(self) -> int:
        """Fabric time now."""
        return self.now

    def wall_ns(self, fabric_ns: int) -> int:
        """What a timer is set to: timers are of fabric time here."""
        return fabric_ns


class _NoTimer:
    """Stands where the wall clock's timer stands: the timekeeper is told what is due (`due_ns`)."""

    def arm(self, at_ns: int | None) -> None:
        """Nothing is set."""

    def close(self) -> None:
        """Nothing was."""


class _CountedLink(TcpLink):
    """A link that counts what it is given."""

    sent = 0

    def send(self, frame: Frame) -> None:
        """As TcpLink."""
        self.sent += 1
        super().send(frame)


class _CountedPeers(PeerDirectory):
    """Links that count, and which node an HCA is on."""

    node_of: dict[int, int]

    def update(self, directory: Directory) -> list[TcpLink]:
        """As PeerDirectory."""
        self.node_of = {entry.lid: entry.node for entry in directory.entries}
        self._nodes = {(entry.host, entry.port): entry.node for entry in directory.entries}
        return super().update(directory)

    def _make_link(self, address: tuple[str, int]) -> TcpLink:
        return _CountedLink(self._loop, address, self._node, self._epoch_ns, self._on_writable)

    def sent(self) -> dict[int, int]:
        """Frames by node they went to."""
        return {
            self._nodes[address]: link.sent
            for address, link in self._links.items()
            if isinstance(link, _CountedLink) and address in self._nodes
        }


class VirtualDataPath(DataPath):
    """Moves frames in steps. A frame is sent in an earlier step than that of its arrival, so that whether it is there
    in that step does not depend on which node carries it out first.

    `on_news()` is called when there is something to say to the timekeeper."""

    EARLY = True

    def __init__(self, loop: asyncio.AbstractEventLoop, *arguments: Any, **options: Any) -> None:
        super().__init__(loop, *arguments, **options)
        self.gate = self._gate = EventGate(self.touched)
        self.timers: set[AppTimer] = set()
        self.woke = True
        self.on_news: Callable[[], None] = lambda: None
        self._trace: EventTrace | None = None
        self._rung: dict[tuple[int, int], EmulatedHca] = {}
        self._inbox: list[tuple[int, Frame]] = []
        self._received: Counter[int] = Counter()
        self._calls: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0
        self._turned = False

    def _make_timer(self, loop: asyncio.AbstractEventLoop) -> _NoTimer:
        return _NoTimer()

    def _arm(self, hca: EmulatedHca | None = None) -> None:
        """As _NoTimer."""

    def _make_peers(self, loop: asyncio.AbstractEventLoop, node: int) -> PeerDirectory:
        return _CountedPeers(loop, node, self.clock.epoch_ns, self._path, self._deliver_locally, self._link_writable)

    def trace(self, trace: EventTrace) -> None:
        """Tell `trace` of what happens from now on."""
        self._trace = trace
        if self._paced is not None:
            self._paced.on_departure = lambda frame: trace.sent(self.clock.now_ns(), frame)

    # ---- what comes in between steps -----------------------------------------------------------------------------

    def touched(self) -> None:
        """An application was given something, or asked for something."""
        self.woke = True
        self.on_news()

    def doorbell(self, hca: EmulatedHca, qpn: int) -> None:
        """An application posted work: it is looked at in the next step."""
        self._rung[hca.info.lid, qpn] = hca
        self.touched()

    def place(self, frame: Frame) -> tuple[memoryview, ...] | None:
        """Memory for an incoming frame's payload, for the time being."""
        frame.payload = (memoryview(bytearray(frame.nbytes)),) if frame.nbytes else ()
        return frame.payload

    def received(self, frame: Frame) -> None:
        """A frame of another node is here."""
        assert isinstance(self._peers, _CountedPeers)
        self._received[self._peers.node_of.get(frame.slid, -1)] += 1
        self.hold(frame)

    def received_small_write(self, write: SmallWrite, payload: memoryview) -> bool:
        """There is no express lane."""
        return False

    def _deliver_locally(self, frame: Frame) -> None:
        frame.payload = tuple(memoryview(bytes(part)) for part in frame.payload)
        self.hold(frame)

    def hold(self, frame: Frame) -> None:
        """Keep a frame, with a payload of its own, until it arrives."""
        self._order += 1
        self._inbox.append((self._order, frame))
        self.on_news()

    def later(self, fabric_ns: int, call: Callable[[], None]) -> None:
        """Call back in the step of a fabric time."""
        self._order += 1
        heapq.heappush(self._calls, (self.clock.now_ns() + fabric_ns, self._order, call))
        self.on_news()

    def turn(self, now_ns: int) -> None:
        """What the subnet manager says next is of this fabric time. Applications hear of its consequences at the end of
        a step, which is due at once."""
        self._set_time(now_ns)
        self._gate.shut()
        self._turned = True

    # ---- steps ---------------------------------------------------------------------------------------------------

    def due_ns(self) -> int | None:
        """When the next step has something to do here; None for never."""
        due = [at for timer in self.timers if (at := timer.wake_at) is not None]
        if self._rung or self._turned:
            due.append(self.clock.now_ns())
        due += [frame.arrival_ns for _, frame in self._inbox]
        due += [at for at, _, _ in self._calls[:1]]
        if self._paced is not None and (paced := self._paced.next_ns()) is not None:
            due.append(paced)
        due += [at for engine in self.engines if engine.timers and (at := engine.real_deadline_ns()) is not None]
        return min(due, default=None)

    def polling(self) -> bool:
        """Whether an application waits in an empty poll."""
        return any(timer.polling for timer in self.timers)

    def counts(self) -> tuple[dict[int, int], dict[int, int]]:
        """Frames sent to and received from each other node."""
        assert isinstance(self._peers, _CountedPeers)
        return self._peers.sent(), dict(self._received)

    def step(self, now_ns: int, done: Callable[[], None]) -> None:
        """Carry out what is due; `done()` on a later turn of the loop."""
        self._set_time(now_ns)
        self.woke = self._turned = False
        self._gate.shut()
        rung, self._rung = self._rung, {}
        ages = _Ages(self.hcas)
        for lid, qpn in sorted(rung, key=lambda key: (key[0], ages.of(*key))):
            if self._trace is not None:
                self._trace.posted(now_ns, lid, qpn, rung[lid, qpn].rings.get(qpn))
            super().doorbell(rung[lid, qpn], qpn)
        due = [entry for entry in self._inbox if entry[1].arrival_ns <= now_ns]
        self._inbox = [entry for entry in self._inbox if entry[1].arrival_ns > now_ns]
        due.sort(key=lambda entry: _place_in_step(ages, *entry))
        for _, frame in due:
            if self._trace is not None:
                self._trace.arrived(now_ns, frame)
            self._lay_down(frame)
        while self._calls and self._calls[0][0] <= now_ns:
            heapq.heappop(self._calls)[2]()
        self._tick()
        self._loop.call_soon(self._finish, now_ns, done)  # behind what the above has put off

    def _set_time(self, now_ns: int) -> None:
        assert isinstance(self.clock, VirtualClock)
        self.clock.now = now_ns
        for timer in self.timers:
            timer.now = now_ns

    def _lay_down(self, frame: Frame) -> None:
        payload, frame.payload, frame.extents = frame.payload, (), ()
        views = super().place(frame)
        if views is not None and frame.nbytes:
            data = memoryview(b"".join(payload))
            for view in views:
                view[:] = data[: len(view)]
                data = data[len(view) :]
        super().received(frame)

    def _complete(self, hca: EmulatedHca, action: Complete) -> None:
        if self._trace is not None:
            self._trace.completed(self.clock.now_ns(), hca.info.lid, action.wc)
        super()._complete(hca, action)

    def _finish(self, now_ns: int, done: Callable[[], None]) -> None:
        self._gate.open()
        for timer in self.timers:
            if timer.polling or ((at := timer.wake_at) is not None and at <= now_ns):
                self.woke = True
                timer.signal()
        done()

    def _link_writable(self, link: PeerLink) -> None:
        super()._link_writable(link)
        self.on_news()


class _Ages:
    """How old the queue pairs of each HCA are, as their place in the order in which they were made; the same in two
    runs, as their numbers may not be. An HCA is looked at when it is asked for."""

    def __init__(self, hcas: Mapping[int, EmulatedHca]) -> None:
        self._hcas = hcas
        self._ages: dict[int, dict[int, int]] = {}

    def of(self, lid: int, qpn: int) -> int:
        """The place of a queue pair; -1 for one that is not there."""
        ages = self._ages.get(lid)
        if ages is None:
            hca = self._hcas.get(lid)
            ages = self._ages[lid] = {at: age for age, at in enumerate(hca.rings)} if hca is not None else {}
        return ages.get(qpn, -1)


def _place_in_step(ages: _Ages, order: int, frame: Frame) -> tuple[int, ...]:
    return frame.arrival_ns, frame.dlid, ages.of(frame.dlid, frame.dest_qpn), frame.slid, frame.src_qpn, order
