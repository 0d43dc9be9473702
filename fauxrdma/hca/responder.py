"""The responder half of an RC queue pair: checks requests, says where their bytes go, acknowledges.

A frame is handled in two steps, because its payload is received straight into its destination. `place` decides, without
changing anything, and leaves its verdict; `finish` commits when the bytes are here. A connection that breaks between
the two leaves the queue pair where it was, and the requester's retransmission meets the same state.

Verdicts follow IBTA vol. 1, 9.7.4: a PSN ahead of the expected one is answered by one NAK (sequence error), one behind
by repeating the acknowledgement (READs are executed again), and a request that is not allowed by a NAK that ends the
queue pair.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import IntEnum

from fauxrdma.hca.events import Action, AsyncEvent, Complete, SendFrame
from fauxrdma.hca.queue_pair import QueuePair
from fauxrdma.hca.work_queue import RecvWqe, slice_pieces
from fauxrdma.ib.enums import (
    AccessFlags,
    AethSyndrome,
    AsyncEventType,
    BthOpcode,
    NakCode,
    QpState,
    WcFlags,
    WcOpcode,
    WcStatus,
)
from fauxrdma.ib.work import MAX_MESSAGE_BYTES, WC
from fauxrdma.memory.regions import Fault, KeyTable
from fauxrdma.wire.headers import PSN_MASK, Frame, packets_in, psn_add, psn_diff

__all__ = ["Responder"]

_B = BthOpcode
_SENDS = frozenset(range(_B.RC_SEND_FIRST, _B.RC_SEND_ONLY_WITH_IMMEDIATE + 1))
_FIRST = frozenset((_B.RC_SEND_FIRST, _B.RC_RDMA_WRITE_FIRST))
_MIDDLE_OR_LAST = frozenset(
    (
        _B.RC_SEND_MIDDLE,
        _B.RC_SEND_LAST,
        _B.RC_SEND_LAST_WITH_IMMEDIATE,
        _B.RC_RDMA_WRITE_MIDDLE,
        _B.RC_RDMA_WRITE_LAST,
        _B.RC_RDMA_WRITE_LAST_WITH_IMMEDIATE,
    )
)
_ENDS = frozenset(
    (
        _B.RC_SEND_LAST,
        _B.RC_SEND_LAST_WITH_IMMEDIATE,
        _B.RC_SEND_ONLY,
        _B.RC_SEND_ONLY_WITH_IMMEDIATE,
        _B.RC_RDMA_WRITE_LAST,
        _B.RC_RDMA_WRITE_LAST_WITH_IMMEDIATE,
        _B.RC_RDMA_WRITE_ONLY,
        _B.RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE,
    )
)
_IMMEDIATE = frozenset(
    (
        _B.RC_SEND_LAST_WITH_IMMEDIATE,
        _B.RC_SEND_ONLY_WITH_IMMEDIATE,
        _B.RC_RDMA_WRITE_LAST_WITH_IMMEDIATE,
        _B.RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE,
    )
)
# Plain ints: this is the data path, and operations on enum members take longer than what they are for.
_REMOTE_WRITE = int(AccessFlags.IBV_ACCESS_REMOTE_WRITE)
_REMOTE_READ = int(AccessFlags.IBV_ACCESS_REMOTE_READ)
_READ_REQUEST = int(_B.RC_RDMA_READ_REQUEST)
_LAST_RC_OPCODE = 0x1F
"""Frames of other transports are dropped without a word (IBTA vol. 1, 9.6.1)."""
_RECEIVING = (QpState.IBV_QPS_RTR, QpState.IBV_QPS_RTS, QpState.IBV_QPS_SQD)


class Verdict(IntEnum):
    """What `place` decided about a frame."""

    ACCEPT = 0
    SILENT = 1
    DUPLICATE = 2
    OUT_OF_SEQUENCE = 3
    NOT_READY = 4
    REFUSE = 5


@dataclass(slots=True)
class _ReadJob:
    """A READ being answered: the bytes, the PSN of its first response, how much has been sent."""

    view: memoryview | None
    length: int
    psn: int
    sent: int = 0


class Responder:
    """Receiver state machine of one queue pair."""

    __slots__ = (
        "_nak",
        "_nak_sent",
        "_placed",
        "_receive",
        "_receive_pieces",
        "_verdict",
        "_view",
        "_write",
        "closing",
        "expected_psn",
        "in_message",
        "jobs",
        "keys",
        "lid",
        "msn",
        "offset",
        "qp",
    )

    def __init__(self, qp: QueuePair, keys: KeyTable, lid: int) -> None:
        self.qp = qp
        self.keys = keys
        self.lid = lid
        self.reset()

    def reset(self) -> None:
        """Back to the beginning (RESET)."""
        self.expected_psn = 0
        self.msn = 0
        self.in_message: int | None = None  # 0 in a SEND, 1 in a WRITE
        self.offset = 0
        self.jobs: deque[_ReadJob] = deque()
        self._receive: RecvWqe | None = None
        self._receive_pieces: list[memoryview] = []
        self._write: memoryview | None = None
        self._nak_sent = False
        self._placed: Frame | None = None
        self._verdict = Verdict.SILENT
        self._view: memoryview | None = None
        # Refused a request while READs before it are being answered: the NAK waits for them, and nothing else is heard.
        self.closing = False
        self._nak: tuple[NakCode, str, WcStatus | None] = (NakCode.INVALID_REQUEST, "", None)

    def start(self) -> None:
        """Entering RTR: take the initial PSN from the attributes."""
        self.expected_psn = self.qp.attr.rq_psn

    # ---- step one: where do the bytes go -------------------------------------------------------------------------

    def place(self, frame: Frame) -> tuple[memoryview, ...] | None:
        """The views the payload belongs in, or None to drain it. Leaves the verdict for `finish`."""
        self._view = None
        self._placed = frame
        if not self.receiving or frame.opcode > _LAST_RC_OPCODE:
            self._verdict = Verdict.SILENT
            return None
        ahead = psn_diff(frame.psn, self.expected_psn)
        if ahead:
            self._verdict = Verdict.OUT_OF_SEQUENCE if ahead > 0 else Verdict.DUPLICATE
            return None
        self._verdict = Verdict.ACCEPT
        opcode = frame.opcode
        if opcode == _READ_REQUEST:
            return self._place_read(frame)
        kind = 0 if opcode in _SENDS else 1
        if opcode in _MIDDLE_OR_LAST:
            if self.in_message != kind:
                self._refuse(NakCode.INVALID_REQUEST, f"{_B(opcode).name} without its beginning")
                return None
            offset = self.offset
        else:
            if self.in_message is not None:
                self._refuse(NakCode.INVALID_REQUEST, f"{_B(opcode).name} inside another message")
                return None
            offset = 0
        return self._place_send(frame, offset) if kind == 0 else self._place_write(frame, offset)

    def _refuse(self, code: NakCode, reason: str, receive_status: WcStatus | None = None) -> None:
        self._verdict = Verdict.REFUSE
        self._nak = (code, reason, receive_status)

    def _fetch_receive(self) -> bool:
        """Make sure a receive request is at hand and its memory resolved. False: not ready, or refused."""
        if self._receive is not None:
            return True
        wqe = self.qp.rq.fetch()
        if wqe is None:
            self._verdict = Verdict.NOT_READY
            return False
        self._receive = wqe
        self._receive_pieces = []
        for addr, length, lkey in wqe.sges:
            if length == 0:
                continue
            view = self.keys.local(self.qp.recv_pd, addr, length, lkey, writing=True)
            if isinstance(view, Fault):
                self._refuse(
                    NakCode.REMOTE_OPERATIONAL_ERROR,
                    f"posted receive wr_id {wqe.wr_id}: {view.reason}",
                    WcStatus.IBV_WC_LOC_PROT_ERR,
                )
                return False
            self._receive_pieces.append(view)
        return True

    def _place_send(self, frame: Frame, offset: int) -> tuple[memoryview, ...] | None:
        if not self._fetch_receive():
            return None
        room = sum(map(len, self._receive_pieces))
        if offset + frame.nbytes > room:
            self._refuse(
                NakCode.INVALID_REQUEST,
                f"the message needs {offset + frame.nbytes} B or more, the posted receive has {room} B",
                WcStatus.IBV_WC_LOC_LEN_ERR,
            )
            return None
        return slice_pieces(self._receive_pieces, offset, frame.nbytes)

    def _place_write(self, frame: Frame, offset: int) -> tuple[memoryview, ...] | None:
        if offset == 0:
            view = self._resolve(frame, _REMOTE_WRITE)
            if view is None and self._verdict == Verdict.REFUSE:
                return None
            self._view = view
        else:
            self._view = self._write
        total = len(self._view) if self._view is not None else 0
        end = offset + frame.nbytes
        if end > total or (frame.opcode in _ENDS and end != total):
            self._refuse(NakCode.INVALID_REQUEST, f"the WRITE carries {end} B, its RETH said {total} B")
            return None
        if frame.opcode in _IMMEDIATE and not self._fetch_receive():
            return None
        return (self._view[offset:end],) if self._view is not None and frame.nbytes else ()

    def _place_read(self, frame: Frame) -> tuple[memoryview, ...] | None:
        if self.in_message is not None:
            self._refuse(NakCode.INVALID_REQUEST, "READ request inside another message")
            return None
        if len(self.jobs) >= max(1, self.qp.attr.max_dest_rd_atomic):
            self._refuse(
                NakCode.INVALID_REQUEST,
                f"more READs outstanding than max_dest_rd_atomic {self.qp.attr.max_dest_rd_atomic}",
            )
            return None
        self._view = self._resolve(frame, _REMOTE_READ)
        return () if self._verdict == Verdict.ACCEPT else None

    def _resolve(self, frame: Frame, need: int) -> memoryview | None:
        """The remote memory of a RETH. None for zero length (which needs no key) or when refused."""
        if frame.dma_len > MAX_MESSAGE_BYTES:
            self._refuse(NakCode.INVALID_REQUEST, f"a message of {frame.dma_len} B is longer than 2^31")
            return None
        if not self.qp.attr.qp_access_flags & need:
            self._refuse(
                NakCode.REMOTE_ACCESS_ERROR,
                f"QP 0x{self.qp.qpn:x} was not given {AccessFlags(need).name} "
                f"(qp_access_flags 0x{self.qp.attr.qp_access_flags:x}); "
                f"the request was rkey 0x{frame.rkey:x}, range 0x{frame.va:x} + {frame.dma_len} B",
            )
            return None
        if frame.dma_len == 0:
            return None
        view = self.keys.remote(self.qp.pd, frame.va, frame.dma_len, frame.rkey, need)
        if isinstance(view, Fault):
            self._refuse(NakCode.REMOTE_ACCESS_ERROR, view.reason)
            return None
        return view

    # ---- step two: the bytes are here ----------------------------------------------------------------------------

    @property
    def receiving(self) -> bool:
        """Whether requests are heard at all."""
        return self.qp.state in _RECEIVING and not self.closing

    def landed_one_packet(self, ack_req: bool, patient: bool, out: list[Action]) -> None:
        """For the express lane: the bytes of a WRITE of one packet are in place; advance and acknowledge."""
        self._placed = None  # what another connection had begun to place is overtaken
        self._nak_sent = False
        psn = self.expected_psn
        self.expected_psn = (psn + 1) & PSN_MASK
        self.msn = (self.msn + 1) & PSN_MASK
        if ack_req:
            self._acknowledge(AethSyndrome.ACK | 0x1F, psn, out, patient=patient)

    def finish(self, frame: Frame, now: int, out: list[Action]) -> bool:
        """Act on the verdict. Returns True when the queue pair has to go to ERR (a NAK has been sent)."""
        if frame is not self._placed:
            # Another frame was placed meanwhile (over a connection that replaced a broken one): this one is lost.
            return False
        self._placed = None
        verdict = self._verdict
        if verdict == Verdict.ACCEPT:
            self._accept(frame, now, out)
        elif verdict == Verdict.DUPLICATE:
            self._duplicate(frame, out)
        elif verdict == Verdict.OUT_OF_SEQUENCE:
            if not self._nak_sent:
                self._nak_sent = True
                self._acknowledge(AethSyndrome.NAK | NakCode.PSN_SEQUENCE_ERROR, self.expected_psn, out)
        elif verdict == Verdict.NOT_READY:
            self._nak_sent = True
            self._acknowledge(AethSyndrome.RNR_NAK | self.qp.attr.min_rnr_timer, self.expected_psn, out)
        elif verdict == Verdict.REFUSE:
            if not self.jobs:
                self.refuse_now(now, out)
                return True
            self.closing = True
        return False

    def refuse_now(self, now: int, out: list[Action]) -> None:
        """Send the NAK that ends the queue pair and report why."""
        code, reason, receive_status = self._nak
        self.qp.last_error = reason
        self._acknowledge(AethSyndrome.NAK | code, self.expected_psn, out, reason)
        if receive_status is not None and self._receive is not None:
            out.append(Complete(self.qp.recv_cqn, self._wc(self._receive, receive_status, now)))
            self._receive = None
        else:
            kind = (
                AsyncEventType.IBV_EVENT_QP_ACCESS_ERR
                if code == NakCode.REMOTE_ACCESS_ERROR
                else AsyncEventType.IBV_EVENT_QP_REQ_ERR
            )
            out.append(AsyncEvent(kind, self.qp.qpn, reason))

    def _accept(self, frame: Frame, now: int, out: list[Action]) -> None:
        self._nak_sent = False
        opcode = frame.opcode
        if opcode == _READ_REQUEST:
            self.jobs.append(_ReadJob(self._view, frame.dma_len, frame.psn))
            self.expected_psn = psn_add(self.expected_psn, packets_in(frame.dma_len, self.qp.mtu))
            self.msn = (self.msn + 1) & 0xFFFFFF
            return
        self.expected_psn = psn_add(self.expected_psn, packets_in(frame.nbytes, self.qp.mtu))
        is_send = opcode in _SENDS
        if opcode in _ENDS:
            length = frame.nbytes if self.in_message is None else self.offset + frame.nbytes
            self.in_message = None
            self.offset = 0
            self._write = None
            self.msn = (self.msn + 1) & 0xFFFFFF
            if is_send or opcode in _IMMEDIATE:
                self._deliver(frame, is_send, length, now, out)
        else:
            if opcode in _FIRST:
                self.in_message = 0 if is_send else 1
                self.offset = 0
                self._write = self._view
            self.offset += frame.nbytes
        if frame.ack_req:
            self._acknowledge(AethSyndrome.ACK | 0x1F, psn_add(self.expected_psn, -1), out, patient=frame.patient)

    def _deliver(self, frame: Frame, is_send: bool, length: int, now: int, out: list[Action]) -> None:
        assert self._receive is not None
        wc = self._wc(self._receive, WcStatus.IBV_WC_SUCCESS, now)
        wc.opcode = WcOpcode.IBV_WC_RECV if is_send else WcOpcode.IBV_WC_RECV_RDMA_WITH_IMM
        wc.byte_len = length
        if frame.opcode in _IMMEDIATE:
            wc.imm_data = frame.imm
            wc.wc_flags = WcFlags.IBV_WC_WITH_IMM
        wc.slid = frame.slid
        self._receive = None
        self._receive_pieces = []
        out.append(Complete(self.qp.recv_cqn, wc, frame.solicited))

    def _duplicate(self, frame: Frame, out: list[Action]) -> None:
        if frame.opcode == _READ_REQUEST:
            # Executed again (9.7.4.4.1). The requester went back to this PSN: answers to what lies behind it will be
            # asked for again, too.
            mtu = self.qp.mtu
            self.jobs = deque(
                job for job in self.jobs if psn_diff(psn_add(job.psn, packets_in(job.length, mtu)), frame.psn) <= 0
            )
            self._verdict = Verdict.ACCEPT
            view = self._resolve(frame, _REMOTE_READ)
            if self._verdict == Verdict.ACCEPT:
                self.jobs.append(_ReadJob(view, frame.dma_len, frame.psn))
            return
        self._acknowledge(AethSyndrome.ACK | 0x1F, psn_add(self.expected_psn, -1), out)

    def _acknowledge(self, syndrome: int, psn: int, out: list[Action], note: str = "", patient: bool = False) -> None:
        qp = self.qp
        frame = Frame(
            _B.RC_ACKNOWLEDGE, self.lid, qp.dlid, qp.dest_qpn, psn, syndrome=syndrome, msn=self.msn, patient=patient
        )
        if note:
            # Not on a real wire: the reason travels with the NAK, so that the requester's user can read it.
            text = note.encode()[:1024]
            frame.payload, frame.nbytes = (memoryview(text),), len(text)
        out.append(SendFrame(qp.qpn, frame))

    def next_response(self, max_payload: int) -> Frame | None:
        """The next burst of READ response data, or None."""
        if not self.jobs:
            return None
        job = self.jobs[0]
        qp = self.qp
        nbytes = min(max_payload, job.length - job.sent)
        ends = job.sent + nbytes == job.length
        if job.sent == 0:
            opcode = _B.RC_RDMA_READ_RESPONSE_ONLY if ends else _B.RC_RDMA_READ_RESPONSE_FIRST
        else:
            opcode = _B.RC_RDMA_READ_RESPONSE_LAST if ends else _B.RC_RDMA_READ_RESPONSE_MIDDLE
        frame = Frame(int(opcode), self.lid, qp.dlid, qp.dest_qpn, psn_add(job.psn, job.sent // qp.mtu))
        frame.syndrome, frame.msn = AethSyndrome.ACK | 0x1F, self.msn
        frame.nbytes = nbytes
        if nbytes and job.view is not None:
            frame.payload = (job.view[job.sent : job.sent + nbytes],)
        job.sent += nbytes
        if ends:
            self.jobs.popleft()
        return frame

    def flush(self, now: int, out: list[Action]) -> None:
        """Complete every posted receive with WR_FLUSH_ERR; drop READs being answered."""
        self.jobs.clear()
        self.closing = False
        self.in_message = None
        self._write = None
        wqe = self._receive if self._receive is not None else self.qp.rq.fetch()
        self._receive = None
        self._receive_pieces = []
        while wqe is not None:
            out.append(Complete(self.qp.recv_cqn, self._wc(wqe, WcStatus.IBV_WC_WR_FLUSH_ERR, now)))
            wqe = self.qp.rq.fetch()

    def _wc(self, wqe: RecvWqe, status: WcStatus, now: int) -> WC:
        qp = self.qp
        return WC(
            wqe.wr_id, status, WcOpcode.IBV_WC_RECV, 0, 0, 0, qp.qpn, qp.dest_qpn, timestamp_ns=now, wqe_index=wqe.index
        )
