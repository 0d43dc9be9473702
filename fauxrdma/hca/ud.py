"""The two halves of a UD queue pair, and address handles: one packet per message, to anybody (IBTA vol. 1, 9.8.4).

Where a datagram goes stands in its work request: an address handle, the remote queue pair and its Q_Key. The receiver
finds 40 bytes for the global route header in front of the payload, filled when the packet had one. A datagram that
nobody can use is dropped and counted in :class:`~fauxrdma.hca.port.PortCounters`.
"""

from __future__ import annotations

from dataclasses import dataclass

from fauxrdma.hca.events import Action, Complete
from fauxrdma.hca.port import Port
from fauxrdma.hca.queue_pair import QueuePair
from fauxrdma.hca.unreliable import UnreliableRequester, UnreliableResponder
from fauxrdma.hca.work_queue import SendWqe, slice_pieces
from fauxrdma.ib.attributes import AHAttr
from fauxrdma.ib.enums import BthOpcode, GidType, SendFlags, WcFlags, WcStatus, WrOpcode
from fauxrdma.memory.regions import Fault, KeyTable, ProtectionDomain
from fauxrdma.memory.spans import Piece, Unreachable, load
from fauxrdma.wire.grh import GRH_BYTES, Grh, gid_bytes
from fauxrdma.wire.headers import Frame, psn_add

__all__ = ["MULTICAST_QPN", "AddressHandle", "UdRequester", "UdResponder", "is_datagram"]

MULTICAST_QPN = 0xFFFFFF
"""The destination queue pair of a multicast datagram (IBTA vol. 1, 9.6.1.2)."""

_OPCODES = {
    int(WrOpcode.IBV_WR_SEND): int(BthOpcode.UD_SEND_ONLY),
    int(WrOpcode.IBV_WR_SEND_WITH_IMM): int(BthOpcode.UD_SEND_ONLY_WITH_IMMEDIATE),
}
_WITH_IMM = int(BthOpcode.UD_SEND_ONLY_WITH_IMMEDIATE)
_SOLICITED = int(SendFlags.IBV_SEND_SOLICITED)
_OWN_QKEY = 1 << 31
"""A Q_Key with this bit in a work request stands for the queue pair's own (IBTA vol. 1, 10.2.5)."""


def is_datagram(opcode: int) -> bool:
    """Whether a frame with this BTH opcode is of UD."""
    return opcode >> 5 == 3


@dataclass(slots=True, eq=False)
class AddressHandle:
    """Where datagrams may be sent, made once and used by any queue pair of its protection domain."""

    handle: int
    pd: ProtectionDomain
    attr: AHAttr


class UdRequester(UnreliableRequester):
    """Sender state machine of one UD queue pair."""

    __slots__ = ("_handles", "_port")

    def __init__(self, qp: QueuePair, keys: KeyTable, port: Port, handles: dict[int, AddressHandle]) -> None:
        self._port = port
        self._handles = handles
        super().__init__(qp, keys, port.lid)

    def destination(self) -> int:
        """The LID that the next datagram goes to; 0 when there is none or it cannot be sent."""
        wqe = self.current() if self.has_work() else None
        if wqe is None or wqe.failure is not None:
            return 0
        handle = self._handles.get(wqe.handle)
        return handle.attr.dlid if handle is not None else 0

    def _check(self, wqe: SendWqe) -> None:
        if wqe.opcode not in _OPCODES:
            self._fail(
                wqe, WcStatus.IBV_WC_LOC_QP_OP_ERR, f"opcode {wqe.opcode} is not a send operation of a UD queue pair"
            )
        elif self._address(wqe) is not None:
            self._gather(wqe)
            if wqe.length > self._port.mtu:
                self._fail(
                    wqe, WcStatus.IBV_WC_LOC_LEN_ERR,
                    f"a datagram of {wqe.length} B is longer than the port's MTU of {self._port.mtu} B",
                )  # fmt: skip

    def _address(self, wqe: SendWqe) -> AddressHandle | None:
        """The request's address handle; None, and the request has failed, when it is not one it may use."""
        handle = self._handles.get(wqe.handle)
        if handle is None:
            self._fail(wqe, WcStatus.IBV_WC_LOC_QP_OP_ERR, f"there is no address handle {wqe.handle} (any more)")
        elif handle.pd is not self.qp.pd:
            self._fail(
                wqe, WcStatus.IBV_WC_LOC_QP_OP_ERR,
                f"address handle {wqe.handle} belongs to another protection domain than the queue pair",
            )  # fmt: skip
            handle = None
        elif handle.attr.sgid_index >= len(self._port.gids):
            self._fail(
                wqe, WcStatus.IBV_WC_LOC_QP_OP_ERR,
                f"address handle {wqe.handle} has sgid_index {handle.attr.sgid_index}, which the port has no more",
            )  # fmt: skip
            handle = None
        return handle

    def next_frame(self, max_payload: int, now: int, out: list[Action]) -> Frame | None:
        """The next datagram; follow it by `handed_over`."""
        wqe = self.current() if self.has_work() else None
        # The handle may have been destroyed since the request was looked at.
        if wqe is None or wqe.failure is not None or self._address(wqe) is None:
            return None
        return super().next_frame(max_payload, now, out)

    def _cut(self, wqe: SendWqe, max_payload: int) -> Frame:
        qp, port = self.qp, self._port
        address = self._handles[wqe.handle].attr
        qkey = qp.attr.qkey if wqe.swap & _OWN_QKEY else wqe.swap
        frame = Frame(
            _OPCODES[wqe.opcode], self.lid, address.dlid, wqe.compare_add & 0xFFFFFF, self.next_psn,
            solicited=bool(wqe.flags & _SOLICITED), imm=wqe.imm, nbytes=wqe.length, qkey=qkey, src_qpn=qp.qpn,
            sl=address.sl,
        )  # fmt: skip
        pieces = slice_pieces(wqe.pieces, 0, wqe.length)
        frame.payload = load(pieces)
        frame.extents = self.keys.extents(pieces, wqe.length)
        sgid, gid_type = port.gids[address.sgid_index]
        if address.is_global or gid_type != GidType.IBV_GID_TYPE_IB:
            behind = Grh.payload_bytes_of(wqe.length, frame.opcode == _WITH_IMM, gid_type)
            frame.grh = Grh(
                sgid, gid_bytes(address.dgid), behind, address.hop_limit, address.traffic_class, address.flow_label,
                gid_type,
            ).to_bytes()  # fmt: skip
        self.next_psn = psn_add(self.next_psn, 1)
        wqe.sent = wqe.length
        wqe.cut = True
        return frame


class UdResponder(UnreliableResponder):
    """Receiver state machine of one UD queue pair."""

    __slots__ = ("_port",)

    def __init__(self, qp: QueuePair, keys: KeyTable, port: Port) -> None:
        self._port = port
        super().__init__(qp, keys, port.lid)

    def place(self, frame: Frame) -> tuple[memoryview, ...] | None:
        """Nowhere: datagrams are received by :class:`~fauxrdma.hca.datagrams.Datagrams`, other frames not at all."""
        return None

    def finish(self, frame: Frame, now: int, out: list[Action]) -> bool:
        """Deliver a datagram whose payload is in the frame. Returns True when the queue pair has to go to ERR."""
        qp, counters = self.qp, self._port.counters
        if not self.receiving or not is_datagram(frame.opcode):
            return False
        if frame.qkey != qp.attr.qkey:
            counters.qkey_violations += 1
            qp.last_error = (
                f"dropped a datagram of QP 0x{frame.src_qpn:x} at LID {frame.slid}: its Q_Key 0x{frame.qkey:x} is not"
                f" this queue pair's 0x{qp.attr.qkey:x}"
            )
            return False
        taken = self._take_receive()
        if isinstance(taken, Fault):
            self._receive_broken(taken, now, out)
            return True
        if not taken:
            counters.no_receive += 1
            qp.last_error = f"dropped a datagram of QP 0x{frame.src_qpn:x}: no receive was posted"
            return False
        room = sum(map(len, self._pieces))
        if GRH_BYTES + frame.nbytes > room:
            counters.receive_too_short += 1
            qp.last_error = (
                f"dropped a datagram of {frame.nbytes} B: with the {GRH_BYTES} B in front of it it needs"
                f" {GRH_BYTES + frame.nbytes} B, the posted receive has {room} B"
            )
            return False
        try:
            if frame.grh:
                _fill(slice_pieces(self._pieces, 0, GRH_BYTES), frame.grh)
            pieces = slice_pieces(self._pieces, GRH_BYTES, frame.nbytes)
            for payload in frame.payload:
                _fill(pieces, payload)
            frame.extents += self.keys.extents(pieces, frame.nbytes)
        except Unreachable as error:
            assert self._receive is not None
            fault = Fault(f"posted receive wr_id {self._receive.wr_id}: {error}")
            self._receive_broken(fault, now, out)
            return True
        self._deliver(frame, now, out)
        return False

    def land(self, frame: Frame) -> None:
        """Nothing is received aside: every datagram has a buffer of its own first."""

    def _deliver(self, frame: Frame, now: int, out: list[Action]) -> None:
        assert self._receive is not None
        wc = self._wc(self._receive, WcStatus.IBV_WC_SUCCESS, now)
        wc.byte_len = GRH_BYTES + frame.nbytes
        wc.src_qp, wc.sl = frame.src_qpn, frame.sl
        wc.slid = 0 if self._port.ethernet else frame.slid
        wc.pkey_index = self.qp.attr.pkey_index
        flags = int(WcFlags.IBV_WC_GRH) if frame.grh else 0
        if frame.opcode == _WITH_IMM:
            wc.imm_data = frame.imm
            flags |= WcFlags.IBV_WC_WITH_IMM
        wc.wc_flags = flags
        self._receive = None
        self._pieces = []
        out.append(Complete(self.qp.recv_cqn, wc, frame.solicited))


def _fill(views: tuple[Piece, ...], data: bytes | memoryview) -> None:
    """Lay `data` into views of the same total length."""
    at = 0
    for view in views:
        view[:] = data[at : at + len(view)]
        at += len(view)
