"""Sending as fast as links take it (clock `none`): a queue pair is asked for its next burst when its link has room."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace

from fauxrdma.ib.attributes import FIRST_MULTICAST_LID
from fauxrdma.ib.enums import BthOpcode
from fauxrdma.runtime.emulated_hca import EmulatedHca
from fauxrdma.runtime.flows import Flow, FlowTable
from fauxrdma.runtime.frame_sender import FrameSender, Offer
from fauxrdma.runtime.peer_links import PeerLink
from fauxrdma.runtime.precise_timer import PreciseTimer
from fauxrdma.runtime.traffic_meter import TrafficMeter
from fauxrdma.wire.fabric_messages import PathAnswer
from fauxrdma.wire.headers import Frame

__all__ = ["UNSHAPED_BURST_BYTES", "UnshapedSender"]

UNSHAPED_BURST_BYTES = 512 * 1024
_ACK = int(BthOpcode.RC_ACKNOWLEDGE)
_FRAMES_PER_TURN = 8
"""Bursts sent over one link before the event loop looks at everything else."""
_COLLECT_NS = 2_000_000
"""How long (wall time) acknowledgements that nobody waits for are collected."""


class UnshapedSender(FrameSender):
    """`ready[link]` are the flows that want a link, in turn; `arm()` is called when engines may have new deadlines."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        flows: FlowTable,
        meter: TrafficMeter,
        offer: Offer,
        arm: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._flows = flows
        self._meter = meter
        self._offer = offer
        self._arm = arm
        self.ready: dict[PeerLink | None, deque[Flow]] = {}
        # Not a timer of the loop's: while one is pending each sleep in epoll sets a kernel timer, which doubles the
        # time of a small message in a virtual machine.
        self._collector = PreciseTimer(loop, self._send_collected)
        self._collecting = False
        self._closed = False

    def send(self, hca: EmulatedHca, qpn: int, frame: Frame) -> None:
        flow = self._flows.flow(hca, qpn, frame.dlid)
        if flow is None or not hca.port.up:
            return
        if frame.opcode == _ACK:
            if frame.patient:
                # Acknowledgements are cumulative: a later one takes this one's place.
                flow.patient_ack = frame
                if not self._collecting:
                    self._collecting = True
                    self._collector.arm(time.monotonic_ns() + _COLLECT_NS)
                return
            flow.patient_ack = None
        else:
            self._meter.sent(frame.slid, frame.dlid, frame.extents, label=flow.label, vl=flow.lane_of(frame))
        if frame.dlid >= FIRST_MULTICAST_LID:
            for branch in self._flows.branches(flow.hca, flow.qpn, frame.dlid):
                if branch.link is not None:
                    branch.link.send(replace(frame, dlid=branch.dlid))
        elif flow.dealer is not None and flow.dealer.deal(frame.nbytes, frame.mtu):
            return  # one of its packets went over a way that is dead
        elif flow.link is not None:
            flow.link.send(frame)

    def _send_collected(self) -> None:
        """Send the acknowledgements nobody is in a hurry for."""
        self._collecting = False
        for flow in self._flows:
            self._acknowledge(flow)

    def _acknowledge(self, flow: Flow) -> None:
        frame, flow.patient_ack = flow.patient_ack, None
        if frame is None or flow.link is None or not flow.hca.port.up:
            return
        if flow.dealer is None or not flow.dealer.deal(0, frame.mtu):
            flow.link.send(frame)

    def queue(self, flow: Flow) -> None:
        waiting = self.ready.get(flow.link)
        if waiting is None:
            waiting = self.ready[flow.link] = deque()
        if flow not in waiting:
            waiting.append(flow)
        if flow.link is None or flow.link.writable:
            self._pump(flow.link)

    def _pump(self, link: PeerLink | None) -> None:
        """Round robin over the flows that want this link, a burst each, while it takes more.

        A receiver as fast as we are would keep this going for ever; after a while the rest of the loop gets its turn,
        or acknowledgements would lie unread until their timers ran out.
        """
        waiting = self.ready.get(link)
        budget = _FRAMES_PER_TURN
        while waiting and (link is None or link.writable):
            if budget == 0:
                self._loop.call_soon(self._pump_on, link)
                return
            budget -= 1
            flow = waiting.popleft()
            if not flow.ready or flow.link is not link:
                continue
            more = self._offer(flow, UNSHAPED_BURST_BYTES)
            if more is None:
                continue
            if more.link is not link:
                self._loop.call_soon(self._queue_on, more)
            elif more not in waiting:
                waiting.append(more)

    def _pump_on(self, link: PeerLink | None) -> None:
        if not self._closed:
            self._pump(link)
            self._arm()

    def _queue_on(self, flow: Flow) -> None:
        if not self._closed and flow.ready:
            self.queue(flow)
            self._arm()

    def writable(self, link: PeerLink) -> None:
        self._pump_on(link)

    def link_gone(self, link: PeerLink) -> None:
        self._pump_on(link)
        self.ready.pop(link, None)

    def opened(self, flow: Flow, path: PathAnswer | None) -> None:
        """Nothing depends on the path but the link, which the flow has."""

    def path_changed(self, flow: Flow, path: PathAnswer, now: int) -> None:
        """As `opened`."""

    def forget(self, flow: Flow) -> None:
        """What it had queued is with its link, and goes; what it was to acknowledge is, or the peer would repeat it."""
        self._acknowledge(flow)

    def frames(self) -> Iterator[object]:
        yield from ()

    def close(self) -> None:
        self._closed = True
        self._collector.close()
