"""The requester half of an RC queue pair: cuts work requests into frames, retires them as acknowledgements come.

PSN bookkeeping (IBTA vol. 1, 9.7.2-9.7.5): each work request owns the PSNs `first_psn..last_psn`; a READ owns those of
its responses. `wqes` holds everything fetched and not retired, oldest first; `cut_i` is the request being cut. Going
back N means moving `cut_i` and that request's `sent` back, nothing else: payload is read from the region again.

Requests retire in order. A READ or an atomic retires when its response is here; an ACK that covers a later request is
remembered in `acked_psn` until then (an ACK is small and may overtake paced READ data on the emulated link). LOCAL_INV
and BIND_MW own no PSN: they are executed when their turn comes and retire when everything before them has.
"""

from __future__ import annotations

from fauxrdma.hca.ack_requests import AckRequests
from fauxrdma.hca.atomics import put_word
from fauxrdma.hca.events import Action, Complete
from fauxrdma.hca.local_work import execute_local
from fauxrdma.hca.queue_pair import QueuePair
from fauxrdma.hca.send_frames import cut_message, cut_request
from fauxrdma.hca.send_work import ANSWERED, LOCAL, MESSAGES, check_request, local_pieces, unexpected
from fauxrdma.hca.work_queue import SendWqe, slice_pieces
from fauxrdma.ib.attributes import RNR_TIMER_NS, ack_timeout_ns
from fauxrdma.ib.enums import AethSyndrome, NakCode, QpState, SendFlags, WcStatus, WrOpcode
from fauxrdma.ib.work import WC, WC_OPCODE_OF, failed
from fauxrdma.memory.regions import Fault, KeyTable
from fauxrdma.memory.spans import Piece, Unreachable, store
from fauxrdma.wire.headers import PSN_MASK, Frame, psn_add, psn_diff

__all__ = ["Requester"]

_NAK_STATUS: dict[int, WcStatus] = {
    NakCode.INVALID_REQUEST: WcStatus.IBV_WC_REM_INV_REQ_ERR,
    NakCode.REMOTE_ACCESS_ERROR: WcStatus.IBV_WC_REM_ACCESS_ERR,
    NakCode.REMOTE_OPERATIONAL_ERROR: WcStatus.IBV_WC_REM_OP_ERR,
}
_RTS = QpState.IBV_QPS_RTS
_SQD = QpState.IBV_QPS_SQD
_READ = int(WrOpcode.IBV_WR_RDMA_READ)
_SIGNALED = int(SendFlags.IBV_SEND_SIGNALED)
_FENCE = int(SendFlags.IBV_SEND_FENCE)

_HALF = 1 << 23
"""Not more than half of all PSNs may be outstanding, or old and new could not be told apart (IBTA vol. 1, 9.7.2). A
message of 2^31 B at a path MTU of 256 takes as many."""
_MAX_UNACKED_PACKETS = _HALF >> 1
"""With so many outstanding no request is begun: another as long still fits."""


class Requester:
    """Sender state machine. Methods append actions to the list they are given; `fail` is reported to the engine."""

    __slots__ = (
        "acked_psn",
        "acks",
        "cut_i",
        "deadline_ns",
        "keys",
        "lid",
        "nak",
        "next_psn",
        "outstanding_reads",
        "qp",
        "queued",
        "retransmits",
        "retries_left",
        "rnr_left",
        "rnr_until_ns",
        "wqes",
    )

    def __init__(self, qp: QueuePair, keys: KeyTable, lid: int) -> None:
        self.qp = qp
        self.keys = keys
        self.lid = lid
        self.retransmits = 0
        self.queued: list[int] = []  # this queue pair's entries of the engine's timer heap, earliest first
        self.reset()

    def reset(self) -> None:
        """Back to the beginning; outstanding work is forgotten without completions (RESET)."""
        self.wqes: list[SendWqe] = []
        self.cut_i = 0
        self.next_psn = 0
        self.acked_psn = 0xFFFFFF
        self.outstanding_reads = 0
        self.retries_left = 0
        self.rnr_left = 0
        self.rnr_until_ns: int | None = None
        self.deadline_ns: int | None = None
        self.nak: tuple[int, WcStatus, str] | None = None
        self.acks = AckRequests()

    def start(self) -> None:
        """Entering RTS: take the initial PSN and the retry counts from the attributes."""
        attr = self.qp.attr
        self.next_psn = attr.sq_psn
        self.acked_psn = psn_add(attr.sq_psn, -1)
        self.retries_left = attr.retry_cnt
        self.rnr_left = attr.rnr_retry

    # ---- sending -------------------------------------------------------------------------------------------------

    def has_work(self) -> bool:
        """Whether `next_frame` might yield something now."""
        if self.rnr_until_ns is not None or self.nak is not None:
            return False
        state = self.qp.state
        if state == _RTS:
            return self.cut_i < len(self.wqes) or len(self.qp.sq) > 0
        # SQD: what was begun is finished (and sent again if need be), nothing new is begun.
        return state == _SQD and self.cut_i < len(self.wqes) and self.wqes[self.cut_i].begun

    def drained(self) -> bool:
        """Whether everything that was begun has completed."""
        return not self.wqes or not self.wqes[0].begun

    def next_frame(self, max_payload: int, now: int, out: list[Action]) -> Frame | None:
        """Cut the next burst of at most `max_payload` bytes, or None when there is nothing to send just now. Local
        operations whose turn has come are executed on the way; their completions are appended."""
        qp = self.qp
        while self.has_work():
            wqe = self._current()
            if wqe is None:
                return None
            if wqe.executed:
                self.cut_i += 1
                continue
            if wqe.failure is not None:
                # It is reported when everything before it has completed.
                if self._ask_again():
                    continue
                return None
            if self.outstanding_reads and (
                (wqe.opcode in ANSWERED and self.outstanding_reads >= qp.attr.max_rd_atomic)
                or (wqe.flags & _FENCE and not wqe.cut)
            ):
                return None
            if wqe.opcode in LOCAL:
                self._execute(wqe, now, out)
                continue
            if wqe.opcode in MESSAGES:
                try:
                    frame = self._cut(wqe, max_payload)
                except Unreachable as error:
                    self._lose(wqe, str(error))
                    continue
                wqe.begun = True
            else:
                frame = cut_request(wqe, qp, self.lid)
                wqe.begun = wqe.cut = True
                self.cut_i += 1
                frame.ack_req = self._is_last()
                self.outstanding_reads += 1
            if self.deadline_ns is None:
                self.restart_timer(now)
            return frame
        return None

    def _current(self) -> SendWqe | None:
        """The request whose turn it is, its local memory resolved and its PSNs given."""
        if self.cut_i < len(self.wqes):
            wqe = self.wqes[self.cut_i]
        else:
            if self.wqes and self.next_psn - self.wqes[0].first_psn & PSN_MASK > _MAX_UNACKED_PACKETS:
                return None
            fetched = self.qp.sq.fetch()
            if fetched is None:
                return None
            wqe = fetched
            self.wqes.append(wqe)
        if not wqe.checked:
            packets = check_request(wqe, self.qp, self.keys)
            others = self.next_psn - self.wqes[0].first_psn & PSN_MASK if len(self.wqes) > 1 else 0
            if others and others + packets > _HALF:
                return self._current() if self._ask_again() else None
            wqe.checked = True
            wqe.first_psn = self.next_psn
            # A request that failed stands where its first packet would have been; a local one before it.
            wqe.last_psn = wqe.first_psn if wqe.failure is not None else psn_add(wqe.first_psn, packets - 1)
            self.next_psn = psn_add(self.next_psn, packets)
        elif not wqe.pieces and wqe.length and wqe.opcode in MESSAGES and wqe.failure is None:
            # It had been sent before its memory was deregistered, and now it would have to be sent again.
            self._lose(wqe, "its memory was deregistered before it was acknowledged")
        return wqe

    def _execute(self, wqe: SendWqe, now: int, out: list[Action]) -> None:
        wqe.failure = execute_local(wqe, self.qp, self.keys)
        if wqe.failure is not None:
            return
        wqe.begun = wqe.executed = wqe.cut = True
        self.cut_i += 1
        self.acks.awaited = self.acks.awaited or self.qp.sq_sig_all or bool(wqe.flags & _SIGNALED)
        self._retire(now, out)
        if self._is_last():
            self._ask_again()

    def _ask_again(self) -> bool:
        """What was sent last did not ask for an acknowledgement, since more was to follow, and now nothing does. Ask by
        repeating its last packet; False when no need is."""
        if not self.acks.frames:
            return False
        for wqe in reversed(self.wqes[: self.cut_i]):
            if not wqe.executed:
                if wqe.opcode in ANSWERED:
                    return False
                self._go_back(wqe.last_psn)
                return True
        return False

    def drain(self) -> None:
        """Entering SQD: nothing follows any more that could ask for an acknowledgement."""
        if self.cut_i == len(self.wqes) or not self.wqes[self.cut_i].begun:
            self._ask_again()

    def _cut(self, wqe: SendWqe, max_payload: int) -> Frame:
        qp = self.qp
        frame = cut_message(wqe, qp, self.keys, self.lid, max_payload)
        ends = wqe.sent == wqe.length
        acks = self.acks
        acks.frames += 1
        acks.nbytes += frame.nbytes
        if ends:
            wqe.cut = True
            self.cut_i += 1
            acks.awaited = acks.awaited or qp.sq_sig_all or bool(wqe.flags & _SIGNALED)
        if (ends and self._is_last()) or acks.due:
            frame.ack_req = True
            frame.patient = acks.ask(ends, qp.attr.timeout)
        return frame

    def asked_for_acknowledgement(self, flags: int) -> bool:
        """For the express lane: a whole request with these flags was cut and asks; whether the ACK has time."""
        if flags & _SIGNALED or self.qp.sq_sig_all:
            self.acks.awaited = True
        return self.acks.ask(True, self.qp.attr.timeout)

    def _is_last(self) -> bool:
        """Whether nothing that could carry the request for an acknowledgement follows what was just cut."""
        for wqe in self.wqes[self.cut_i :]:
            if not wqe.executed:
                waits = not wqe.checked  # until less is outstanding
                return wqe.failure is not None or waits or (self.qp.state == _SQD and not wqe.begun)
        return not len(self.qp.sq) or self.qp.state == _SQD

    def _go_back(self, psn: int) -> None:
        """Make `psn` the next to send."""
        self.outstanding_reads = 0
        self.acks.frames = self.acks.nbytes = 0
        target = len(self.wqes)
        for i, wqe in enumerate(self.wqes):
            if not wqe.begun:
                target = min(target, i)
                break
            if wqe.executed:
                continue
            if psn_diff(wqe.last_psn, psn) < 0:
                # Acknowledged or answered, waiting only for an older READ to retire.
                if wqe.opcode in ANSWERED and not wqe.answered:
                    self.outstanding_reads += 1
                continue
            target = min(target, i)
            if wqe.cut or wqe.sent:
                self.retransmits += 1
            wqe.cut = False
            wqe.sent = max(0, psn_diff(psn, wqe.first_psn)) * self.qp.mtu
        self.cut_i = target

    # ---- what comes back -----------------------------------------------------------------------------------------

    def place(self, frame: Frame) -> tuple[Piece, ...] | None:
        """Where a READ response goes, or None to drop it."""
        wqe = self._expecting(frame)
        if wqe is None or wqe.opcode != _READ or unexpected(frame, wqe, self.qp):
            return None
        pieces = local_pieces(wqe, self.qp, self.keys)
        return None if isinstance(pieces, Fault) else slice_pieces(pieces, wqe.received, frame.nbytes)

    def _expecting(self, frame: Frame) -> SendWqe | None:
        """The oldest READ or atomic without its response, if the next packet of that has this frame's PSN."""
        for wqe in self.wqes:
            if wqe.opcode in ANSWERED and wqe.cut and not wqe.answered:
                expected = psn_add(wqe.first_psn, wqe.received // self.qp.mtu)
                return wqe if frame.psn == expected else None
        return None

    def on_response(self, frame: Frame, now: int, out: list[Action]) -> WcStatus | None:
        """A READ response whose payload has been placed, or an atomic's. Returns the status to fail the oldest request
        with, when it ends the queue pair."""
        wqe = self._expecting(frame)
        if wqe is None:
            return self.fatal_nak(now, out)
        problem = unexpected(frame, wqe, self.qp)
        pieces = local_pieces(wqe, self.qp, self.keys)
        if not problem and not isinstance(pieces, Fault):
            pieces = self._land(frame, wqe, pieces)
        if problem or isinstance(pieces, Fault):
            # It acknowledges what came before, all the same.
            self._advance(psn_add(frame.psn, -1))
            self._retire(now, out)
            self.qp.last_error = problem
            if isinstance(pieces, Fault):
                self.qp.last_error = f"the response to wr_id {wqe.wr_id} has no place to go: {pieces.reason}"
                return WcStatus.IBV_WC_LOC_PROT_ERR
            return WcStatus.IBV_WC_BAD_RESP_ERR
        if wqe.opcode == _READ:
            wqe.received += frame.nbytes
        else:
            wqe.received = wqe.length
        if wqe.received == wqe.length:
            wqe.answered = True
            self.outstanding_reads -= 1
            self._advance(wqe.last_psn)
        self._progress(now)
        self._retire(now, out)
        return self.fatal_nak(now, out)

    def on_ack(self, frame: Frame, note: str, now: int, out: list[Action]) -> WcStatus | None:
        """An ACK, RNR NAK or NAK. Returns the status to fail the oldest request with, when it ends the queue pair."""
        if not self.wqes:
            return None
        kind = frame.syndrome & 0x60
        code = frame.syndrome & 0x1F
        if kind == AethSyndrome.ACK:
            if self._is_unacked(frame.psn):
                self.acked_psn = frame.psn
                self._progress(now)
                self._retire(now, out)
            return self.fatal_nak(now, out)
        # Both NAK kinds acknowledge everything before their PSN.
        oldest = self.wqes[0]
        if not self._is_unacked(frame.psn):
            # Stale, unless it ends a READ that is being answered while a later request is acknowledged already.
            if kind == AethSyndrome.RNR_NAK or code == NakCode.PSN_SEQUENCE_ERROR or oldest.opcode not in ANSWERED:
                return None
            begun = self.next_psn - oldest.first_psn & PSN_MASK if oldest.begun else 0
            if frame.psn - oldest.first_psn & PSN_MASK >= begun:
                return None
        before = psn_add(frame.psn, -1)
        if self._is_unacked(before):
            self.acked_psn = before
            self._progress(now)
            self._retire(now, out)
        if kind == AethSyndrome.RNR_NAK:
            if self.qp.attr.rnr_retry != 7:
                if self.rnr_left == 0:
                    self.qp.last_error = f"the receiver had no receive posted, {self.qp.attr.rnr_retry} retries"
                    return WcStatus.IBV_WC_RNR_RETRY_EXC_ERR
                self.rnr_left -= 1
            self._go_back(frame.psn)
            self.rnr_until_ns = now + RNR_TIMER_NS[code]
            self.deadline_ns = None
            return None
        if code == NakCode.PSN_SEQUENCE_ERROR:
            if self.retries_left == 0:
                self.qp.last_error = "the responder kept reporting PSN sequence errors"
                return WcStatus.IBV_WC_RETRY_EXC_ERR
            self.retries_left -= 1
            self._go_back(frame.psn)
            self.restart_timer(now)
            return None
        status = _NAK_STATUS.get(code, WcStatus.IBV_WC_GENERAL_ERR)
        self.nak = (frame.psn, status, note)
        return self.fatal_nak(now, out)

    def fatal_nak(self, now: int, out: list[Action]) -> WcStatus | None:
        """The status of a fatal NAK once everything before its PSN has retired (an older READ may still be filling)."""
        if self.nak is None or not self.wqes:
            return None
        psn, status, note = self.nak
        if psn_diff(self.wqes[0].last_psn, psn) < 0:
            return None
        self.qp.last_error = note or f"the responder refused PSN {psn}"
        return status

    def _is_unacked(self, psn: int) -> bool:
        """Whether a packet with this PSN has its turn after those acknowledged and before those of requests to come."""
        return 0 < psn - self.acked_psn & PSN_MASK < self.next_psn - self.acked_psn & PSN_MASK

    def _advance(self, psn: int) -> None:
        if self._is_unacked(psn):
            self.acked_psn = psn

    def _progress(self, now: int) -> None:
        self.retries_left = self.qp.attr.retry_cnt
        self.rnr_left = self.qp.attr.rnr_retry
        self.restart_timer(now)

    def restart_timer(self, now: int) -> None:
        """Measure the ACK timeout from `now`."""
        timeout_ns = ack_timeout_ns(self.qp.attr.timeout)
        self.deadline_ns = now + timeout_ns if timeout_ns else None

    def _retire(self, now: int, out: list[Action]) -> None:
        """Complete, in order, every request that is done."""
        wqes = self.wqes
        done = 0
        for wqe in wqes:
            if not wqe.begun:
                break
            if wqe.opcode in ANSWERED:
                if not wqe.answered:
                    break
            elif self._is_unacked(wqe.last_psn):
                break
            done += 1
            if wqe.flags & _SIGNALED or self.qp.sq_sig_all:
                out.append(Complete(self.qp.send_cqn, self._wc(wqe, WcStatus.IBV_WC_SUCCESS, now)))
        if done:
            del wqes[:done]
            self.cut_i = max(0, self.cut_i - done)
        if not wqes or not wqes[0].begun:
            # Nothing left to wait for; a late ACK may even have ended an RNR delay.
            self.deadline_ns = None
            self.rnr_until_ns = None

    def local_failure(self) -> WcStatus | None:
        """The status of the oldest request when it failed locally and everything before it has retired."""
        return self.wqes[0].failure if self.wqes else None

    def _wc(self, wqe: SendWqe, status: WcStatus, now: int) -> WC:
        if status != WcStatus.IBV_WC_SUCCESS:
            return failed(wqe.wr_id, status, self.qp.qpn, now, wqe.index)
        return WC(
            wqe.wr_id, status, WC_OPCODE_OF[wqe.opcode], 0, wqe.length if wqe.opcode in ANSWERED else 0, 0,
            self.qp.qpn, self.qp.dest_qpn, timestamp_ns=now, wqe_index=wqe.index,
        )  # fmt: skip

    # ---- memory that goes away -----------------------------------------------------------------------------------

    def _land(self, frame: Frame, wqe: SendWqe, pieces: list[Piece]) -> list[Piece] | Fault:
        """Store what of a response is not in its place yet: an atomic's result, and what was received aside."""
        try:
            if wqe.opcode != _READ:
                put_word(pieces[0], frame.original, self.qp.profile.big_endian_atomic_replies)
            elif frame.aside:
                store(frame.aside)
        except Unreachable as error:
            return Fault(str(error))
        return pieces

    def _lose(self, wqe: SendWqe, reason: str) -> None:
        """A request's own memory is not there any more: it fails when everything before it has completed."""
        wqe.failure = WcStatus.IBV_WC_LOC_PROT_ERR
        wqe.pieces = []
        self.qp.last_error = f"{WrOpcode(wqe.opcode).name} wr_id {wqe.wr_id}: {reason}"

    def revoke(self, memory: object) -> bool:
        """The region with this memory is deregistered: keep no piece of it. Whether a request named it.

        A message that is being sent fails; what had been sent whole stays sent, and its completion tells; a READ or
        atomic fails when its response finds no memory.
        """
        named = [wqe for wqe in self.wqes if any(piece.obj is memory for piece in wqe.pieces)]
        for wqe in named:
            wqe.pieces = []
            if wqe.opcode in MESSAGES and not wqe.cut:
                self._lose(wqe, "its memory was deregistered before it was sent")
        return bool(named)

    # ---- time and errors -----------------------------------------------------------------------------------------

    def next_deadline_ns(self) -> int | None:
        """When `on_timer` wants to be called."""
        return self.rnr_until_ns if self.rnr_until_ns is not None else self.deadline_ns

    def on_timer(self, now: int) -> WcStatus | None:
        """The deadline has come: resend, or return the status to fail with when the retries are used up."""
        if self.rnr_until_ns is not None:
            if now >= self.rnr_until_ns:
                self.rnr_until_ns = None
                self.restart_timer(now)
            return None
        if self.deadline_ns is None or now < self.deadline_ns or self.drained():
            return None
        if self.retries_left == 0:
            attr = self.qp.attr
            self.qp.last_error = (
                f"no acknowledgement from LID {self.qp.dlid} QP 0x{self.qp.dest_qpn:x} within "
                f"{ack_timeout_ns(attr.timeout)} ns after {attr.retry_cnt + 1} tries: the peer or the path is dead"
            )
            return WcStatus.IBV_WC_RETRY_EXC_ERR
        self.retries_left -= 1
        oldest = self.wqes[0]
        if oldest.opcode in ANSWERED:
            # Its PSNs may be acknowledged (by the ACK of a later request) and its data still have been lost.
            self._go_back(psn_add(oldest.first_psn, oldest.received // self.qp.mtu))
        else:
            self._go_back(psn_add(self.acked_psn, 1))
        self.restart_timer(now)
        return None

    def flush(self, status: WcStatus, now: int, out: list[Action]) -> None:
        """Complete the oldest request with `status` (unless that is WR_FLUSH_ERR for all) and the rest flushed."""
        while (wqe := self.qp.sq.fetch()) is not None:
            self.wqes.append(wqe)
        for wqe in self.wqes:
            out.append(Complete(self.qp.send_cqn, self._wc(wqe, status, now)))
            status = WcStatus.IBV_WC_WR_FLUSH_ERR
        self.wqes.clear()
        self.cut_i = 0
        self.outstanding_reads = 0
        self.deadline_ns = None
        self.rnr_until_ns = None
        self.nak = None
