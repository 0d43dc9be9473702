"""Sending by the model (clock `paced`): bursts of at most a quantum go through the LinkScheduler at the rate the subnet
manager granted, and leave when they are due *at the receiver*."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from fauxrdma.fabric.link_scheduler import Departure, LinkScheduler
from fauxrdma.ib.attributes import FIRST_MULTICAST_LID, GSI_QPN
from fauxrdma.ib.enums import BthOpcode
from fauxrdma.memory.location import main_memory
from fauxrdma.runtime.emulated_hca import EmulatedHca
from fauxrdma.runtime.fabric_clock import Clock
from fauxrdma.runtime.flows import Flow, FlowTable
from fauxrdma.runtime.frame_sender import FrameSender, Offer
from fauxrdma.runtime.landings import moves
from fauxrdma.runtime.peer_links import PeerLink
from fauxrdma.runtime.traffic_meter import TrafficMeter
from fauxrdma.wire.control import Message
from fauxrdma.wire.fabric_messages import Counters, FlowStart, FlowStop, PathAnswer
from fauxrdma.wire.headers import Frame

__all__ = ["PacedSender"]

_ACK = int(BthOpcode.RC_ACKNOWLEDGE)
_QUANTA_AHEAD = 4
"""Bursts of one flow handed to the scheduler ahead of time: enough that pacing never waits for the engine."""
_UNREACHABLE_LATENCY_NS = 1000
"""Of a flow whose destination cannot be reached: nothing will arrive, so any pace does."""


class PacedSender(FrameSender):
    """`quantum`: bytes of a burst at most. `notify(message)` goes to the manager. Where each
    start of a flow may give it another way, `counters()` says what was sent by the old ones. `early`: links get frames
    when they depart, and it is the receiver that waits."""

    def __init__(
        self,
        flows: FlowTable,
        meter: TrafficMeter,
        offer: Offer,
        clock: Clock,
        quantum: int,
        notify: Callable[[Message], None],
        counters: Callable[[], Counters] | None,
        *,
        early: bool = False,
    ) -> None:
        self._flows = flows
        self._meter = meter
        self._offer = offer
        self._clock = clock
        self._quantum = quantum
        self._notify = notify
        self._counters = counters
        self._scheduler = LinkScheduler(early=early)
        self.on_departure: Callable[[Frame], None] | None = None
        """Hears of each frame that leaves its HCA, also of what the fabric then loses."""

    def opened(self, flow: Flow, path: PathAnswer | None) -> None:
        if path is None or not path.reachable:
            self._scheduler.open(flow.fid, flow.hca.info.rate_bps, _UNREACHABLE_LATENCY_NS)
        else:
            rate_bps = 0 if flow.paused else path.rate_bps
            self._scheduler.open(flow.fid, rate_bps, path.members.get(flow.dlid, path.latency_ns))

    def path_changed(self, flow: Flow, path: PathAnswer, now: int) -> None:
        if path.reachable:
            self._scheduler.set_latency(flow.fid, path.members.get(flow.dlid, path.latency_ns))
        if flow.paused:
            self._scheduler.set_rate(flow.fid, 0, now)
            if flow.active:
                flow.active = False
                self._notify(FlowStop(flow.fid))
        elif path.reachable and not flow.active:
            self._scheduler.set_rate(flow.fid, path.rate_bps, now)

    def forget(self, flow: Flow) -> None:
        for departure in self._scheduler.close(flow.fid):
            self._count(departure, flow)
        if flow.active:
            self._notify(FlowStop(flow.fid))

    def set_rates(self, rates: dict[int, int], now: int) -> None:
        """The subnet manager's grants, by flow, in bits/s."""
        flows = self._flows.by_id
        for fid, rate_bps in rates.items():
            flow = flows.get(fid)
            if flow is not None and not flow.paused:
                self._scheduler.set_rate(fid, rate_bps, now)

    def send(self, hca: EmulatedHca, qpn: int, frame: Frame) -> None:
        flow = self._flows.flow(hca, qpn, frame.dlid)
        if flow is None or not hca.port.up:
            return
        now = self._clock.now_ns()
        if frame.opcode == _ACK or qpn == GSI_QPN:
            # Acknowledgements and management share no bandwidth worth modelling and do not wait behind data.
            self._scheduler.submit(flow.fid, frame, 0, now)
            return
        nbytes = frame.nbytes
        if nbytes:
            if not flow.paused and (not flow.active or moves(frame, flow.memory)):
                self._start(flow, frame)
            if flow.dealer is not None:
                nbytes += flow.dealer.extra_bytes(nbytes, frame.mtu)
        self._scheduler.submit(flow.fid, frame, nbytes, now, ordered=True)

    def _start(self, flow: Flow, frame: Frame) -> None:
        """Ask for bandwidth on the way from the memory that `frame` is read from. Up to `_QUANTA_AHEAD` bursts are sent
        before it, which get that too."""
        flow.active = True
        flow.memory = main_memory(frame.extents)
        flowlet = not self._scheduler.under_way(flow.fid)
        if flowlet and self._counters is not None:
            self._notify(self._counters())
        self._notify(
            FlowStart(
                flow.fid, frame.slid, frame.dlid, flow.weight, flow.label, flowlet, flow.memory, frame.dest_qpn,
                flow.lane_of(frame),
            )
        )  # fmt: skip

    def queue(self, flow: Flow) -> None:
        limit = _QUANTA_AHEAD * self._quantum
        more: Flow | None = flow
        while more is not None and more.ready and self._scheduler.backlog(more.fid) < limit:
            more = self._offer(more, self._quantum)

    def next_ns(self) -> int | None:
        """When `release` has something to do."""
        return self._scheduler.next_ns()

    def release(self, now: int) -> None:
        """Give links what is due at the receivers, pull more from flows that have it, tell of those that ran dry."""
        flows = self._flows.by_id
        for departure in self._scheduler.poll(now):
            frame = departure.item
            assert isinstance(frame, Frame)
            frame.arrival_ns = departure.release_ns
            frame.duration_ns = departure.release_ns - departure.started_ns
            flow = flows.get(departure.flow)
            if flow is None or not flow.hca.port.up:  # of a queue pair that is gone it was counted then
                continue
            if self.on_departure is not None and not flow.group:
                self.on_departure(frame)
            if frame.opcode != _ACK and not flow.group:
                self._meter.sent(
                    frame.slid, frame.dlid, frame.extents, departure.started_ns, departure.departed_ns, flow.label,
                    flow.lane_of(frame),
                )  # fmt: skip
            if frame.dlid >= FIRST_MULTICAST_LID:
                # It has left the HCA; now each member's copy takes its way through the tree.
                for branch in self._flows.branches(flow.hca, flow.qpn, frame.dlid):
                    self._scheduler.submit(branch.fid, replace(frame, dlid=branch.dlid), 0, now)
            elif flow.dealer is not None and flow.dealer.deal(frame.nbytes, frame.mtu):
                continue  # one of its packets went over a way that is dead
            elif flow.link is not None:
                flow.link.send(frame)
        limit = _QUANTA_AHEAD * self._quantum
        for flow in list(flows.values()):
            if flow.ready and self._scheduler.backlog(flow.fid) < limit:
                self.queue(flow)
        for fid in self._scheduler.idle_flows(now):
            idle = flows.get(fid)
            if idle is not None and idle.active:
                idle.active = False
                self._notify(FlowStop(fid))

    def _count(self, departure: Departure, flow: Flow) -> None:
        """A frame that left, and is not to arrive since its queue pair is gone."""
        frame = departure.item
        assert isinstance(frame, Frame)
        if frame.opcode != _ACK and not flow.group and flow.hca.port.up:
            self._meter.sent(
                frame.slid, frame.dlid, frame.extents, departure.started_ns, departure.departed_ns, flow.label,
                flow.lane_of(frame),
            )  # fmt: skip
            if flow.dealer is not None:
                flow.dealer.deal(frame.nbytes, frame.mtu)

    def writable(self, link: PeerLink) -> None:
        """The model paces, whatever the socket takes."""

    def link_gone(self, link: PeerLink) -> None:
        """As `writable`."""

    def frames(self) -> Iterator[object]:
        return self._scheduler.items()

    def close(self) -> None:
        """The data path polls no more."""
