"""Work requests of an RC send queue: which frames carry them, and what is checked before the first is sent.

Keys and ranges of local memory are checked when a request is executed, not when it is posted.
"""

from __future__ import annotations

from fauxrdma.hca.atomics import ATOMIC_BYTES
from fauxrdma.hca.queue_pair import QueuePair
from fauxrdma.hca.work_queue import SendWqe
from fauxrdma.ib.enums import AtomicCap, BthOpcode, WcStatus, WrOpcode
from fauxrdma.ib.work import MAX_MESSAGE_BYTES
from fauxrdma.memory.regions import Fault, KeyTable
from fauxrdma.memory.spans import Piece
from fauxrdma.wire.headers import Frame, packets_in

__all__ = ["ANSWERED", "LOCAL", "MESSAGES", "REQUEST_OPCODE", "check_request", "local_pieces", "unexpected"]

_B = BthOpcode
_W = WrOpcode
_MESSAGES: dict[int, tuple[int, int, int, int]] = {
    _W.IBV_WR_SEND: (_B.RC_SEND_ONLY, _B.RC_SEND_FIRST, _B.RC_SEND_MIDDLE, _B.RC_SEND_LAST),
    _W.IBV_WR_SEND_WITH_IMM: (
        _B.RC_SEND_ONLY_WITH_IMMEDIATE, _B.RC_SEND_FIRST, _B.RC_SEND_MIDDLE, _B.RC_SEND_LAST_WITH_IMMEDIATE,
    ),
    _W.IBV_WR_SEND_WITH_INV: (
        _B.RC_SEND_ONLY_WITH_INVALIDATE, _B.RC_SEND_FIRST, _B.RC_SEND_MIDDLE, _B.RC_SEND_LAST_WITH_INVALIDATE,
    ),
    _W.IBV_WR_RDMA_WRITE: (
        _B.RC_RDMA_WRITE_ONLY, _B.RC_RDMA_WRITE_FIRST, _B.RC_RDMA_WRITE_MIDDLE, _B.RC_RDMA_WRITE_LAST,
    ),
    _W.IBV_WR_RDMA_WRITE_WITH_IMM: (
        _B.RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE, _B.RC_RDMA_WRITE_FIRST, _B.RC_RDMA_WRITE_MIDDLE,
        _B.RC_RDMA_WRITE_LAST_WITH_IMMEDIATE,
    ),
}  # fmt: skip
# Plain ints: this is the data path, and operations on enum members take longer than what they are for.
MESSAGES: dict[int, tuple[int, int, int, int]] = {
    int(op): (int(only), int(first), int(middle), int(last)) for op, (only, first, middle, last) in _MESSAGES.items()
}
"""(only, first, middle, last) BTH opcode of the operations that carry a payload, by work-request opcode."""

REQUEST_OPCODE: dict[int, int] = {
    int(_W.IBV_WR_RDMA_READ): int(_B.RC_RDMA_READ_REQUEST),
    int(_W.IBV_WR_ATOMIC_CMP_AND_SWP): int(_B.RC_COMPARE_SWAP),
    int(_W.IBV_WR_ATOMIC_FETCH_AND_ADD): int(_B.RC_FETCH_ADD),
}
"""BTH opcode of the operations that a response answers, by work-request opcode."""

ANSWERED = frozenset(REQUEST_OPCODE)
"""Work-request opcodes that retire by their response, not by an acknowledgement."""

LOCAL = frozenset((int(_W.IBV_WR_LOCAL_INV), int(_W.IBV_WR_BIND_MW)))
"""Work-request opcodes that send nothing: they are executed in order, by this HCA."""

_READ = int(_W.IBV_WR_RDMA_READ)
_ATOMIC_ACKNOWLEDGE = int(_B.RC_ATOMIC_ACKNOWLEDGE)
_ENDS_READ = (int(_B.RC_RDMA_READ_RESPONSE_ONLY), int(_B.RC_RDMA_READ_RESPONSE_LAST))
_BEGINS_READ = (int(_B.RC_RDMA_READ_RESPONSE_ONLY), int(_B.RC_RDMA_READ_RESPONSE_FIRST))
_READ_RESPONSE_ONLY = int(_B.RC_RDMA_READ_RESPONSE_ONLY)


def check_request(wqe: SendWqe, qp: QueuePair, keys: KeyTable) -> int:
    """Resolve the local memory of a request: its `pieces` and `length`. Returns the packets (PSNs) it takes.

    What cannot be executed gets its `failure`, and the queue pair's `last_error` says why.
    """
    opcode = wqe.opcode
    if opcode in LOCAL:
        return 0
    if opcode in ANSWERED:
        name = _W(opcode).name
        if qp.attr.max_rd_atomic == 0:
            return _fail(wqe, qp, WcStatus.IBV_WC_LOC_QP_OP_ERR, f"{name} on a queue pair whose max_rd_atomic is 0")
        if opcode != _READ and qp.profile.attributes.atomic_caps == AtomicCap.IBV_ATOMIC_NONE:
            return _fail(wqe, qp, WcStatus.IBV_WC_LOC_QP_OP_ERR, f"{name} on a device whose atomic_cap is ATOMIC_NONE")
        if wqe.inline is not None:
            return _fail(
                wqe, qp, WcStatus.IBV_WC_LOC_QP_OP_ERR, f"{name} cannot be inline: it needs registered memory for"
                " what comes back",
            )  # fmt: skip
        if opcode != _READ and len(wqe.sges) != 1:
            return _fail(wqe, qp, WcStatus.IBV_WC_LOC_QP_OP_ERR, f"{name} with {len(wqe.sges)} SGEs: it takes one")
    elif opcode not in MESSAGES:
        return _fail(
            wqe, qp, WcStatus.IBV_WC_LOC_QP_OP_ERR, f"opcode {opcode} is not a send operation of an RC queue pair"
        )
    if wqe.inline is not None:
        wqe.pieces = [memoryview(wqe.inline)]
        wqe.length = len(wqe.inline)
    else:
        pieces = local_pieces(wqe, qp, keys)
        if isinstance(pieces, Fault):
            return _fail(wqe, qp, WcStatus.IBV_WC_LOC_PROT_ERR, f"{_W(opcode).name} wr_id {wqe.wr_id}: {pieces.reason}")
        wqe.pieces = pieces
        wqe.length = sum(map(len, pieces))
    if wqe.length > MAX_MESSAGE_BYTES:
        return _fail(wqe, qp, WcStatus.IBV_WC_LOC_LEN_ERR, f"a message of {wqe.length} B is longer than 2^31")
    if opcode in ANSWERED and opcode != _READ and wqe.length != ATOMIC_BYTES:
        return _fail(
            wqe, qp, WcStatus.IBV_WC_LOC_LEN_ERR,
            f"{_W(opcode).name} wr_id {wqe.wr_id} has an SGE of {wqe.length} B: an atomic returns 8 B",
        )  # fmt: skip
    return packets_in(wqe.length, qp.mtu)


def _fail(wqe: SendWqe, qp: QueuePair, status: WcStatus, reason: str) -> int:
    wqe.failure = status
    qp.last_error = reason
    return 0


def local_pieces(wqe: SendWqe, qp: QueuePair, keys: KeyTable) -> list[Piece] | Fault:
    """The memory of a request's scatter/gather list as it is now."""
    pieces: list[Piece] = []
    for addr, length, lkey in wqe.sges:
        if length == 0:
            continue
        view = keys.local(qp.pd, addr, length, lkey, writing=wqe.opcode in ANSWERED)
        if isinstance(view, Fault):
            return view
        pieces.append(view)
    return pieces


def unexpected(frame: Frame, wqe: SendWqe, qp: QueuePair) -> str:
    """Why a response is not one to this request, although its PSN is the one awaited; empty when it is.

    A READ response is as long as the READ or full packets (IBTA vol. 1, 9.7.5.1.5). Its beginning and its end are told
    by the opcode; a first one may also come later, where the request was repeated from.
    """
    name = _B(frame.opcode).name
    if wqe.opcode != _READ:
        return "" if frame.opcode == _ATOMIC_ACKNOWLEDGE else f"{name} where an atomic's response was due"
    if frame.opcode == _ATOMIC_ACKNOWLEDGE:
        return f"{name} where a READ response was due"
    if wqe.received == 0 and frame.opcode not in _BEGINS_READ:
        return f"{name} where a READ response was to begin"
    left = wqe.length - wqe.received
    if frame.nbytes > left or (frame.nbytes == left) != (frame.opcode in _ENDS_READ):
        return f"{name} of {frame.nbytes} B where {left} B of the READ were left"
    if frame.mtu and frame.mtu != qp.mtu_code and (frame.opcode != _READ_RESPONSE_ONLY or frame.nbytes > qp.mtu):
        return f"{name} in packets of another size than this queue pair's path MTU {qp.mtu} B"
    return ""
