"""The frames of an RC requester: one burst of a message, or the request of a READ or an atomic."""

from __future__ import annotations

from fauxrdma.hca.queue_pair import QueuePair
from fauxrdma.hca.send_work import MESSAGES, REQUEST_OPCODE
from fauxrdma.hca.work_queue import SendWqe, slice_pieces
from fauxrdma.ib.enums import SendFlags, WrOpcode
from fauxrdma.memory.regions import KeyTable
from fauxrdma.memory.spans import load
from fauxrdma.wire.headers import Frame, psn_add

__all__ = ["cut_message", "cut_request"]

_READ = int(WrOpcode.IBV_WR_RDMA_READ)
_COMPARE_SWAP = int(WrOpcode.IBV_WR_ATOMIC_CMP_AND_SWP)
_SEND_WITH_INV = int(WrOpcode.IBV_WR_SEND_WITH_INV)
_SOLICITED = int(SendFlags.IBV_SEND_SOLICITED)


def cut_message(wqe: SendWqe, qp: QueuePair, keys: KeyTable, lid: int, max_payload: int) -> Frame:
    """The next burst of a SEND or WRITE, of at most `max_payload` bytes; advances `wqe.sent`.

    Raises Unreachable, and changes nothing, when the memory it is to be read from is not there any more.
    """
    only, first, middle, last = MESSAGES[wqe.opcode]
    offset, length = wqe.sent, wqe.length
    nbytes = length - offset
    ends = nbytes <= max_payload
    if ends:
        opcode = only if offset == 0 else last
    else:
        nbytes = max_payload
        opcode = first if offset == 0 else middle
    frame = Frame(opcode, lid, qp.dlid, qp.dest_qpn, psn_add(wqe.first_psn, offset // qp.mtu))
    if offset == 0:
        frame.va, frame.rkey, frame.dma_len = wqe.remote_addr, wqe.rkey, length
    frame.nbytes = nbytes
    frame.mtu = qp.mtu_code
    pieces = slice_pieces(wqe.pieces, offset, nbytes)
    frame.payload = load(pieces)
    frame.extents = keys.extents(pieces, nbytes)
    wqe.sent = offset + nbytes
    if ends:
        frame.imm = wqe.imm
        frame.solicited = bool(wqe.flags & _SOLICITED)
        if wqe.opcode == _SEND_WITH_INV:
            frame.inv_rkey = wqe.rkey
    return frame


def cut_request(wqe: SendWqe, qp: QueuePair, lid: int) -> Frame:
    """The request of a READ (of what has not come yet) or of an atomic."""
    done = wqe.received
    opcode = wqe.opcode
    frame = Frame(REQUEST_OPCODE[opcode], lid, qp.dlid, qp.dest_qpn, psn_add(wqe.first_psn, done // qp.mtu), True)
    frame.va, frame.rkey = wqe.remote_addr + done, wqe.rkey
    if opcode == _READ:
        frame.dma_len = wqe.length - done
    elif opcode == _COMPARE_SWAP:
        frame.compare, frame.swap_add = wqe.compare_add, wqe.swap
    else:
        frame.swap_add = wqe.compare_add
    return frame
