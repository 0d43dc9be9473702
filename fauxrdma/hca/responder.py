"""The responder half of an RC queue pair: checks requests, says where their bytes go, acknowledges.

A frame is handled in two steps, because its payload is received straight into its destination. `place` decides, without
changing anything, and leaves its verdict; `finish` commits when the bytes are here. A connection that breaks between
the two leaves the queue pair where it was, and the requester's retransmission meets the same state.

Verdicts follow IBTA vol. 1, 9.7.4: a PSN ahead of the expected one is answered by one NAK (sequence error), one behind
by repeating the acknowledgement (READs are executed again, atomics answered from memory), and a request that is not
allowed by a NAK that ends the queue pair.
"""

from __future__ import annotations

import random
from enum import IntEnum

from fauxrdma.hca.atomics import ATOMIC_BYTES, ATOMIC_REQUESTS, execute_atomic
from fauxrdma.hca.events import Action, AsyncEvent, Complete, SendFrame
from fauxrdma.hca.late_bytes import LateBytes
from fauxrdma.hca.queue_pair import QueuePair
from fauxrdma.hca.responses import HELD_NS, ResponseQueue
from fauxrdma.hca.work_queue import RecvWqe, slice_pieces
from fauxrdma.ib.enums import (
    AccessFlags,
    AethSyndrome,
    AsyncEventType,
    BthOpcode,
    Mtu,
    NakCode,
    QpState,
    WcFlags,
    WcOpcode,
    WcStatus,
)
from fauxrdma.ib.work import MAX_MESSAGE_BYTES, WC, failed
from fauxrdma.memory.regions import Fault, KeyTable
from fauxrdma.memory.spans import Piece, Unreachable, store
from fauxrdma.wire.headers import PSN_MASK, Frame, packets_in, psn_add, psn_diff

__all__ = ["Responder"]

_B = BthOpcode
_INVALIDATE = frozenset((_B.RC_SEND_LAST_WITH_INVALIDATE, _B.RC_SEND_ONLY_WITH_INVALIDATE))
_SENDS = frozenset(range(_B.RC_SEND_FIRST, _B.RC_SEND_ONLY_WITH_IMMEDIATE + 1)) | _INVALIDATE
_REQUESTS = [opcode for opcode in _B if opcode <= _B.RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE or opcode in _INVALIDATE]
# By what the name says: where in its message a frame is, and what it brings besides the payload.
_FIRST = frozenset(opcode for opcode in _REQUESTS if "_FIRST" in opcode.name)
_ONLY = frozenset(opcode for opcode in _REQUESTS if "_ONLY" in opcode.name)
_MIDDLE_OR_LAST = frozenset(_REQUESTS) - _FIRST - _ONLY
_ENDS = frozenset(opcode for opcode in _REQUESTS if "_LAST" in opcode.name) | _ONLY
_IMMEDIATE = frozenset(opcode for opcode in _REQUESTS if opcode.name.endswith("WITH_IMMEDIATE"))
# Plain ints: this is the data path, and operations on enum members take longer than what they are for.
_REMOTE_WRITE = int(AccessFlags.IBV_ACCESS_REMOTE_WRITE)
_REMOTE_READ = int(AccessFlags.IBV_ACCESS_REMOTE_READ)
_REMOTE_ATOMIC = int(AccessFlags.IBV_ACCESS_REMOTE_ATOMIC)
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


class Responder:
    """Receiver state machine of one queue pair. `choices` decides which READs are answered late, and which WRITEs have
    their first bytes land last."""

    __slots__ = (
        "_nak",
        "_nak_sent",
        "_owed",
        "_placed",
        "_receive",
        "_receive_pieces",
        "_verdict",
        "_view",
        "_write",
        "choices",
        "closing",
        "expected_psn",
        "in_message",
        "jobs",
        "keys",
        "late",
        "lid",
        "msn",
        "offset",
        "qp",
    )

    def __init__(self, qp: QueuePair, keys: KeyTable, lid: int, choices: random.Random) -> None:
        self.qp = qp
        self.choices = choices
        self.keys = keys
        self.lid = lid
        self.jobs = ResponseQueue(qp, keys, lid)
        self.late = LateBytes(keys, None if qp.profile.write_bytes_in_order else choices)
        self.reset()

    def reset(self) -> None:
        """Back to the beginning (RESET)."""
        self.expected_psn = 0
        self.msn = 0
        self.in_message: int | None = None  # 0 in a SEND, 1 in a WRITE
        self.offset = 0
        self.jobs.reset()
        self.late.drop()
        self._owed: tuple[int, bool] | None = None  # PSN and patience of the ACK of a WRITE whose first bytes are late
        self._receive: RecvWqe | None = None
        self._receive_pieces: list[Piece] | None = None
        self._write = (0, 0, 0)  # address, length and rkey of the WRITE under way
        self._nak_sent = False
        self._placed: Frame | None = None
        self._verdict = Verdict.SILENT
        self._view: Piece | None = None  # remote memory that the frame being placed names
        # Refused a request while READs before it are being answered: the NAK waits for them, and nothing else is heard.
        self.closing = False
        self._nak: tuple[NakCode, str, WcStatus | None] = (NakCode.INVALID_REQUEST, "", None)

    def start(self) -> None:
        """Entering RTR: take the initial PSN from the attributes."""
        self.expected_psn = self.qp.attr.rq_psn

    # ---- step one: where do the bytes go -------------------------------------------------------------------------

    def place(self, frame: Frame) -> tuple[Piece, ...] | None:
        """The views the payload belongs in, or None to drain it. Leaves the verdict for `finish`."""
        self._view = None
        self._placed = frame
        if self.late.until_ns is not None:
            self.late.put()  # this frame's bytes may belong in the same place
        if not self.receiving or frame.opcode > _LAST_RC_OPCODE:
            self._verdict = Verdict.SILENT
            return None
        ahead = psn_diff(frame.psn, self.expected_psn)
        if ahead:
            self._verdict = Verdict.OUT_OF_SEQUENCE if ahead > 0 else Verdict.DUPLICATE
            return None
        self._verdict = Verdict.ACCEPT
        opcode = frame.opcode
        if opcode == _READ_REQUEST or opcode in ATOMIC_REQUESTS:
            self._place_answered(frame)
            return None
        if frame.mtu and frame.mtu != self.qp.mtu_code and not self._one_packet(frame):
            return None
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

    def _one_packet(self, frame: Frame) -> bool:
        """Of a frame whose sender has another path MTU: whether it is one packet all the same, and not too long. Else
        its packets are longer than ours may be, or a first or middle one is not full (IBTA vol. 1, 9.7.4.1.6)."""
        theirs = Mtu(frame.mtu).nbytes
        if frame.opcode in _ONLY and frame.nbytes <= min(theirs, self.qp.mtu):
            return True
        self._refuse(
            NakCode.INVALID_REQUEST,
            f"{_B(frame.opcode).name} of {frame.nbytes} B in packets of path MTU {theirs}, this queue pair has "
            f"path_mtu {self.qp.mtu}: both ends must agree",
        )
        return False

    def _take_receive(self) -> bool:
        """Make sure a receive request is at hand. False: not ready."""
        if self._receive is None:
            self._receive = self.qp.rq.fetch()
            self._receive_pieces = None
            if self._receive is None:
                self._verdict = Verdict.NOT_READY
        return self._receive is not None

    def _resolve_receive(self) -> bool:
        """The memory of the receive request at hand. False: refused."""
        if self._receive_pieces is not None:
            return True
        assert self._receive is not None
        pieces = []
        for addr, length, lkey in self._receive.sges:
            if length == 0:
                continue
            view = self.keys.local(self.qp.recv_pd, addr, length, lkey, writing=True)
            if isinstance(view, Fault):
                self._refuse_receive(view.reason)
                return False
            pieces.append(view)
        self._receive_pieces = pieces
        return True

    def _refuse_receive(self, reason: str) -> None:
        """The memory of the receive request at hand cannot be used."""
        assert self._receive is not None
        self._refuse(
            NakCode.REMOTE_OPERATIONAL_ERROR,
            f"posted receive wr_id {self._receive.wr_id}: {reason}",
            WcStatus.IBV_WC_LOC_PROT_ERR,
        )

    def _place_send(self, frame: Frame, offset: int) -> tuple[Piece, ...] | None:
        if not self._take_receive() or not self._resolve_receive():
            return None
        assert self._receive_pieces is not None
        room = sum(map(len, self._receive_pieces))
        if offset + frame.nbytes > room:
            self._refuse(
                NakCode.INVALID_REQUEST,
                f"the message needs {offset + frame.nbytes} B or more, the posted receive has {room} B",
                WcStatus.IBV_WC_LOC_LEN_ERR,
            )
            return None
        if frame.opcode in _INVALIDATE:
            fault = self.keys.windows.check_invalidate(self.qp.pd, self.qp.qpn, frame.inv_rkey)
            if fault is not None:
                self._refuse(NakCode.REMOTE_ACCESS_ERROR, f"SEND_WITH_INV: {fault.reason}")
                return None
        return slice_pieces(self._receive_pieces, offset, frame.nbytes)

    def _place_write(self, frame: Frame, offset: int) -> tuple[Piece, ...] | None:
        # Looked up for every frame: the key may have gone since the message began.
        va, total, rkey = (frame.va, frame.dma_len, frame.rkey) if offset == 0 else self._write
        view = self._view = self._resolve(va, total, rkey, _REMOTE_WRITE)
        if self._verdict == Verdict.REFUSE:
            if frame.opcode in _IMMEDIATE and self._take_receive():
                code, reason, _ = self._nak
                self._refuse(code, reason, WcStatus.IBV_WC_LOC_ACCESS_ERR)
            self._verdict = Verdict.REFUSE
            return None
        end = offset + frame.nbytes
        if end > total or (frame.opcode in _ENDS and end != total):
            self._refuse(NakCode.INVALID_REQUEST, f"the WRITE carries {end} B, its RETH said {total} B")
            return None
        # The receive of an immediate tells of it; its memory is not used.
        if frame.opcode in _IMMEDIATE and not self._take_receive():
            return None
        if view is None or not frame.nbytes:
            return ()
        return self.late.split(frame, view) if offset == 0 and total > self.qp.mtu else (view[offset:end],)

    def _place_answered(self, frame: Frame) -> None:
        """A READ or atomic request: nothing to place, but its answer needs room and its memory must be granted."""
        name, limit = _B(frame.opcode).name, self.qp.attr.max_dest_rd_atomic
        if self.in_message is not None:
            self._refuse(NakCode.INVALID_REQUEST, f"{name} inside another message")
        elif self.jobs.outstanding >= limit:
            self._refuse(NakCode.INVALID_REQUEST, f"more READs and atomics outstanding than max_dest_rd_atomic {limit}")
        elif frame.opcode == _READ_REQUEST:
            self._view = self._resolve(frame.va, frame.dma_len, frame.rkey, _REMOTE_READ)
        elif frame.va % ATOMIC_BYTES:
            self._refuse(NakCode.INVALID_REQUEST, f"{name} of address 0x{frame.va:x}, which is not 8-byte aligned")
        else:
            self._view = self._resolve(frame.va, ATOMIC_BYTES, frame.rkey, _REMOTE_ATOMIC)

    def _resolve(self, va: int, length: int, rkey: int, need: int) -> Piece | None:
        """The remote memory of a request. None for zero length (which needs no key) or when refused."""
        qp = self.qp
        if length > MAX_MESSAGE_BYTES:
            self._refuse(NakCode.INVALID_REQUEST, f"a message of {length} B is longer than 2^31")
            return None
        if not qp.attr.qp_access_flags & need:
            self._refuse(
                NakCode.INVALID_REQUEST
                if qp.profile.missing_access_is_invalid_request
                else NakCode.REMOTE_ACCESS_ERROR,
                f"QP 0x{qp.qpn:x} was not given {AccessFlags(need).name} "
                f"(qp_access_flags 0x{qp.attr.qp_access_flags:x}); "
                f"the request was rkey 0x{rkey:x}, range 0x{va:x} + {length} B",
            )
            return None
        if length == 0:
            return None
        view = self.keys.remote(qp.pd, va, length, rkey, need, qp.qpn)
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
        self.jobs.held_until_ns = None
        if self.late.until_ns is not None:
            self._acknowledge_late(out)
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
        if self._verdict == Verdict.REFUSE:
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
        if opcode in ATOMIC_REQUESTS:
            assert self._view is not None
            try:
                original = execute_atomic(opcode, self._view, frame.swap_add, frame.compare)
            except Unreachable as error:
                self._refuse(NakCode.REMOTE_OPERATIONAL_ERROR, str(error))
                return
            self.jobs.add_atomic(frame.psn, original)
            self.expected_psn = psn_add(frame.psn, 1)
            self.msn = (self.msn + 1) & 0xFFFFFF
            return
        if opcode == _READ_REQUEST:
            self.jobs.add_read(frame.psn, frame.va, frame.rkey, frame.dma_len)
            more_follows = not frame.ack_req
            if more_follows and self.qp.profile.writes_overtake_reads and self.choices.getrandbits(1):
                self.jobs.held_until_ns = now + HELD_NS
            self.expected_psn = psn_add(self.expected_psn, packets_in(frame.dma_len, self.qp.mtu))
            self.msn = (self.msn + 1) & 0xFFFFFF
            return
        self.expected_psn = psn_add(self.expected_psn, packets_in(frame.nbytes, self.qp.mtu))
        is_send = opcode in _SENDS
        if opcode in _ENDS:
            length = frame.nbytes if self.in_message is None else self.offset + frame.nbytes
            self.in_message = None
            self.offset = 0
            self.msn = (self.msn + 1) & 0xFFFFFF
            if opcode in _ONLY and not is_send:
                self.late.begun(frame)
            if is_send or opcode in _IMMEDIATE:
                self.late.put()
                self._deliver(frame, is_send, length, now, out)
            elif self.late.ended(now):
                self._owed = (psn_add(self.expected_psn, -1), frame.patient) if frame.ack_req else None
                return
        else:
            if opcode in _FIRST:
                self.in_message = 0 if is_send else 1
                self.offset = 0
                if not is_send:
                    self.late.begun(frame)
                    self._write = (frame.va, frame.dma_len, frame.rkey)
            self.offset += frame.nbytes
        if frame.ack_req:
            self._acknowledge(AethSyndrome.ACK | 0x1F, psn_add(self.expected_psn, -1), out, patient=frame.patient)

    def _acknowledge_late(self, out: list[Action]) -> None:
        """The first bytes of a WRITE follow the others, if they did not yet, and its acknowledgement follows them."""
        self.late.put()
        self.late.until_ns = None
        if self._owed is not None:
            psn, patient = self._owed
            self._owed = None
            self._acknowledge(AethSyndrome.ACK | 0x1F, psn, out, patient=patient)

    def _deliver(self, frame: Frame, is_send: bool, length: int, now: int, out: list[Action]) -> None:
        assert self._receive is not None
        wc = self._wc(self._receive, WcStatus.IBV_WC_SUCCESS, now)
        wc.opcode = WcOpcode.IBV_WC_RECV if is_send else WcOpcode.IBV_WC_RECV_RDMA_WITH_IMM
        wc.byte_len = length
        if frame.opcode in _IMMEDIATE:
            wc.imm_data = frame.imm
            wc.wc_flags = WcFlags.IBV_WC_WITH_IMM
        elif frame.opcode in _INVALIDATE:
            self.keys.windows.invalidate(frame.inv_rkey)
            wc.imm_data = frame.inv_rkey
            wc.wc_flags = WcFlags.IBV_WC_WITH_INV
        wc.slid = frame.slid
        self._receive = None
        self._receive_pieces = None
        out.append(Complete(self.qp.recv_cqn, wc, frame.solicited))

    def _duplicate(self, frame: Frame, out: list[Action]) -> None:
        if frame.opcode == _READ_REQUEST:
            # Executed again (9.7.4.4.1).
            self.jobs.rewind(frame.psn)
            self._verdict = Verdict.ACCEPT
            self._resolve(frame.va, frame.dma_len, frame.rkey, _REMOTE_READ)
            if self._verdict == Verdict.ACCEPT:
                self.jobs.add_read(frame.psn, frame.va, frame.rkey, frame.dma_len, again=True)
            else:
                self.expected_psn = frame.psn  # allowed the first time, and not any more
        elif frame.opcode in ATOMIC_REQUESTS:
            self.jobs.rewind(frame.psn)
            self.jobs.repeat_atomic(frame.psn)
        else:
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

    @property
    def held_until_ns(self) -> int | None:
        """Until when answers, or the first bytes of a WRITE, are held, if they are."""
        return self.jobs.held_until_ns if self.late.until_ns is None else self.late.until_ns

    def release(self, now: int, out: list[Action]) -> bool:
        """The time until which answers or bytes were held has come: whether there are answers to send."""
        if self.late.until_ns is not None and now >= self.late.until_ns:
            self._acknowledge_late(out)
        if self.jobs.held_until_ns is not None and now >= self.jobs.held_until_ns:
            self.jobs.held_until_ns = None
        return bool(self.jobs)

    def next_response(self, max_payload: int) -> Frame | None:
        """The next response, with at most `max_payload` bytes of READ data, or None. A READ whose memory has gone is
        refused: `closing` is set, and nothing is owed any more."""
        try:
            frame = self.jobs.next_frame(max_payload, self.msn)
        except Unreachable as error:
            self._refuse(NakCode.REMOTE_OPERATIONAL_ERROR, str(error))
        else:
            if not isinstance(frame, Fault):
                return frame
            self._refuse(NakCode.REMOTE_ACCESS_ERROR, frame.reason)
        self.expected_psn = self.jobs.next_psn  # the request that is refused is this one, whatever came after it
        self.jobs.clear()
        self.closing = True
        return None

    # ---- memory that goes away -----------------------------------------------------------------------------------

    def land(self, frame: Frame) -> None:
        """Store what was received aside. If that cannot be done `finish` will refuse the frame."""
        if frame is not self._placed or self._verdict != Verdict.ACCEPT:
            return
        try:
            store(frame.aside or ())
        except Unreachable as error:
            if frame.opcode in _SENDS:
                self._refuse_receive(str(error))
            else:
                self._refuse(NakCode.REMOTE_OPERATIONAL_ERROR, str(error))

    def revoke(self, memory: object) -> bool:
        """The region with this memory is deregistered: keep no piece of it. Whether something under way named it.

        Keys are looked up for every frame, so only the frame that is just arriving is refused here.
        """
        arriving = self._placed is not None and self._verdict == Verdict.ACCEPT
        found = False
        if self.late.revoke(memory):
            # All but its first bytes are in place, and it was not acknowledged: this request is the one that failed.
            self._refuse(NakCode.REMOTE_ACCESS_ERROR, "the region was deregistered before all bytes were in place")
            self.expected_psn = psn_add(self.expected_psn, -1)
            self._owed, self.closing, found = None, True, True
        if self._view is not None and self._view.obj is memory:
            self._view = None
            found = True
            if arriving:
                self._refuse(NakCode.REMOTE_ACCESS_ERROR, "the region was deregistered while its bytes arrived")
        if any(piece.obj is memory for piece in self._receive_pieces or ()):
            self._receive_pieces = None
            found = True
            if arriving:
                self._refuse_receive("its memory was deregistered while the message arrived")
        return found

    def flush(self, now: int, out: list[Action]) -> None:
        """Complete every posted receive with WR_FLUSH_ERR; drop READs being answered."""
        self.jobs.clear()
        self.late.drop()
        self._owed = None
        self.closing = False
        self._placed = None  # a frame whose payload is still arriving comes too late
        self.in_message = None
        wqe = self._receive if self._receive is not None else self.qp.rq.fetch()
        self._receive = None
        self._receive_pieces = None
        while wqe is not None:
            out.append(Complete(self.qp.recv_cqn, self._wc(wqe, WcStatus.IBV_WC_WR_FLUSH_ERR, now)))
            wqe = self.qp.rq.fetch()

    def _wc(self, wqe: RecvWqe, status: WcStatus, now: int) -> WC:
        qp = self.qp
        if status != WcStatus.IBV_WC_SUCCESS:
            return failed(wqe.wr_id, status, qp.qpn, now, wqe.index, True)
        return WC(
            wqe.wr_id, status, WcOpcode.IBV_WC_RECV, 0, 0, 0, qp.qpn, qp.dest_qpn, timestamp_ns=now,
            wqe_index=wqe.index, is_receive=True,
        )  # fmt: skip
