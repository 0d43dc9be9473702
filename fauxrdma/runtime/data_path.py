"""The data path of one HCA daemon: engines, links, pacing and timers, joined.

Engines want to send (WantsLink); links have room or not. Unshaped (clock `none`), a queue pair is asked for its next
burst whenever its link's socket takes more. Shaped (clock `paced`), bursts of at most a quantum go through the
LinkScheduler at the rate the subnet manager granted, and leave when they are due *at the receiver*: the bytes of a
frame become visible there at the modelled arrival, and everything behind that (acknowledgements, completions) follows
from real events.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from fauxrdma.fabric.link_scheduler import LinkScheduler
from fauxrdma.hca.engine import HcaEngine
from fauxrdma.hca.events import (
    Action,
    AsyncEvent,
    Complete,
    Doorbell,
    Event,
    FrameReceived,
    LinkReady,
    SendFrame,
    TimerExpired,
)
from fauxrdma.ib.attributes import FIRST_MULTICAST_LID
from fauxrdma.ib.enums import AsyncEventType, BthOpcode, QpState, WcStatus
from fauxrdma.memory.regions import MemoryRegion
from fauxrdma.runtime.emulated_hca import EmulatedHca
from fauxrdma.runtime.fabric_clock import FabricClock
from fauxrdma.runtime.flows import Flow, FlowTable
from fauxrdma.runtime.peer_links import LocalLink, PeerLink, TcpLink
from fauxrdma.runtime.precise_timer import PreciseTimer
from fauxrdma.runtime.revocation import Holder, copy_payload, let_go
from fauxrdma.runtime.traffic_meter import TrafficMeter
from fauxrdma.wire.control import Message
from fauxrdma.wire.fabric_messages import Directory, FlowStart, FlowStop, PathAnswer
from fauxrdma.wire.headers import WRITE_ONLY_BYTES, Frame, SmallWrite

__all__ = ["UNSHAPED_BURST_BYTES", "DataPath"]

log = logging.getLogger(__name__)

UNSHAPED_BURST_BYTES = 512 * 1024
_ACK = int(BthOpcode.RC_ACKNOWLEDGE)
_FRAMES_PER_TURN = 8
"""Bursts sent over one link before the event loop looks at everything else."""
_COLLECT_S = 0.001
"""How long (wall time, unshaped) acknowledgements that nobody waits for are collected."""
_QUANTA_AHEAD = 4
"""Bursts of one flow handed to the scheduler ahead of time: enough that pacing never waits for the engine."""


class DataPath:
    """Moves frames. `notify(message)` goes to the subnet manager; `path(slid, dlid)` is what it said of a path."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        node: int,
        clock: FabricClock,
        *,
        shaped: bool,
        quantum: int,
        notify: Callable[[Message], None],
        path: Callable[[int, int], PathAnswer | None],
    ) -> None:
        self._loop = loop
        self._node = node
        self.clock = clock
        self._shaped = shaped
        self._quantum = quantum
        self._notify = notify
        self._path = path
        self.hcas: dict[int, EmulatedHca] = {}
        self.engines: list[HcaEngine] = []
        self.meter = TrafficMeter()
        self._where: dict[int, tuple[str, int, int]] = {}  # LID to host, port, node
        self._links: dict[tuple[str, int], TcpLink] = {}
        self._local = LocalLink(loop, self._deliver_locally, self._link_writable)
        self.receivers: set[Holder] = set()
        self._ready: dict[PeerLink | None, deque[Flow]] = {}
        self._scheduler = LinkScheduler()
        self.flows = FlowTable(self._link_of, self._opened, shaped=shaped)
        self._timer = PreciseTimer(loop, self._tick)
        self._armed_ns: int | None = None  # fabric time the timer is set to
        self._collecting = False
        self._closed = False

    # ---- set-up --------------------------------------------------------------------------------------------------

    def add_hca(self, hca: EmulatedHca) -> None:
        """Take on an HCA."""
        self.hcas[hca.info.lid] = hca
        self.engines.append(hca.engine)

    def update_directory(self, directory: Directory) -> None:
        """Who is where now. Links to addresses that are gone are closed: frames to them vanish."""
        self._where = {entry.lid: (entry.host, entry.port, entry.node) for entry in directory.entries}
        alive = {(host, port) for host, port, _ in self._where.values()}
        for address in [address for address in self._links if address not in alive]:
            link = self._links.pop(address)
            link.close()
            self._link_writable(link)
            self._ready.pop(link, None)  # flows that are still ready are queued again below
        # A flow resolves its link anew, now that its peer may have come or gone.
        for flow in self.flows:
            self._resolve(flow)

    def update_paths(self, paths: list[PathAnswer]) -> None:
        """Paths are others now: what is sent from now on goes by them, or is lost."""
        now = self.clock.now_ns()
        changed = {(path.slid, path.dlid): path for path in paths}
        for flow in self.flows:
            path = changed.get((flow.hca.info.lid, flow.group or flow.dlid))
            if path is None:
                continue
            if path.reachable:
                self._scheduler.set_latency(flow.fid, path.members.get(flow.dlid, path.latency_ns))
                if not flow.active:
                    self._scheduler.set_rate(flow.fid, path.rate_bps, now)
            self._resolve(flow)
        self._arm()

    def _resolve(self, flow: Flow) -> None:
        flow.link = self._link_of(flow)
        if flow.ready:
            self._queue(flow)

    def _link_of(self, flow: Flow) -> PeerLink | None:
        """Where a flow's frames go; None where the fabric loses them."""
        path = self._path(flow.hca.info.lid, flow.group or flow.dlid)
        if path is not None and (path.lost_at or not path.reachable):
            return None
        if flow.group and (path is None or flow.dlid not in path.members):
            return None
        return self._link_to(flow.dlid)

    def _link_to(self, dlid: int) -> PeerLink | None:
        if dlid in self.hcas:
            return self._local
        where = self._where.get(dlid)
        if where is None:
            return None
        address = where[:2]
        link = self._links.get(address)
        if link is None:
            link = TcpLink(self._loop, address, self._node, self.clock.epoch_ns, self._link_writable)
            self._links[address] = link
        return link

    def close(self) -> None:
        """Stop everything."""
        self._closed = True
        self._timer.close()
        for link in self._links.values():
            link.close()
        self._local.close()

    # ---- events from applications --------------------------------------------------------------------------------

    def doorbell(self, hca: EmulatedHca, qpn: int) -> None:
        """An application posted work."""
        if not self._shaped and hca.port.up:
            flow = self.flows.connected(hca.info.lid, qpn)
            if flow is not None:
                link = flow.link
                if type(link) is TcpLink and link.writable and not self._ready.get(link):
                    data = hca.engine.express_send(qpn, self.clock.now_ns())
                    if data is not None:
                        link.send_parts((data,))
                        self.meter.sent(hca.info.lid, flow.dlid, len(data) - WRITE_ONLY_BYTES, label=flow.label)
                        self._arm(hca)
                        return
        self._feed_engine(hca, Doorbell(qpn))
        self._arm(hca)

    def perform(self, hca: EmulatedHca, actions: list[Action]) -> None:
        """Carry out actions that a control verb caused."""
        self._perform(hca, actions)
        self._arm()

    def deregister(self, hca: EmulatedHca, region: MemoryRegion) -> None:
        """Deregister a region: not a byte moves into or out of it any more when this returns. Raises VerbsError(EBUSY)
        with windows bound to it."""
        actions = hca.engine.deregister(region, self.clock.now_ns())
        self.let_go(region)
        self.perform(hca, actions)

    def let_go(self, region: MemoryRegion) -> None:
        """Make frames on their way in and out independent of a region's memory."""
        copy_payload(self._scheduler.items(), region.memory)
        let_go((self._local, *self._links.values(), *self.receivers), region.memory)

    def forget_qp(self, hca: EmulatedHca, qpn: int) -> None:
        """A queue pair is gone (or reset): drop its flows and what they had queued."""
        for flow in self.flows.forget(hca.info.lid, qpn):
            self._scheduler.close(flow.fid)
            if flow.active:
                self._notify(FlowStop(flow.fid))

    # ---- frames in -----------------------------------------------------------------------------------------------

    def place(self, frame: Frame) -> tuple[memoryview, ...] | None:
        """Destination of an incoming frame's payload."""
        hca = self.hcas.get(frame.dlid)
        if hca is None or not hca.port.up:
            return None
        try:
            return hca.engine.place(frame)
        except Exception:
            # A fault of ours with one frame must not take the connection, and so everybody's traffic, with it.
            log.exception("cannot place %r", frame)
            return None

    def received_small_write(self, write: SmallWrite, payload: memoryview) -> bool:
        """A small RDMA WRITE is here, whole: take it on the express lane, or False."""
        hca = self.hcas.get(write[1])
        if hca is None or not hca.port.up:
            return False
        out: list[Action] = []
        if not hca.engine.express_receive(write, payload, out):
            return False
        if out:
            self._perform(hca, out)
        return True

    def received(self, frame: Frame) -> None:
        """A frame is here, its payload in place."""
        hca = self.hcas.get(frame.dlid)
        if hca is None or not hca.port.up:
            return
        if frame.arrival_ns and frame.duration_ns:
            self.meter.debt(self.clock.now_ns() - frame.arrival_ns, frame.duration_ns)
        try:
            self._feed_engine(hca, FrameReceived(frame))
        except Exception:
            log.exception("cannot handle %r", frame)
        self._arm(hca)

    def _deliver_locally(self, frame: Frame) -> None:
        payload, frame.payload = frame.payload, ()
        views = self.place(frame)  # what is received into the frame itself is its payload now
        if views is not None and frame.nbytes:
            _copy(payload, views)
        self.received(frame)

    # ---- the engine's actions ------------------------------------------------------------------------------------

    def _feed_engine(self, hca: EmulatedHca, event: Event) -> None:
        actions = hca.engine.handle(event, self.clock.now_ns())
        if actions:
            self._perform(hca, actions)

    def _perform(self, hca: EmulatedHca, actions: list[Action]) -> None:
        for action in actions:
            kind = type(action)
            if kind is SendFrame:
                self._send(hca, action.qpn, action.frame)  # type: ignore[union-attr]
            elif kind is Complete:
                self._complete(hca, action)  # type: ignore[arg-type]
            elif kind is AsyncEvent:
                self._report(hca, action)  # type: ignore[arg-type]
            else:
                flow = self.flows.next_flow(hca, action.qpn)  # type: ignore[union-attr]
                if flow is not None:
                    flow.ready = True
                    self._queue(flow)

    def _complete(self, hca: EmulatedHca, action: Complete) -> None:
        wc = action.wc
        cq = hca.cqs.get(action.cqn)
        if cq is None:
            return
        if wc.status != WcStatus.IBV_WC_SUCCESS:
            self._publish_state(hca, wc.qp_num)
        if not cq.add(wc, action.solicited):
            lost = hca.engine.qp(wc.qp_num) if wc.is_receive else None
            if lost is not None and lost.srq is not None:
                lost.srq.drop()
            # Ends, since the queue pairs that are still up when it is called are in ERR then.
            self._perform(hca, hca.engine.cq_overflowed(cq.cqn, self.clock.now_ns()))

    def _report(self, hca: EmulatedHca, event: AsyncEvent) -> None:
        """Most asynchronous events come with queue pairs that stopped: show that first."""
        if event.kind in (AsyncEventType.IBV_EVENT_CQ_ERR, AsyncEventType.IBV_EVENT_SRQ_ERR):
            for qpn in list(hca.rings):
                self._publish_state(hca, qpn)
        elif event.kind != AsyncEventType.IBV_EVENT_SRQ_LIMIT_REACHED:
            self._publish_state(hca, event.element)
        hca.report(event)

    def _publish_state(self, hca: EmulatedHca, qpn: int) -> None:
        """Let the application see that a queue pair went to ERR, then flush what it posted meanwhile."""
        rings = hca.rings.get(qpn)
        qp = hca.engine.qp(qpn)
        if rings is None or qp is None or rings.state == qp.state:
            return
        rings.state = qp.state
        if qp.state == QpState.IBV_QPS_ERR and rings.pending_recvs():
            self._loop.call_soon(self.doorbell, hca, qpn)

    def _opened(self, flow: Flow) -> None:
        if self._shaped:
            path = self._path(flow.hca.info.lid, flow.group or flow.dlid)
            if path is None or not path.reachable:  # nothing will arrive, so any pace does
                self._scheduler.open(flow.fid, flow.hca.info.rate_bps, 1000)
            else:
                self._scheduler.open(flow.fid, path.rate_bps, path.members.get(flow.dlid, path.latency_ns))

    # ---- frames out ----------------------------------------------------------------------------------------------

    def _send(self, hca: EmulatedHca, qpn: int, frame: Frame) -> None:
        flow = self.flows.flow(hca, qpn, frame.dlid)
        if flow is None or not hca.port.up:
            return
        if not self._shaped:
            self._send_unshaped(flow, frame)
            return
        now = self.clock.now_ns()
        if frame.opcode == _ACK:
            # Acknowledgements share no bandwidth worth modelling and do not wait behind data.
            self._scheduler.submit(flow.fid, frame, 0, now)
            return
        self._scheduler.submit(flow.fid, frame, frame.nbytes, now, ordered=True)
        if frame.nbytes and not flow.active:
            flow.active = True
            self._notify(FlowStart(flow.fid, frame.slid, frame.dlid, flow.weight, flow.label))

    def _send_unshaped(self, flow: Flow, frame: Frame) -> None:
        if frame.opcode == _ACK:
            if frame.patient:
                # Acknowledgements are cumulative: a later one takes this one's place.
                flow.patient_ack = frame
                if not self._collecting:
                    self._collecting = True
                    self._loop.call_later(_COLLECT_S, self._send_collected)
                return
            flow.patient_ack = None
        else:
            self.meter.sent(frame.slid, frame.dlid, frame.nbytes, label=flow.label)
        if frame.dlid >= FIRST_MULTICAST_LID:
            for branch in self.flows.branches(flow.hca, flow.qpn, frame.dlid):
                if branch.link is not None:
                    branch.link.send(replace(frame, dlid=branch.dlid))
        elif flow.link is not None:
            flow.link.send(frame)

    def _send_collected(self) -> None:
        """Send the acknowledgements nobody is in a hurry for."""
        self._collecting = False
        for flow in self.flows:
            frame, flow.patient_ack = flow.patient_ack, None
            if frame is not None and flow.link is not None and flow.hca.port.up:
                flow.link.send(frame)

    def _queue(self, flow: Flow) -> None:
        """A flow has something to send: pull it as far as there is room."""
        if self._shaped:
            self._pull_shaped(flow)
            return
        waiting = self._ready.get(flow.link)
        if waiting is None:
            waiting = self._ready[flow.link] = deque()
        if flow not in waiting:
            waiting.append(flow)
        if flow.link is None or flow.link.writable:
            self._pump(flow.link)

    def _pump(self, link: PeerLink | None) -> None:
        """Round robin over the flows that want this link, a burst each, while it takes more.

        A receiver as fast as we are would keep this going for ever; after a while the rest of the loop gets its turn,
        or acknowledgements would lie unread until their timers ran out.
        """
        waiting = self._ready.get(link)
        budget = _FRAMES_PER_TURN
        while waiting and (link is None or link.writable):
            if budget == 0:
                self._loop.call_soon(self._pump_on, link)
                return
            budget -= 1
            flow = waiting.popleft()
            if not flow.ready or flow.link is not link:
                continue
            more = self._offer_link(flow, UNSHAPED_BURST_BYTES)
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
            self._queue(flow)
            self._arm()

    def _offer_link(self, flow: Flow, max_payload: int) -> Flow | None:
        """Have the engine send one burst. Returns the flow that the queue pair goes on with: this one, another when UD
        turns to another destination, None when it has no more (it says WantsLink again when it has)."""
        hca, qpn = flow.hca, flow.qpn
        self._feed_engine(hca, LinkReady(qpn, max_payload))
        qp = hca.engine.qp(qpn)
        flow.ready = qp is not None and qp.wants_link
        if not flow.ready:
            return None
        more = self.flows.next_flow(hca, qpn)
        if more is not flow:
            flow.ready = False
            if more is not None:
                more.ready = True
        return more

    def _pull_shaped(self, flow: Flow) -> None:
        limit = _QUANTA_AHEAD * self._quantum
        more: Flow | None = flow
        while more is not None and more.ready and self._scheduler.backlog(more.fid) < limit:
            more = self._offer_link(more, self._quantum)

    def _link_writable(self, link: PeerLink) -> None:
        if not self._shaped:
            self._pump_on(link)

    # ---- time ----------------------------------------------------------------------------------------------------

    def set_rates(self, rates: dict[int, int]) -> None:
        """The subnet manager's grants, by flow, in bits/s."""
        now = self.clock.now_ns()
        for fid, rate_bps in rates.items():
            self._scheduler.set_rate(fid, rate_bps, now)
        self._arm()

    def _tick(self) -> None:
        """A deadline has come: release frames, refill flows, let engines act on their timers."""
        self._armed_ns = None
        now = self.clock.now_ns()
        if self._shaped:
            self._release(now)
        if any(engine.timers and engine.timers[0][0] <= now for engine in self.engines):
            # After what else this turn of the loop brings: an acknowledgement that is here already beats its timer.
            self._loop.call_soon(self._expire)
        else:
            self._arm()

    def _expire(self) -> None:
        if self._closed:
            return
        now = self.clock.now_ns()
        for hca in self.hcas.values():
            deadline = hca.engine.next_deadline_ns()
            if deadline is not None and deadline <= now:
                self._feed_engine(hca, TimerExpired())
        self._arm()

    def _release(self, now: int) -> None:
        flows = self.flows.by_id
        for departure in self._scheduler.poll(now):
            frame = departure.item
            assert isinstance(frame, Frame)
            frame.arrival_ns = departure.release_ns
            frame.duration_ns = departure.release_ns - departure.started_ns
            flow = flows.get(departure.flow)
            if not self.hcas[frame.slid].port.up:
                continue
            if frame.opcode != _ACK and not (flow is not None and flow.group):
                label = flow.label if flow is not None else 0
                self.meter.sent(
                    frame.slid, frame.dlid, frame.nbytes, departure.started_ns, departure.departed_ns, label
                )
            if flow is None:
                continue
            if frame.dlid >= FIRST_MULTICAST_LID:
                # It has left the HCA; now each member's copy takes its way through the tree.
                for branch in self.flows.branches(flow.hca, flow.qpn, frame.dlid):
                    self._scheduler.submit(branch.fid, replace(frame, dlid=branch.dlid), 0, now)
            elif flow.link is not None:
                flow.link.send(frame)
        limit = _QUANTA_AHEAD * self._quantum
        for flow in list(flows.values()):
            if flow.ready and self._scheduler.backlog(flow.fid) < limit:
                self._pull_shaped(flow)
        for fid in self._scheduler.idle_flows(now):
            idle = flows.get(fid)
            if idle is not None and idle.active:
                idle.active = False
                self._notify(FlowStop(fid))

    def _arm(self, hca: EmulatedHca | None = None) -> None:
        """Set the timer to the earliest deadline. With `hca` only that HCA's engine can have a new, earlier one."""
        if self._closed:
            return
        if hca is not None and not self._shaped:
            timers = hca.engine.timers
            if not timers or (self._armed_ns is not None and timers[0][0] >= self._armed_ns):
                return
        earliest: int | None = self._scheduler.next_ns() if self._shaped else None
        for engine in self.engines:
            timers = engine.timers
            if timers and (earliest is None or timers[0][0] < earliest):
                earliest = timers[0][0]
        self._armed_ns = earliest
        self._timer.arm(None if earliest is None else self.clock.wall_ns(earliest))


def _copy(pieces: tuple[memoryview, ...], views: tuple[memoryview, ...]) -> None:
    """Copy one list of pieces into another of the same total length."""
    if len(pieces) == 1 and len(views) == 1:
        views[0][:] = pieces[0]
        return
    data = memoryview(b"".join(pieces))
    for view in views:
        size = len(view)
        view[:] = data[:size]
        data = data[size:]
