"""The data path of one HCA daemon: engines, links, senders and timers, joined.

Engines want to send (WantsLink); links have room or not. Who asks a queue pair for its next burst, and when, is the
sender's business: the unshaped one (clock `none`) does whenever the link's socket takes more, the paced one (clock
`paced`) as the model allows. Paced, the bytes of a frame become visible at the receiver at the modelled arrival, and
everything behind that (acknowledgements, completions) follows from real events.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from typing import Protocol

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
from fauxrdma.ib.attributes import GSI_QPN
from fauxrdma.ib.enums import AsyncEventType, BthOpcode, QpState, WcStatus
from fauxrdma.memory.regions import MemoryRegion
from fauxrdma.runtime.busy_poll import BusyPoll
from fauxrdma.runtime.connection_service import ConnectionService
from fauxrdma.runtime.emulated_hca import EmulatedHca
from fauxrdma.runtime.event_pipe import EventGate
from fauxrdma.runtime.fabric_clock import Clock
from fauxrdma.runtime.flow_faults import FlowFaults
from fauxrdma.runtime.flows import Flow, FlowTable
from fauxrdma.runtime.frame_sender import FrameSender
from fauxrdma.runtime.landings import Landings
from fauxrdma.runtime.paced_sender import PacedSender
from fauxrdma.runtime.peer_directory import PeerDirectory
from fauxrdma.runtime.peer_links import HeldLink, PeerLink, TcpLink
from fauxrdma.runtime.precise_timer import PreciseTimer
from fauxrdma.runtime.revocation import Holder, copy_payload, let_go
from fauxrdma.runtime.traffic_meter import TrafficMeter
from fauxrdma.runtime.unshaped_sender import UnshapedSender
from fauxrdma.wire.control import Message
from fauxrdma.wire.fabric_messages import Counters, Directory, PathAnswer
from fauxrdma.wire.fault_messages import HcaChanged
from fauxrdma.wire.headers import WRITE_ONLY_BYTES, Frame, SmallWrite

__all__ = ["DataPath"]

log = logging.getLogger(__name__)

_DATAGRAM = int(BthOpcode.UD_SEND_ONLY)
_GSI_QKEY = 0x80010000
"""The Q_Key of queue pair 1 (IBTA vol. 1, 3.5.3)."""


class Timer(Protocol):
    """One deadline."""

    def arm(self, wall_ns: int | None, /) -> None:
        """Be due then, or never."""

    def close(self) -> None:
        """Never be due."""


class DataPath:
    """Moves frames. `notify(message)` goes to the subnet manager; `path(slid, dlid, label)` is what it said of a flow's
    path, and `want_path(slid, dlid, label)` asks for one it was not asked for yet: `update_paths` is to hear of it.
    `adaptive`: the fabric chooses a way whenever a flow begins to send."""

    EARLY = False
    """Whether frames are sent when they depart, and kept by the receiver until they arrive."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        node: int,
        clock: Clock,
        *,
        shaped: bool,
        quantum: int,
        notify: Callable[[Message], None],
        path: Callable[[int, int, int], PathAnswer | None],
        want_path: Callable[[int, int, int], None],
        adaptive: bool,
        seed: int = 0,
    ) -> None:
        self._loop = loop
        self.clock = clock
        self._known_path = path
        self._want_path = want_path
        self.hcas: dict[int, EmulatedHca] = {}
        self.engines: list[HcaEngine] = []
        self.meter = TrafficMeter()
        self._faults = FlowFaults(self.meter, f"{seed}/{node}", clock.now_ns)
        self.receivers: set[Holder] = set()
        self._peers = self._make_peers(loop, node)
        self.flows = FlowTable(self._link_of, self._opened, shaped=shaped)
        self._paced: PacedSender | None = None
        self._unshaped: UnshapedSender | None = None
        self._sender: FrameSender
        self._landings = Landings(notify) if shaped else None
        if shaped:
            self._sender = self._paced = PacedSender(
                self.flows, self.meter, self._offer_link, clock, quantum, notify,
                self.counters if adaptive else None, early=self.EARLY,
            )  # fmt: skip
        else:
            self._sender = self._unshaped = UnshapedSender(loop, self.flows, self.meter, self._offer_link, self._arm)
        self._send = self._sender.send
        self._queue = self._sender.queue
        self._busy_poll = BusyPoll(loop)
        self._timer = self._make_timer(loop)
        self.gate: EventGate | None = None  # of events to applications
        self._armed_ns: int | None = None  # fabric time the timer is set to
        self._closed = False
        self._connections: dict[int, ConnectionService] = {}  # by LID, of those that were used

    def _make_timer(self, loop: asyncio.AbstractEventLoop) -> Timer:
        return PreciseTimer(loop, self._tick)

    def _make_peers(self, loop: asyncio.AbstractEventLoop, node: int) -> PeerDirectory:
        return PeerDirectory(loop, node, self.clock.epoch_ns, self._path, self._deliver_locally, self._link_writable)

    # ---- set-up --------------------------------------------------------------------------------------------------

    def add_hca(self, hca: EmulatedHca) -> None:
        """Take on an HCA."""
        self.hcas[hca.info.lid] = hca
        self.engines.append(hca.engine)
        self._peers.add_own(hca.info.lid)

    def update_directory(self, directory: Directory) -> None:
        """Who is where now. Frames to those that are gone vanish."""
        for link in self._peers.update(directory):
            self._sender.link_gone(link)  # flows that are still ready are queued again below
        # A flow resolves its link anew, now that its peer may have come or gone.
        for flow in self.flows:
            self._resolve(flow)

    def update_paths(self, paths: list[PathAnswer]) -> None:
        """Paths are others now: what is sent from now on goes by them, or is lost."""
        now = self.clock.now_ns()
        changed = {(path.slid, path.dlid, path.label) for path in paths}
        for flow in self.flows:
            slid, dlid, label = flow.key
            if (slid, dlid, label) not in changed and (slid, dlid, 0) not in changed:
                continue
            path = self._path(flow)
            if path is not None:
                self._faults.heed(flow, path)
                self._sender.path_changed(flow, path, now)
            self._resolve(flow)
        self._arm()

    def _path(self, flow: Flow) -> PathAnswer | None:
        return self._known_path(*flow.key)

    def counters(self) -> Counters:
        """What was sent since the last time."""
        counters = self.meter.report(sum(engine.retransmits for engine in self.engines))
        counters.errors = self._faults.errors.take()
        return counters

    def _resolve(self, flow: Flow) -> None:
        link = self._link_of(flow)
        if type(flow.link) is HeldLink and link is not flow.link:
            held, flow.link = flow.link, link
            self._sender.link_gone(held)
            held.release(link)
        flow.link = link
        if flow.ready:
            self._queue(flow)

    def _link_of(self, flow: Flow) -> PeerLink | None:
        return self._faults.link_of(flow, self._peers.link_of(flow))

    def change_hca(self, change: HcaChanged) -> None:
        """An HCA of ours fails, works again, or is given other P_Keys."""
        hca = self.hcas[change.lid]
        hca.port.set_partition(change.pkeys)
        if change.failed and not hca.failed:
            hca.failed = True
            self._perform(hca, hca.engine.device_failed(self.clock.now_ns()))
            for qpn in list(hca.rings):
                self._publish_state(hca, qpn)
            hca.port.announce(
                AsyncEventType.IBV_EVENT_DEVICE_FATAL, "the HCA has failed: open it again when it is back"
            )
        hca.failed = change.failed
        self._arm()

    def close(self) -> None:
        """Stop everything."""
        self._closed = True
        self._sender.close()
        self._timer.close()
        self._busy_poll.close()
        self._peers.close()

    # ---- events from applications --------------------------------------------------------------------------------

    def doorbell(self, hca: EmulatedHca, qpn: int) -> None:
        """An application posted work."""
        unshaped = self._unshaped
        if unshaped is not None and hca.port.up:
            flow = self.flows.connected(hca.info.lid, qpn)
            if flow is not None:
                link = flow.link
                if type(link) is TcpLink and link.writable and flow.dealer is None and not unshaped.ready.get(link):
                    cut = hca.engine.express_send(qpn, self.clock.now_ns())
                    if cut is not None:
                        data, memory = cut
                        link.send_parts((data,))
                        extents = ((memory, len(data) - WRITE_ONLY_BYTES),)
                        self.meter.sent(hca.info.lid, flow.dlid, extents, label=flow.label, vl=flow.vl)
                        self._arm(hca)
                        self._busy_poll.stir()
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
        copy_payload(self._sender.frames(), region.memory)
        let_go((*self._peers.links(), *self._faults.held(iter(self.flows)), *self.receivers), region.memory)

    def forget_qp(self, hca: EmulatedHca, qpn: int) -> None:
        """A queue pair is gone (or reset): drop its flows and what they had queued."""
        for flow in self.flows.forget(hca.info.lid, qpn):
            self._sender.forget(flow)
            if flow.dealer is not None:
                self.meter.drop_dealer(*flow.key)
        if self._landings is not None:
            self._landings.forget(hca.info.lid, qpn)

    # ---- frames in -----------------------------------------------------------------------------------------------

    def place(self, frame: Frame) -> tuple[memoryview, ...] | None:
        """Destination of an incoming frame's payload."""
        hca = self.hcas.get(frame.dlid)
        if hca is None or not hca.port.up:
            return None
        if frame.dest_qpn == GSI_QPN:
            frame.payload = (memoryview(bytearray(frame.nbytes)),)
            return frame.payload
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
        memory = hca.engine.express_receive(write, payload, out)
        if memory is None:
            return False
        self.meter.landed(write[1], memory, len(payload))
        if out:
            self._perform(hca, out)
        if self._unshaped is not None:
            self._busy_poll.stir()
        return True

    def received(self, frame: Frame) -> None:
        """A frame is here, its payload in place."""
        hca = self.hcas.get(frame.dlid)
        if hca is None or not hca.port.up:
            return
        if frame.dest_qpn == GSI_QPN:
            self.connections(hca).received(frame)
            return
        if frame.arrival_ns and frame.duration_ns:
            self.meter.debt(self.clock.now_ns() - frame.arrival_ns, frame.duration_ns)
        try:
            self._feed_engine(hca, FrameReceived(frame))
        except Exception:
            log.exception("cannot handle %r", frame)
        for memory, nbytes in frame.extents:
            self.meter.landed(frame.dlid, memory, nbytes)
        if self._landings is not None and frame.extents:
            self._landings.landed(frame)
        self._arm(hca)

    def _deliver_locally(self, frame: Frame) -> None:
        payload, frame.payload, frame.extents = frame.payload, (), ()
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
        path = self._path(flow)
        if path is not None:
            self._faults.heed(flow, path)
            flow.link = self._link_of(flow)
        self._sender.opened(flow, path)
        if path is not None and path.label != flow.key[2]:
            self._want_path(*flow.key)

    def connections(self, hca: EmulatedHca) -> ConnectionService:
        """The communication manager of an HCA."""
        service = self._connections.get(hca.info.lid)
        if service is None:
            send = functools.partial(self.send_mad, hca)
            service = self._connections[hca.info.lid] = ConnectionService(self.clock, send, self.later)
        return service

    def send_mad(self, hca: EmulatedHca, dlid: int, mad: bytes) -> None:
        """Send a management datagram from queue pair 1 to that of another port."""
        payload = (memoryview(mad),)
        frame = Frame(_DATAGRAM, hca.info.lid, dlid, GSI_QPN, 0, nbytes=len(mad), payload=payload, qkey=_GSI_QKEY)
        frame.src_qpn = GSI_QPN
        self._send(hca, GSI_QPN, frame)
        self._arm()

    # ---- frames out ----------------------------------------------------------------------------------------------

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

    def _link_writable(self, link: PeerLink) -> None:
        self._sender.writable(link)

    # ---- time ----------------------------------------------------------------------------------------------------

    def touched(self) -> None:
        """An application asked for something, or was answered."""

    def later(self, fabric_ns: int, call: Callable[[], None]) -> None:
        """Call back after a span of fabric time, not before."""
        at_ns = self.clock.now_ns() + fabric_ns

        def due() -> None:
            left_ns = at_ns - self.clock.now_ns()
            if left_ns <= 0:
                call()
            elif not self._closed:  # the loop's timers count milliseconds from when its turn began
                self._loop.call_later(left_ns * self.clock.dilation / 1e9, due)

        due()

    def set_rates(self, rates: dict[int, int]) -> None:
        """The subnet manager's grants, by flow, in bits/s."""
        if self._paced is not None:
            self._paced.set_rates(rates, self.clock.now_ns())
            self._arm()

    def _tick(self) -> None:
        """A deadline has come: release frames, refill flows, let engines act on their timers."""
        self._armed_ns = None
        now = self.clock.now_ns()
        if self._paced is not None:
            self._paced.release(now)
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

    def _arm(self, hca: EmulatedHca | None = None) -> None:
        """Set the timer to the earliest deadline. With `hca` only that HCA's engine can have a new, earlier one."""
        if self._closed:
            return
        paced = self._paced
        if hca is not None and paced is None:
            timers = hca.engine.timers
            if not timers or (self._armed_ns is not None and timers[0][0] >= self._armed_ns):
                return
        earliest: int | None = paced.next_ns() if paced is not None else None
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
