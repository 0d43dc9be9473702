"""The engine of one emulated HCA: queue pairs, keys, one timer. No sockets, no clock, no threads.

``handle(event, now_ns)`` returns the actions to carry out, in order. The only other hot-path call is :meth:`place`,
which says where the payload of an incoming frame belongs before it has arrived.
"""

from __future__ import annotations

import errno
import heapq
import random
from typing import cast

from fauxrdma.errors import VerbsError
from fauxrdma.hca.datagrams import Datagrams
from fauxrdma.hca.events import (
    Action,
    AsyncEvent,
    Doorbell,
    Event,
    FrameReceived,
    LinkReady,
    SendFrame,
    TimerExpired,
    WantsLink,
)
from fauxrdma.hca.express import cut_small_write, land_small_write
from fauxrdma.hca.halves import ReceiveHalf, SendHalf
from fauxrdma.hca.port import Port
from fauxrdma.hca.queue_pair import QueuePair
from fauxrdma.hca.requester import Requester
from fauxrdma.hca.responder import Responder
from fauxrdma.hca.responder_resources import ResponderResources
from fauxrdma.hca.srq import SharedReceiveQueue, SharedReceiveQueues, SharedReceives
from fauxrdma.hca.uc import UcRequester, UcResponder
from fauxrdma.hca.ud import UdRequester, UdResponder, is_datagram
from fauxrdma.hca.unreliable import UnreliableRequester
from fauxrdma.hca.work_queue import RecvWqe, SendSource, WorkSource
from fauxrdma.ib.attributes import QPAttr, QPCap
from fauxrdma.ib.enums import AsyncEventType, BthOpcode, QpAttrMask, QpState, QpType, WcStatus
from fauxrdma.ib.profiles import DEFAULT_PROFILE, PROFILES, HcaProfile
from fauxrdma.ib.qp_states import check_modify
from fauxrdma.memory.regions import KeyTable, MemoryRegion, ProtectionDomain
from fauxrdma.memory.spans import Piece, set_aside
from fauxrdma.wire.headers import Frame, SmallWrite, is_acknowledgement

__all__ = ["HcaEngine"]

_ACKNOWLEDGE = int(BthOpcode.RC_ACKNOWLEDGE)
_SENDING = (QpState.IBV_QPS_RTS, QpState.IBV_QPS_SQD)
_ERR = QpState.IBV_QPS_ERR
_RTR = QpState.IBV_QPS_RTR
_SQD = QpState.IBV_QPS_SQD
_SQE = QpState.IBV_QPS_SQE
_RC = QpType.IBV_QPT_RC
_FIRST_QPN = 0x11
_QPN_LIMIT = 1 << 24


class HcaEngine:
    """Queue pairs and memory keys of the HCA with `lid`. `rng` makes keys and queue-pair numbers; `choices` (default:
    by the LID) is for what hardware leaves open."""

    def __init__(
        self,
        lid: int,
        rng: random.Random,
        profile: HcaProfile = PROFILES[DEFAULT_PROFILE],
        port: Port | None = None,
        choices: random.Random | None = None,
    ) -> None:
        self.lid = lid
        self.profile = profile
        self.attributes = profile.attributes
        self.port = port or Port(lid)
        self.datagrams = Datagrams(self.port, self.attributes)
        self.keys = KeyTable(rng)
        self._resources = ResponderResources(self.attributes.max_res_rd_atom)
        self._rng = rng
        self._choices = choices or random.Random(lid)
        self._qps: dict[int, QueuePair] = {}
        self._requesters: dict[int, SendHalf] = {}
        self._retransmits_of_gone = 0  # by queue pairs that have been destroyed
        self._responders: dict[int, ReceiveHalf] = {}
        self.srqs = SharedReceiveQueues(self.attributes, self._qps)
        # A heap of (deadline ns, queue pair, negative where something is held until then); entries may be early.
        self.timers: list[tuple[int, int]] = []

    # ---- control path --------------------------------------------------------------------------------------------

    def create_qp(
        self,
        qp_type: QpType,
        pd: ProtectionDomain,
        send_cqn: int,
        recv_cqn: int,
        cap: QPCap,
        sq_sig_all: bool,
        sq: SendSource,
        rq: WorkSource[RecvWqe],
        srq: SharedReceiveQueue | None = None,
    ) -> QueuePair:
        """A new queue pair in RESET; with `srq` it receives from there and not from `rq`. Raises VerbsError(ENOMEM) at
        the device's limit."""
        if len(self._qps) >= self.attributes.max_qp:
            raise VerbsError(errno.ENOMEM, f"Failed to create QP: the device has max_qp = {self.attributes.max_qp}")
        while True:
            qpn = self._rng.randrange(_FIRST_QPN, _QPN_LIMIT)
            if qpn not in self._qps:
                break
        qp = QueuePair(qpn, qp_type, pd, send_cqn, recv_cqn, cap, sq_sig_all, sq, rq, profile=self.profile)
        if srq is not None:
            qp.srq = srq
            qp.rq = SharedReceives(srq, qp)
            srq.users += 1
        pd.children += 1
        self._qps[qpn] = qp
        self._requesters[qpn], self._responders[qpn] = self._halves(qp)
        return qp

    def _halves(self, qp: QueuePair) -> tuple[SendHalf, ReceiveHalf]:
        """The sending and the receiving state machine of a queue pair's transport."""
        if qp.qp_type == QpType.IBV_QPT_UC:
            return UcRequester(qp, self.keys, self.lid), UcResponder(qp, self.keys, self.lid, self._choices)
        if qp.qp_type == QpType.IBV_QPT_UD:
            handles = self.datagrams.handles
            return UdRequester(qp, self.keys, self.port, handles), UdResponder(qp, self.keys, self.port)
        return Requester(qp, self.keys, self.lid), Responder(qp, self.keys, self.lid, self._choices)

    def destroy_qp(self, qpn: int) -> None:
        """Remove a queue pair without completions; its peer hears nothing more."""
        qp = self._qps.pop(qpn, None)
        if qp is not None:
            qp.pd.children -= 1
            if isinstance(qp.rq, SharedReceives):
                qp.rq.forget()
                qp.rq.srq.users -= 1
            self.keys.windows.queue_pair_gone(qpn)
            self._resources.release(qpn)
            self._retransmits_of_gone += self._requesters.pop(qpn).retransmits
            del self._responders[qpn]
            self.datagrams.forget_qp(qpn)

    def qp(self, qpn: int) -> QueuePair | None:
        """The queue pair with this number, if it exists."""
        return self._qps.get(qpn)

    def destination(self, qpn: int) -> int:
        """The LID that the queue pair sends to next: a connected one always to its peer's, UD as its request says."""
        requester = self._requesters[qpn]
        return requester.destination() if isinstance(requester, UdRequester) else self._qps[qpn].dlid

    @property
    def retransmits(self) -> int:
        """Work requests (or their remainders) sent again since the start."""
        return self._retransmits_of_gone + sum(requester.retransmits for requester in self._requesters.values())

    def modify_qp(self, qpn: int, attr: QPAttr, mask: QpAttrMask, now: int) -> list[Action]:
        """Change attributes or state. Raises VerbsError(EINVAL) and changes nothing when any part is not allowed."""
        qp = self._qps[qpn]
        attr.check_ranges(mask, self.attributes)
        try:
            target = QpState(attr.qp_state) if mask & QpAttrMask.IBV_QP_STATE else None
            believed = QpState(attr.cur_qp_state) if mask & QpAttrMask.IBV_QP_CUR_STATE else None
        except ValueError as error:
            raise VerbsError(errno.EINVAL, f"Failed to modify QP: {error}") from None
        new = check_modify(qp.qp_type, qp.state, mask, target, believed)
        if mask & QpAttrMask.IBV_QP_MAX_DEST_RD_ATOMIC:
            self._resources.reserve(qpn, attr.max_dest_rd_atomic)
        qp.apply(attr, mask)
        old, qp.state = qp.state, new
        out: list[Action] = []
        if new == QpState.IBV_QPS_RESET:
            qp.reset()
            self._resources.release(qpn)
            self._requesters[qpn].reset()
            self._responders[qpn].reset()
            # RESET discards what is posted, silently.
            while qp.sq.fetch() is not None or qp.rq.fetch() is not None:
                pass
            if isinstance(qp.rq, SharedReceives):
                qp.rq.forget()
        elif new == QpState.IBV_QPS_ERR:
            self._flush(qp, WcStatus.IBV_WC_WR_FLUSH_ERR, now, out)
        elif new == QpState.IBV_QPS_RTR:
            self._responders[qpn].start()
        elif new == QpState.IBV_QPS_RTS:
            if old == QpState.IBV_QPS_RTR:
                self._requesters[qpn].start()
            self._want_link(qp, out)
        elif new == _SQD and old != _SQD:
            qp.tell_drained = bool(mask & QpAttrMask.IBV_QP_EN_SQD_ASYNC_NOTIFY and attr.en_sqd_async_notify)
            self._requesters[qpn].drain()
            self._want_link(qp, out)
            self._tell_drained(qp, out)
        if self.srqs:
            self.srqs.settle(out)
        return out

    def deregister(self, region: MemoryRegion, now: int) -> list[Action]:
        """Deregister a region and take back every piece of it that is in use. Raises VerbsError(EBUSY) as KeyTable.

        When this returns the engine holds no piece of it: a WRITE or READ of a peer that was under way ends in
        REM_ACCESS_ERR there, requests and receives of ours that name it in LOC_PROT_ERR. What frames on their way out
        still hold, and where a frame is just arriving, is for the caller to see to.
        """
        self.keys.deregister(region)
        memory = region.memory
        out: list[Action] = []
        for qpn, requester in self._requesters.items():
            qp, responder = self._qps[qpn], self._responders[qpn]
            if responder.revoke(memory):
                self._close_if_due(qp, responder, now, out)
            if requester.revoke(memory):
                status = requester.local_failure()
                if status is not None:
                    self._fail_sending(qp, status, now, out)
                else:
                    self._after_requester(qp, requester, None, now, out)
        return out

    # ---- data path -----------------------------------------------------------------------------------------------

    def handle(self, event: Event, now: int) -> list[Action]:
        """Advance by one event. `now` is fabric time in ns and never goes back."""
        out: list[Action] = []
        kind = type(event)
        if kind is FrameReceived:
            self._frame_received(event.frame, now, out)  # type: ignore[union-attr]
        elif kind is LinkReady:
            self._link_ready(event.qpn, event.max_payload, now, out)  # type: ignore[union-attr]
        elif kind is Doorbell:
            qp = self._qps.get(event.qpn)  # type: ignore[union-attr]
            if qp is not None:
                if qp.state == _ERR:
                    self._flush(qp, WcStatus.IBV_WC_WR_FLUSH_ERR, now, out)
                elif qp.state == _SQE:
                    self._requesters[qp.qpn].flush(WcStatus.IBV_WC_WR_FLUSH_ERR, now, out)
                else:
                    self._want_link(qp, out)
        elif kind is TimerExpired:
            self._timer_expired(now, out)
        if self.srqs:
            self.srqs.settle(out)
        return out

    def express_send(self, qpn: int, now: int) -> tuple[bytes, int] | None:
        """The express lane for ``handle(Doorbell(qpn))`` and the LinkReady after it: the bytes of a whole frame, to be
        sent at once over an unshaped link that is idle, and which memory its payload was in. None (and nothing has
        changed) when the general way is due."""
        qp = self._qps.get(qpn)
        if qp is None or qp.wants_link or self._responders[qpn].jobs:
            return None
        requester = self._requesters[qpn]
        if not isinstance(requester, Requester):
            return None
        cut = cut_small_write(requester, now)
        if cut is not None:
            self._schedule(qpn, requester)
        return cut

    def express_receive(self, write: SmallWrite, payload: memoryview, out: list[Action]) -> int | None:
        """The express lane for `place`, the copy and ``handle(FrameReceived)`` of a small RDMA WRITE; appends actions.
        Which memory it is in now; None (and nothing has changed) when the general way is due."""
        responder = self._responders.get(write[2])
        if not isinstance(responder, Responder) or responder.qp.state == _RTR or responder.jobs:
            return None  # in RTR the first packet also raises IBV_EVENT_COMM_EST
        return land_small_write(responder, write, payload, out)

    def place(self, frame: Frame) -> tuple[memoryview, ...] | None:
        """Where the payload of an incoming frame goes: views in order, or None to drain it. Commits nothing.

        Follow it by ``handle(FrameReceived(frame))`` when the payload is there; between the two no other frame of the
        same queue pair may be placed.
        """
        if is_datagram(frame.opcode):
            return self.datagrams.place(frame)
        qp = self._qps.get(frame.dest_qpn)
        if qp is None or frame.slid != qp.dlid:
            return None
        if is_acknowledgement(frame.opcode):
            requester = self._requesters[qp.qpn]
            if not isinstance(requester, Requester):
                return None
            if frame.opcode == _ACKNOWLEDGE:
                if frame.nbytes == 0:
                    return ()
                # A NAK's reason: receive it into the frame itself.
                buffer = memoryview(bytearray(frame.nbytes))
                frame.payload = (buffer,)
                return frame.payload
            return self._destination(frame, requester.place(frame))
        return self._destination(frame, self._responders[qp.qpn].place(frame))

    def _destination(self, frame: Frame, pieces: tuple[Piece, ...] | None) -> tuple[memoryview, ...] | None:
        """Views to receive into for these pieces; for memory that is not mapped here, scratch memory."""
        if pieces:
            frame.extents = self.keys.extents(pieces, frame.nbytes)
            if self.keys.indirect:
                views, frame.aside = set_aside(pieces)
                return views
        return cast("tuple[memoryview, ...] | None", pieces)

    def _frame_received(self, frame: Frame, now: int, out: list[Action]) -> None:
        if is_datagram(frame.opcode):
            for qpn in self.datagrams.recipients(frame, self._qps):
                if self._responders[qpn].finish(frame, now, out):
                    self._fail(self._qps[qpn], WcStatus.IBV_WC_WR_FLUSH_ERR, now, out)
            return
        qp = self._qps.get(frame.dest_qpn)
        if qp is None or frame.slid != qp.dlid:
            return
        if not is_acknowledgement(frame.opcode):
            responder = self._responders[qp.qpn]
            if qp.state == _RTR and not qp.told_established:
                qp.told_established = True
                text = f"QP 0x{qp.qpn:x} is in RTR and its peer has begun to send"
                out.append(AsyncEvent(AsyncEventType.IBV_EVENT_COMM_EST, qp.qpn, text))
            if frame.aside:
                responder.land(frame)
            if responder.finish(frame, now, out):
                self._fail(qp, WcStatus.IBV_WC_WR_FLUSH_ERR, now, out)
            elif (held_until := responder.held_until_ns) is not None:
                heapq.heappush(self.timers, (held_until, -qp.qpn))
            elif responder.jobs:
                self._want_link(qp, out)
            return
        if qp.state not in _SENDING:
            return
        requester = self._requesters[qp.qpn]
        if not isinstance(requester, Requester):
            return
        status: WcStatus | None = None
        if frame.opcode == _ACKNOWLEDGE:
            note = bytes(frame.payload[0]).decode(errors="replace") if frame.payload else ""
            status = requester.on_ack(frame, note, now, out)
        else:
            status = requester.on_response(frame, now, out)
        self._after_requester(qp, requester, status, now, out)

    def _after_requester(
        self, qp: QueuePair, requester: SendHalf, status: WcStatus | None, now: int, out: list[Action]
    ) -> None:
        if status is None:
            status = requester.local_failure()
        if status is not None:
            self._fail(qp, status, now, out)
            return
        if qp.tell_drained:
            self._tell_drained(qp, out)
        self._schedule(qp.qpn, requester)
        if requester.has_work():
            self._want_link(qp, out)

    def _link_ready(self, qpn: int, max_payload: int, now: int, out: list[Action]) -> None:
        qp = self._qps.get(qpn)
        if qp is None:
            return
        requester = self._requesters[qpn]
        responder = self._responders[qpn]
        # READ responses and own requests take turns, so that neither starves.
        if qp.responded_last:
            frame = requester.next_frame(max_payload, now, out)
            qp.responded_last = frame is None and bool(responder.jobs)
            if frame is None:
                frame = responder.next_response(max_payload)
        else:
            frame = responder.next_response(max_payload)
            qp.responded_last = frame is not None
            if frame is None:
                frame = requester.next_frame(max_payload, now, out)
        if frame is not None:
            out.append(SendFrame(qpn, frame))
            if isinstance(requester, UnreliableRequester):
                requester.handed_over(now, out)
                self._tell_drained(qp, out)
            self._schedule(qpn, requester)
            if not requester.has_work() and not responder.jobs:
                qp.wants_link = False
        self._close_if_due(qp, responder, now, out)
        if frame is None and qp.state != _ERR:
            qp.wants_link = False
            status = requester.local_failure()
            if status is not None:
                self._fail_sending(qp, status, now, out)

    def _close_if_due(self, qp: QueuePair, responder: ReceiveHalf, now: int, out: list[Action]) -> None:
        """Send the NAK that waited for the READs before it."""
        if responder.closing and not responder.jobs:
            responder.refuse_now(now, out)
            self._fail(qp, WcStatus.IBV_WC_WR_FLUSH_ERR, now, out)

    def _fail_sending(self, qp: QueuePair, status: WcStatus, now: int, out: list[Action]) -> None:
        """A request failed here: a reliable queue pair goes to ERR, others to SQE."""
        if qp.qp_type == _RC:
            self._fail(qp, status, now, out)
        else:
            qp.state = _SQE
            self._requesters[qp.qpn].flush(status, now, out)

    def _tell_drained(self, qp: QueuePair, out: list[Action]) -> None:
        """In SQD, once all that was begun is done: the event that was asked for, once."""
        if qp.tell_drained and qp.state == _SQD and self._requesters[qp.qpn].drained():
            qp.tell_drained = False
            text = f"the send queue of QP 0x{qp.qpn:x} is drained"
            out.append(AsyncEvent(AsyncEventType.IBV_EVENT_SQ_DRAINED, qp.qpn, text))

    def _want_link(self, qp: QueuePair, out: list[Action]) -> None:
        if not qp.wants_link and (self._requesters[qp.qpn].has_work() or self._responders[qp.qpn].jobs):
            qp.wants_link = True
            out.append(WantsLink(qp.qpn))

    # ---- errors --------------------------------------------------------------------------------------------------

    def _fail(self, qp: QueuePair, status: WcStatus, now: int, out: list[Action]) -> None:
        """The queue pair goes to ERR: the oldest send completes with `status`, everything else is flushed."""
        qp.state = QpState.IBV_QPS_ERR
        self._flush(qp, status, now, out)

    def _flush(self, qp: QueuePair, status: WcStatus, now: int, out: list[Action]) -> None:
        qp.wants_link = False
        self._requesters[qp.qpn].flush(status, now, out)
        self._responders[qp.qpn].flush(now, out)
        if qp.srq is not None and not qp.told_last_wqe and self.profile.last_wqe_event:
            qp.told_last_wqe = True
            text = f"QP 0x{qp.qpn:x} is in ERR and takes no more receives from shared receive queue {qp.srq.srqn}"
            out.append(AsyncEvent(AsyncEventType.IBV_EVENT_QP_LAST_WQE_REACHED, qp.qpn, text))

    def cq_overflowed(self, cqn: int, now: int) -> list[Action]:
        """A completion did not fit in its queue: report CQ_ERR and stop every queue pair attached to it."""
        up = [qp for qp in self._qps.values() if cqn in (qp.send_cqn, qp.recv_cqn) and qp.state != _ERR]
        if not up:
            return []  # the flushes of queue pairs that are down already need no second event
        text = f"completion queue {cqn} overflowed: poll it, or make it longer"
        return self._stop(up, AsyncEvent(AsyncEventType.IBV_EVENT_CQ_ERR, cqn, text), now)

    def device_failed(self, now: int) -> list[Action]:
        """The HCA has failed: every queue pair that was set up goes to ERR, and what was posted is flushed."""
        up = [qp for qp in self._qps.values() if qp.state not in (QpState.IBV_QPS_RESET, _ERR)]
        for qp in up:
            qp.last_error = "the HCA has failed"
        return self._stop(up, None, now)

    def ring_broken(self, kind: AsyncEventType, element: int, now: int) -> list[Action]:
        """A work queue's ring in shared memory says what cannot be: report IBV_EVENT_QP_FATAL of the queue pair, or
        IBV_EVENT_SRQ_ERR of the shared receive queue, `element`, and stop every queue pair that takes work from it."""
        if kind == AsyncEventType.IBV_EVENT_SRQ_ERR:
            users = [qp for qp in self._qps.values() if qp.srq is not None and qp.srq.srqn == element]
        else:
            users = [qp for qp in self._qps.values() if qp.qpn == element]
        text = f"the ring of queue {element} claims more requests than it holds: its memory was overwritten"
        for qp in users:
            qp.last_error = text
        return self._stop([qp for qp in users if qp.state != _ERR], AsyncEvent(kind, element, text), now)

    def _stop(self, up: list[QueuePair], event: AsyncEvent | None, now: int) -> list[Action]:
        out: list[Action] = [] if event is None else [event]
        for qp in up:
            qp.state = _ERR
        for qp in up:
            self._fail(qp, WcStatus.IBV_WC_WR_FLUSH_ERR, now, out)
        if self.srqs:
            self.srqs.settle(out)
        return out

    # ---- the timer -----------------------------------------------------------------------------------------------

    def _schedule(self, qpn: int, requester: SendHalf) -> None:
        deadline = requester.next_deadline_ns()
        # An entry that is early is moved when it comes up; only a deadline before it needs a new one.
        queued = requester.queued
        if deadline is not None and (not queued or deadline < queued[0]):
            queued.insert(0, deadline)
            heapq.heappush(self.timers, (deadline, qpn))

    def next_deadline_ns(self) -> int | None:
        """When to send TimerExpired; may be early, never late. None when nothing waits."""
        return self.timers[0][0] if self.timers else None

    def real_deadline_ns(self) -> int | None:
        """As `next_deadline_ns`, but never early: it looks at all that wait."""
        deadlines = []
        for due, qpn in self.timers:
            requester = self._requesters.get(qpn)
            if qpn >= 0:
                deadlines.append(requester.next_deadline_ns() if requester is not None else None)
            elif -qpn in self._responders and self._responders[-qpn].held_until_ns is not None:
                deadlines.append(due)
        return min((at for at in deadlines if at is not None), default=None)

    def _timer_expired(self, now: int, out: list[Action]) -> None:
        while self.timers and self.timers[0][0] <= now:
            due, qpn = heapq.heappop(self.timers)
            if qpn < 0:  # answers or bytes were held
                if (qp := self._qps.get(-qpn)) is not None and self._responders[-qpn].release(now, out):
                    self._want_link(qp, out)
                continue
            requester = self._requesters.get(qpn)
            if requester is None or not requester.queued or requester.queued[0] != due:
                continue  # the queue pair is gone
            del requester.queued[0]
            qp = self._qps[qpn]
            status = requester.on_timer(now)
            self._after_requester(qp, requester, status, now, out)
