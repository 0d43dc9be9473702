"""The two halves of a UC queue pair: connected, ordered, unacknowledged (IBTA vol. 1, 9.8.2 and 9.8.3).

The receiver follows PSNs only inside a message. A FIRST or ONLY packet begins a new one whatever its PSN, and whatever
was under way is forgotten; a MIDDLE or LAST that does not continue the message under way makes that message vanish.
So one lost packet costs one message, and nobody is told.
"""

from __future__ import annotations

import random
from enum import IntEnum

from fauxrdma.hca.events import Action, Complete
from fauxrdma.hca.late_bytes import LateBytes
from fauxrdma.hca.queue_pair import QueuePair
from fauxrdma.hca.unreliable import UnreliableRequester, UnreliableResponder
from fauxrdma.hca.work_queue import SendWqe, slice_pieces
from fauxrdma.ib.enums import AccessFlags, BthOpcode, SendFlags, WcFlags, WcOpcode, WcStatus, WrOpcode
from fauxrdma.ib.work import MAX_MESSAGE_BYTES
from fauxrdma.memory.regions import Fault, KeyTable
from fauxrdma.memory.spans import Piece, Unreachable, load, store
from fauxrdma.wire.headers import Frame, packets_in, psn_add

__all__ = ["UcRequester", "UcResponder"]

_B = BthOpcode
# (only, first, middle, last) by work-request opcode, as plain ints.
_OPCODES: dict[int, tuple[int, int, int, int]] = {
    int(opcode): (int(only), int(first), int(middle), int(last))
    for opcode, only, first, middle, last in (
        (WrOpcode.IBV_WR_SEND, _B.UC_SEND_ONLY, _B.UC_SEND_FIRST, _B.UC_SEND_MIDDLE, _B.UC_SEND_LAST),
        (
            WrOpcode.IBV_WR_SEND_WITH_IMM,
            _B.UC_SEND_ONLY_WITH_IMMEDIATE,
            _B.UC_SEND_FIRST,
            _B.UC_SEND_MIDDLE,
            _B.UC_SEND_LAST_WITH_IMMEDIATE,
        ),
        (
            WrOpcode.IBV_WR_RDMA_WRITE,
            _B.UC_RDMA_WRITE_ONLY,
            _B.UC_RDMA_WRITE_FIRST,
            _B.UC_RDMA_WRITE_MIDDLE,
            _B.UC_RDMA_WRITE_LAST,
        ),
        (
            WrOpcode.IBV_WR_RDMA_WRITE_WITH_IMM,
            _B.UC_RDMA_WRITE_ONLY_WITH_IMMEDIATE,
            _B.UC_RDMA_WRITE_FIRST,
            _B.UC_RDMA_WRITE_MIDDLE,
            _B.UC_RDMA_WRITE_LAST_WITH_IMMEDIATE,
        ),
    )
}
_KNOWN = frozenset(int(o) for o in _B if o.name.startswith("UC_"))
_SENDS = frozenset(int(o) for o in _B if o.name.startswith("UC_SEND_"))
_CONTINUES = frozenset(int(o) for o in _B if o.name.startswith("UC_") and ("MIDDLE" in o.name or "LAST" in o.name))
_ENDS = frozenset(int(o) for o in _B if o.name.startswith("UC_") and ("ONLY" in o.name or "LAST" in o.name))
_ONLY = frozenset(int(o) for o in _B if o.name.startswith("UC_") and "ONLY" in o.name)
_IMMEDIATE = frozenset(int(o) for o in _B if o.name.startswith("UC_") and o.name.endswith("WITH_IMMEDIATE"))
_REMOTE_WRITE = int(AccessFlags.IBV_ACCESS_REMOTE_WRITE)
_SOLICITED = int(SendFlags.IBV_SEND_SOLICITED)


class UcRequester(UnreliableRequester):
    """Sender state machine of one UC queue pair."""

    __slots__ = ()

    _local = frozenset((int(WrOpcode.IBV_WR_BIND_MW),))

    def _check(self, wqe: SendWqe) -> None:
        if wqe.opcode in self._local:
            return
        if wqe.opcode not in _OPCODES:
            self._fail(
                wqe, WcStatus.IBV_WC_LOC_QP_OP_ERR, f"opcode {wqe.opcode} is not a send operation of a UC queue pair"
            )
            return
        self._gather(wqe)
        if wqe.length > MAX_MESSAGE_BYTES:
            self._fail(wqe, WcStatus.IBV_WC_LOC_LEN_ERR, f"a message of {wqe.length} B is longer than 2^31")

    def _cut(self, wqe: SendWqe, max_payload: int) -> Frame:
        qp = self.qp
        only, first, middle, last = _OPCODES[wqe.opcode]
        offset = wqe.sent
        nbytes = min(wqe.length - offset, max_payload)
        ends = offset + nbytes == wqe.length
        opcode = (last if ends else middle) if offset else (only if ends else first)
        frame = Frame(opcode, self.lid, qp.dlid, qp.dest_qpn, self.next_psn, nbytes=nbytes)
        frame.mtu = qp.mtu_code
        if offset == 0:
            frame.va, frame.rkey, frame.dma_len = wqe.remote_addr, wqe.rkey, wqe.length
        pieces = slice_pieces(wqe.pieces, offset, nbytes)
        frame.payload = load(pieces)
        frame.extents = self.keys.extents(pieces, nbytes)
        self.next_psn = psn_add(self.next_psn, packets_in(nbytes, qp.mtu))
        wqe.sent = offset + nbytes
        if ends:
            wqe.cut = True
            frame.imm = wqe.imm
            frame.solicited = bool(wqe.flags & _SOLICITED)
        return frame


class _Verdict(IntEnum):
    """What `place` decided about a frame."""

    ACCEPT = 0
    DROP = 1
    BROKEN = 2


class UcResponder(UnreliableResponder):
    """Receiver state machine of one UC queue pair: `place` decides and changes nothing, `finish` commits. `choices`
    decides of which WRITEs the first bytes land last."""

    __slots__ = ("_fault", "_late", "_placed", "_verdict", "_view", "_write", "expected_psn", "in_message", "offset")

    def __init__(self, qp: QueuePair, keys: KeyTable, lid: int, choices: random.Random) -> None:
        self._late = LateBytes(keys, None if qp.profile.write_bytes_in_order else choices)
        super().__init__(qp, keys, lid)

    def reset(self) -> None:
        """Back to the beginning (RESET)."""
        super().reset()
        self._late.drop()
        self.expected_psn = 0
        self.in_message: bool | None = None  # True in a SEND, False in a WRITE
        self.offset = 0
        self._write: Piece | None = None
        self._placed: Frame | None = None
        self._verdict = _Verdict.DROP
        self._view: Piece | None = None
        self._fault = Fault("")

    # ---- step one: where do the bytes go -------------------------------------------------------------------------

    def place(self, frame: Frame) -> tuple[Piece, ...] | None:
        """The views the payload belongs in, or None to drain it. Leaves the verdict for `finish`."""
        self._placed = frame
        self._view = None
        self._verdict = _Verdict.DROP
        if self._late.until_ns is not None:
            self.release(self._late.until_ns, [])  # this frame's bytes may belong in the same place
        opcode = frame.opcode
        if not self.receiving or opcode not in _KNOWN:
            return None
        if frame.mtu and frame.mtu != self.qp.mtu_code and (opcode not in _ONLY or frame.nbytes > self.qp.mtu):
            self._drop(f"its packets are of another size than this queue pair's path MTU {self.qp.mtu} B")
            return None
        is_send = opcode in _SENDS
        offset = 0
        if opcode in _CONTINUES:
            if self.in_message is not is_send or frame.psn != self.expected_psn:
                return None
            offset = self.offset
        self._verdict = _Verdict.ACCEPT
        return self._place_send(frame, offset) if is_send else self._place_write(frame, offset)

    def _drop(self, reason: str) -> None:
        self._verdict = _Verdict.DROP
        self.qp.last_error = f"dropped a message without a word, as UC does: {reason}"

    def _have_receive(self) -> bool:
        taken = self._take_receive()
        if isinstance(taken, Fault):
            self._verdict = _Verdict.BROKEN
            self._fault = taken
            return False
        if not taken:
            self._drop("no receive was posted")
        return taken

    def _place_send(self, frame: Frame, offset: int) -> tuple[Piece, ...] | None:
        if not self._have_receive():
            return None
        room = sum(map(len, self._pieces))
        if offset + frame.nbytes > room:
            self._drop(f"it needs {offset + frame.nbytes} B or more, the posted receive has {room} B")
            return None
        return slice_pieces(self._pieces, offset, frame.nbytes)

    def _place_write(self, frame: Frame, offset: int) -> tuple[Piece, ...] | None:
        if offset == 0 and frame.opcode not in _CONTINUES:
            self._view = self._resolve(frame)
            if self._verdict != _Verdict.ACCEPT:
                return None
        else:
            self._view = self._write
        total = len(self._view) if self._view is not None else 0
        end = offset + frame.nbytes
        if end > total or (frame.opcode in _ENDS and end != total):
            self._drop(f"the WRITE carries {end} B, its RETH said {total} B")
            return None
        if frame.opcode in _IMMEDIATE and not self._have_receive():
            return None
        if self._view is None or not frame.nbytes:
            return ()
        if offset == 0 and total > self.qp.mtu:
            return self._late.split(frame, self._view)
        return (self._view[offset:end],)

    def _resolve(self, frame: Frame) -> Piece | None:
        """The remote memory of a RETH. None for zero length (which needs no key) or when it is dropped."""
        qp = self.qp
        if not qp.attr.qp_access_flags & _REMOTE_WRITE:
            self._drop(
                f"QP 0x{qp.qpn:x} was not given IBV_ACCESS_REMOTE_WRITE (qp_access_flags 0x{qp.attr.qp_access_flags:x})"
            )
            return None
        if frame.dma_len == 0:
            return None
        if frame.dma_len > MAX_MESSAGE_BYTES:
            self._drop(f"a message of {frame.dma_len} B is longer than 2^31")
            return None
        view = self.keys.remote(qp.pd, frame.va, frame.dma_len, frame.rkey, _REMOTE_WRITE, qp.qpn)
        if isinstance(view, Fault):
            self._drop(view.reason)
            return None
        return view

    # ---- memory that goes away -----------------------------------------------------------------------------------

    def land(self, frame: Frame) -> None:
        """Store what was received aside. If that cannot be done a WRITE vanishes and a receive is broken."""
        if frame is not self._placed or self._verdict != _Verdict.ACCEPT:
            return
        try:
            store(frame.aside or ())
        except Unreachable as error:
            if frame.opcode in _SENDS and self._receive is not None:
                self._verdict = _Verdict.BROKEN
                self._fault = self._broken = Fault(f"posted receive wr_id {self._receive.wr_id}: {error}")
            else:
                self._drop(str(error))

    def revoke(self, memory: object) -> bool:
        """As in UnreliableResponder; a WRITE under way vanishes."""
        found = super().revoke(memory)
        arriving = self._placed is not None and self._verdict == _Verdict.ACCEPT
        if self._broken is not None and found and arriving:
            self._verdict, self._fault = _Verdict.BROKEN, self._broken
        found = self._late.revoke(memory) or found
        if self._write is not None and self._write.obj is memory:
            self._write = self.in_message = None
            found = True
        if self._view is not None and self._view.obj is memory:
            self._view = None
            if arriving:
                self._drop("the region was deregistered while its bytes arrived")
            found = True
        return found

    # ---- step two: the bytes are here ----------------------------------------------------------------------------

    def finish(self, frame: Frame, now: int, out: list[Action]) -> bool:
        """Act on the verdict. Returns True when the queue pair has to go to ERR."""
        if frame is not self._placed or not self.receiving:
            self.in_message = None  # its bytes may lie under those of another frame
            return False
        self._placed = None
        if self._verdict != _Verdict.ACCEPT:
            self.in_message = None
            self._write = None
            if self._verdict == _Verdict.BROKEN:
                self._receive_broken(self._fault, now, out)
                return True
            return False
        self.expected_psn = psn_add(frame.psn, packets_in(frame.nbytes, self.qp.mtu))
        opcode = frame.opcode
        is_send = opcode in _SENDS
        length = frame.nbytes + (self.offset if opcode in _CONTINUES else 0)
        if opcode not in _CONTINUES:
            self._late.begun(frame)
        if opcode not in _ENDS:
            self.in_message = is_send
            self.offset = length
            self._write = self._view
            return False
        self.in_message = None
        self._write = None
        if is_send or opcode in _IMMEDIATE:
            self._late.put()
            self._deliver(frame, is_send, length, now, out)
        else:
            self._late.ended(now)
        return False

    @property
    def held_until_ns(self) -> int | None:
        """Until when the first bytes of a WRITE are held, if they are."""
        return self._late.until_ns

    def release(self, now: int, out: list[Action]) -> bool:
        """That time has come. Nothing is ever answered."""
        self._late.put()
        self._late.until_ns = None
        return False

    def _deliver(self, frame: Frame, is_send: bool, length: int, now: int, out: list[Action]) -> None:
        assert self._receive is not None
        wc = self._wc(self._receive, WcStatus.IBV_WC_SUCCESS, now)
        wc.opcode = WcOpcode.IBV_WC_RECV if is_send else WcOpcode.IBV_WC_RECV_RDMA_WITH_IMM
        wc.byte_len = length
        wc.src_qp = self.qp.dest_qpn
        wc.slid = frame.slid
        if frame.opcode in _IMMEDIATE:
            wc.imm_data = frame.imm
            wc.wc_flags = WcFlags.IBV_WC_WITH_IMM
        self._receive = None
        self._pieces = []
        out.append(Complete(self.qp.recv_cqn, wc, frame.solicited))
