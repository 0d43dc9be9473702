"""The requester half of an RC queue pair: cuts work requests into frames, retires them as acknowledgements come.

PSN bookkeeping (IBTA vol. 1, 9.7.2-9.7.5): each work request owns the PSNs `first_psn..last_psn`; a READ owns those of
its responses. `wqes` holds everything fetched and not retired, oldest first; `cut_i` is the request being cut. Going
back N means moving `cut_i` and that request's `sent` back, nothing else: payload is read from the region again.

Requests retire in order. A READ retires when its data is here; an ACK that covers a later request is remembered in
`acked_psn` until then (an ACK is small and may overtake paced READ data on the emulated link).
"""

from __future__ import annotations

from fauxrdma.hca.events import Action, Complete
from fauxrdma.hca.queue_pair import QueuePair
from fauxrdma.hca.work_queue import SendWqe, slice_pieces
from fauxrdma.ib.attributes import RNR_TIMER_NS, ack_timeout_ns
from fauxrdma.ib.enums import AethSyndrome, BthOpcode, NakCode, QpState, SendFlags, WcStatus, WrOpcode
from fauxrdma.ib.work import MAX_MESSAGE_BYTES, WC, WC_OPCODE_OF
from fauxrdma.memory.regions import Fault, KeyTable
from fauxrdma.wire.headers import Frame, packets_in, psn_add, psn_diff

__all__ = ["Requester"]

_B = BthOpcode
# (only, first, middle, last) by work-request opcode.
_OPCODES: dict[int, tuple[int, int, int, int]] = {
    WrOpcode.IBV_WR_SEND: (_B.RC_SEND_ONLY, _B.RC_SEND_FIRST, _B.RC_SEND_MIDDLE, _B.RC_SEND_LAST),
    WrOpcode.IBV_WR_SEND_WITH_IMM: (
        _B.RC_SEND_ONLY_WITH_IMMEDIATE, _B.RC_SEND_FIRST, _B.RC_SEND_MIDDLE, _B.RC_SEND_LAST_WITH_IMMEDIATE,
    ),
    WrOpcode.IBV_WR_RDMA_WRITE: (
        _B.RC_RDMA_WRITE_ONLY, _B.RC_RDMA_WRITE_FIRST, _B.RC_RDMA_WRITE_MIDDLE, _B.RC_RDMA_WRITE_LAST,
    ),
    WrOpcode.IBV_WR_RDMA_WRITE_WITH_IMM: (
        _B.RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE, _B.RC_RDMA_WRITE_FIRST, _B.RC_RDMA_WRITE_MIDDLE,
        _B.RC_RDMA_WRITE_LAST_WITH_IMMEDIATE,
    ),
}  # fmt: skip
_OPCODES = {op: tuple(int(b) for b in bs) for op, bs in _OPCODES.items()}  # type: ignore[misc]

_NAK_STATUS = {
    NakCode.INVALID_REQUEST: WcStatus.IBV_WC_REM_INV_REQ_ERR,
    NakCode.REMOTE_ACCESS_ERROR: WcStatus.IBV_WC_REM_ACCESS_ERR,
    NakCode.REMOTE_OPERATIONAL_ERROR: WcStatus.IBV_WC_REM_OP_ERR,
}
_RTS = QpState.IBV_QPS_RTS
_SQD = QpState.IBV_QPS_SQD
_READ = int(WrOpcode.IBV_WR_RDMA_READ)
_READ_REQUEST = int(BthOpcode.RC_RDMA_READ_REQUEST)
_SIGNALED = int(SendFlags.IBV_SEND_SIGNALED)
_SOLICITED = int(SendFlags.IBV_SEND_SOLICITED)
_FENCE = int(SendFlags.IBV_SEND_FENCE)

# An acknowledgement is asked for at the end of the queue, and at the latest after this much: often enough that the
# timer of a long message sees progress, seldom enough that small messages share one.
_ACK_EVERY_FRAMES = 32
_ACK_EVERY_BYTES = 256 * 1024
_PATIENT_TIMEOUT = 12
"""From this ACK timeout (16.8 ms) on, an acknowledgement nobody waits for may be collected for a millisecond."""
_MAX_UNACKED_PACKETS = 1 << 22
"""Stay far from half the PSN space, where old and new could not be told apart."""


class Requester:
    """Sender state machine. Methods append actions to the list they are given; `fail` is reported to the engine."""

    __slots__ = (
        "_awaited",
        "_frames_since_ack",
        "acked_psn",
        "bytes_since_ack",
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
        self._frames_since_ack = 0
        self._awaited = False  # somebody waits for a completion of what was sent since the last request for an ACK
        self.bytes_since_ack = 0

    def start(self) -> None:
        """Entering RTS: take the initial PSN and the retry counts from the attributes."""
        attr = self.qp.attr
        self.next_psn = attr.sq_psn
        self.acked_psn = psn_add(attr.sq_psn, -1)
        self.retries_left = attr.retry_cnt
        self.rnr_left = attr.rnr_retry

    # ---- sending -------------------------------------------------------------------------------------------------

    @property
    def _timer_is_long(self) -> bool:
        return self.qp.attr.timeout == 0 or self.qp.attr.timeout >= _PATIENT_TIMEOUT

    def has_work(self) -> bool:
        """Whether `next_frame` might yield something now."""
        if self.rnr_until_ns is not None or self.nak is not None:
            return False
        state = self.qp.state
        if state == _RTS:
            return self.cut_i < len(self.wqes) or len(self.qp.sq) > 0
        # SQD: what was begun is finished (and sent again if need be), nothing new is begun.
        return state == _SQD and self.cut_i < len(self.wqes)

    def drained(self) -> bool:
        """Whether everything that was begun is done."""
        return not self.wqes

    def next_frame(self, max_payload: int, now: int) -> Frame | None:
        """Cut the next burst of at most `max_payload` bytes, or None when there is nothing to send just now."""
        qp = self.qp
        if not self.has_work():
            return None
        if self.cut_i < len(self.wqes):
            wqe = self.wqes[self.cut_i]
        else:
            if self.wqes and psn_diff(self.next_psn, self.wqes[0].first_psn) > _MAX_UNACKED_PACKETS:
                return None
            fetched = qp.sq.fetch()
            if fetched is None:
                return None
            wqe = fetched
            self.wqes.append(wqe)
        if not wqe.checked:
            self._check(wqe)
        if wqe.failure is not None:
            if not self._frames_since_ack or self.wqes[self.cut_i - 1].opcode == _READ:
                return None
            # What came before was sent without asking for an acknowledgement, since more was to follow. Ask now, by
            # repeating its last packet: the failure is reported when everything before it has completed.
            wqe = self.wqes[self.cut_i - 1]
            self._go_back(wqe.last_psn)
        is_read = wqe.opcode == _READ
        if self.outstanding_reads and (
            (is_read and self.outstanding_reads >= qp.attr.max_rd_atomic) or (wqe.flags & _FENCE and not wqe.cut)
        ):
            return None
        frame = self._cut_read(wqe) if is_read else self._cut(wqe, max_payload)
        if self.deadline_ns is None:
            self.restart_timer(now)
        return frame

    def _check(self, wqe: SendWqe) -> None:
        """Resolve the local memory of a request and give it its PSNs. On a fault the request carries its failure."""
        wqe.checked = True
        wqe.first_psn = self.next_psn
        wqe.last_psn = self.next_psn
        qp = self.qp
        is_read = wqe.opcode == _READ
        if not is_read and wqe.opcode not in _OPCODES:
            wqe.failure = WcStatus.IBV_WC_LOC_QP_OP_ERR
            qp.last_error = f"opcode {wqe.opcode} is not a send operation of an RC queue pair"
            return
        if is_read and qp.attr.max_rd_atomic == 0:
            wqe.failure = WcStatus.IBV_WC_LOC_QP_OP_ERR
            qp.last_error = "RDMA_READ on a queue pair whose max_rd_atomic is 0"
            return
        if is_read and wqe.inline is not None:
            wqe.failure = WcStatus.IBV_WC_LOC_QP_OP_ERR
            qp.last_error = "RDMA_READ cannot be inline: it needs registered memory to read into"
            return
        if wqe.inline is not None:
            wqe.pieces = [memoryview(wqe.inline)]
            wqe.length = len(wqe.inline)
        else:
            for addr, length, lkey in wqe.sges:
                if length == 0:
                    continue
                view = self.keys.local(qp.pd, addr, length, lkey, writing=is_read)
                if isinstance(view, Fault):
                    wqe.failure = WcStatus.IBV_WC_LOC_PROT_ERR
                    qp.last_error = f"{WrOpcode(wqe.opcode).name} wr_id {wqe.wr_id}: {view.reason}"
                    return
                wqe.pieces.append(view)
                wqe.length += length
        if wqe.length > MAX_MESSAGE_BYTES:
            wqe.failure = WcStatus.IBV_WC_LOC_LEN_ERR
            qp.last_error = f"a message of {wqe.length} B is longer than 2^31"
            return
        packets = packets_in(wqe.length, qp.mtu)
        wqe.last_psn = psn_add(wqe.first_psn, packets - 1)
        self.next_psn = psn_add(self.next_psn, packets)

    def _cut(self, wqe: SendWqe, max_payload: int) -> Frame:
        qp = self.qp
        only, first, middle, last = _OPCODES[wqe.opcode]
        offset, length = wqe.sent, wqe.length
        nbytes = length - offset
        if nbytes > max_payload:
            nbytes = max_payload
            opcode = first if offset == 0 else middle
            ends = False
        else:
            opcode = only if offset == 0 else last
            ends = True
        frame = Frame(opcode, self.lid, qp.dlid, qp.dest_qpn, psn_add(wqe.first_psn, offset // qp.mtu))
        if offset == 0:
            frame.va, frame.rkey, frame.dma_len = wqe.remote_addr, wqe.rkey, length
        frame.nbytes = nbytes
        frame.payload = slice_pieces(wqe.pieces, offset, nbytes)
        wqe.sent = offset + nbytes
        self._frames_since_ack += 1
        self.bytes_since_ack += nbytes
        if ends:
            wqe.cut = True
            self.cut_i += 1
            self._awaited = self._awaited or qp.sq_sig_all or bool(wqe.flags & _SIGNALED)
            frame.imm = wqe.imm
            frame.solicited = bool(wqe.flags & _SOLICITED)
        if (
            (ends and self._is_last())
            or self._frames_since_ack >= _ACK_EVERY_FRAMES
            or self.bytes_since_ack >= _ACK_EVERY_BYTES
        ):
            frame.ack_req = True
            frame.patient = self._ask(ends)
        return frame

    def _ask(self, ends: bool) -> bool:
        """An acknowledgement is asked for by a frame that `ends` a message or not; returns whether it has time.

        Nobody is told when an unsignaled request completes; only the timer wants to know.
        """
        patient = ends and not self._awaited and self._timer_is_long
        self._awaited = False
        self._frames_since_ack = 0
        self.bytes_since_ack = 0
        return patient

    def asked_for_acknowledgement(self, flags: int) -> bool:
        """For the express lane: a whole request with these flags was cut and asks; whether the ACK has time."""
        if flags & _SIGNALED or self.qp.sq_sig_all:
            self._awaited = True
        return self._ask(True)

    def _is_last(self) -> bool:
        """Whether nothing that could carry the request for an acknowledgement follows what was just cut."""
        if self.cut_i < len(self.wqes):
            return self.wqes[self.cut_i].failure is not None
        return not len(self.qp.sq) or self.qp.state == _SQD

    def _cut_read(self, wqe: SendWqe) -> Frame:
        qp = self.qp
        done = wqe.received
        frame = Frame(_READ_REQUEST, self.lid, qp.dlid, qp.dest_qpn, psn_add(wqe.first_psn, done // qp.mtu))
        frame.va, frame.rkey, frame.dma_len = wqe.remote_addr + done, wqe.rkey, wqe.length - done
        frame.ack_req = True
        wqe.cut = True
        self.cut_i += 1
        self.outstanding_reads += 1
        return frame

    def _go_back(self, psn: int) -> None:
        """Make `psn` the next to send."""
        self.outstanding_reads = 0
        self._frames_since_ack = 0
        self.bytes_since_ack = 0
        target = len(self.wqes)
        for i, wqe in enumerate(self.wqes):
            if not wqe.checked:
                target = min(target, i)
                break
            if psn_diff(wqe.last_psn, psn) < 0:
                # Acknowledged or answered, waiting only for an older READ to retire.
                if wqe.opcode == _READ and not wqe.answered:
                    self.outstanding_reads += 1
                continue
            target = min(target, i)
            if wqe.cut or wqe.sent:
                self.retransmits += 1
            wqe.cut = False
            wqe.sent = max(0, psn_diff(psn, wqe.first_psn)) * self.qp.mtu
        self.cut_i = target

    # ---- what comes back -----------------------------------------------------------------------------------------

    def place(self, frame: Frame) -> tuple[memoryview, ...] | None:
        """Where a READ response goes, or None to drop it."""
        wqe = self._read_expecting(frame)
        if wqe is None or wqe.received + frame.nbytes > wqe.length:
            return None
        return slice_pieces(wqe.pieces, wqe.received, frame.nbytes)

    def _read_expecting(self, frame: Frame) -> SendWqe | None:
        """The READ whose next response has this PSN."""
        for wqe in self.wqes:
            if wqe.opcode == _READ and wqe.cut and not wqe.answered:
                expected = psn_add(wqe.first_psn, wqe.received // self.qp.mtu)
                return wqe if frame.psn == expected else None
        return None

    def on_read_response(self, frame: Frame, now: int, out: list[Action]) -> None:
        """A READ response whose payload has been placed."""
        wqe = self._read_expecting(frame)
        if wqe is None or wqe.received + frame.nbytes > wqe.length:
            return
        wqe.received += frame.nbytes
        if wqe.received == wqe.length:
            wqe.answered = True
            self.outstanding_reads -= 1
            self._advance(wqe.last_psn)
        self._progress(now)
        self._retire(now, out)

    def on_ack(self, frame: Frame, note: str, now: int, out: list[Action]) -> WcStatus | None:
        """An ACK, RNR NAK or NAK. Returns the status to fail the oldest request with, when it ends the queue pair."""
        if not self.wqes:
            return None
        kind = frame.syndrome & 0x60
        code = frame.syndrome & 0x1F
        if kind == AethSyndrome.ACK:
            if psn_diff(frame.psn, self.acked_psn) > 0 and psn_diff(self.next_psn, frame.psn) > 0:
                self._advance(frame.psn)
                self._progress(now)
                self._retire(now, out)
            return self.fatal_nak(now, out)
        # Both NAK kinds acknowledge everything before their PSN.
        before = psn_add(frame.psn, -1)
        if psn_diff(before, self.acked_psn) < 0 or psn_diff(self.next_psn, frame.psn) <= 0:
            return None
        if psn_diff(before, self.acked_psn) > 0:
            self._advance(before)
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
        status = (
            _NAK_STATUS.get(NakCode(code), WcStatus.IBV_WC_GENERAL_ERR) if code <= 3 else WcStatus.IBV_WC_GENERAL_ERR
        )
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

    def _advance(self, psn: int) -> None:
        if psn_diff(psn, self.acked_psn) > 0:
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
            if not wqe.checked or wqe.failure is not None:
                break
            if wqe.opcode == _READ:
                if not wqe.answered:
                    break
            elif psn_diff(wqe.last_psn, self.acked_psn) > 0:
                break
            done += 1
            if wqe.flags & _SIGNALED or self.qp.sq_sig_all:
                out.append(Complete(self.qp.send_cqn, self._wc(wqe, WcStatus.IBV_WC_SUCCESS, now)))
        if done:
            del wqes[:done]
            self.cut_i = max(0, self.cut_i - done)
        if not wqes:
            # Nothing left to wait for; a late ACK may even have ended an RNR delay.
            self.deadline_ns = None
            self.rnr_until_ns = None

    def local_failure(self) -> WcStatus | None:
        """The status of the oldest request when it failed locally and everything before it has retired."""
        return self.wqes[0].failure if self.wqes else None

    def _wc(self, wqe: SendWqe, status: WcStatus, now: int) -> WC:
        opcode = WC_OPCODE_OF.get(wqe.opcode, 0)
        return WC(
            wqe.wr_id, status, opcode, 0, wqe.length if wqe.opcode == _READ else 0, 0, self.qp.qpn, self.qp.dest_qpn,
            timestamp_ns=now, wqe_index=wqe.index,
        )  # fmt: skip

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
        if self.deadline_ns is None or now < self.deadline_ns or not self.wqes:
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
        if oldest.opcode == _READ:
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
