"""The express lane: a small RDMA WRITE on an idle reliable queue pair, cut and landed in one straight line.

Latency of small messages is what latency-bound programs feel, and the general way through the engine (events, frames,
action lists) costs more than the system calls around it. These two functions do what the general way does with exactly
one case, a WRITE of one packet when nothing else is under way, and decline everything else *before changing anything*:
errors, duplicates, retransmissions and reasons are told by the general way alone. tests/hca/test_express.py holds both
ways to the same frames, memory and state.
"""

from __future__ import annotations

from fauxrdma.hca.events import Action
from fauxrdma.hca.requester import Requester
from fauxrdma.hca.responder import Responder
from fauxrdma.hca.work_queue import SendWqe
from fauxrdma.ib.enums import AccessFlags, QpState, SendFlags, WrOpcode
from fauxrdma.wire.headers import PSN_MASK, SmallWrite, encode_write_only

__all__ = ["cut_small_write", "land_small_write"]

_RTS = QpState.IBV_QPS_RTS
_WRITE = int(WrOpcode.IBV_WR_RDMA_WRITE)
_SIGNALED = int(SendFlags.IBV_SEND_SIGNALED)
_SOLICITED = int(SendFlags.IBV_SEND_SOLICITED)
_FENCE = int(SendFlags.IBV_SEND_FENCE)
_REMOTE_WRITE = int(AccessFlags.IBV_ACCESS_REMOTE_WRITE)


def cut_small_write(requester: Requester, now: int) -> tuple[bytes, int] | None:
    """Take the lone small WRITE that waits in the send queue; the whole frame that carries it, and which memory the
    payload was in (fauxrdma.memory.location). None: not one."""
    qp = requester.qp
    wqes = requester.wqes
    if (
        requester.cut_i != len(wqes)
        or len(wqes) > 64  # a queue that long is not about latency, and bounds what may be unacknowledged
        or qp.state != _RTS
        or requester.rnr_until_ns is not None
        or requester.nak is not None
    ):
        return None
    lone = qp.sq.peek_lone_write(qp.mtu)
    if lone is None:
        return None
    index, wr_id, flags, remote_addr, rkey, source = lone
    if flags & _FENCE:
        return None
    if isinstance(source, bytes):
        view = memoryview(source)
    else:
        found = requester.keys.local(qp.pd, *source, writing=False)
        if not isinstance(found, memoryview):
            return None
        view = found
    qp.sq.advance(index + 1)
    nbytes = len(view)
    psn = requester.next_psn
    requester.next_psn = (psn + 1) & PSN_MASK
    wqes.append(
        SendWqe(
            index, wr_id, _WRITE, flags, (), remote_addr, rkey, 0, None, nbytes, psn, psn, nbytes, True,
            checked=True, begun=True, pieces=[view],
        )
    )  # fmt: skip
    requester.cut_i += 1
    patient = requester.asked_for_acknowledgement(flags)
    if requester.deadline_ns is None:
        requester.restart_timer(now)
    head = encode_write_only(
        requester.lid, qp.dlid, qp.dest_qpn, psn, remote_addr, rkey, nbytes, patient, bool(flags & _SOLICITED),
        qp.mtu_code,
    )  # fmt: skip
    return head + view, requester.keys.location(view)


def land_small_write(responder: Responder, write: SmallWrite, payload: memoryview, out: list[Action]) -> int | None:
    """Put the payload of a WRITE of one packet where it belongs and acknowledge it; which memory that is in. None: it
    is not that simple."""
    slid, _, _, psn, ack_req, patient, va, rkey, nbytes = write
    qp = responder.qp
    if (
        psn != responder.expected_psn
        or responder.in_message is not None
        or responder.late.until_ns is not None
        or not responder.receiving
        or slid != qp.dlid
        or not 0 < nbytes <= qp.mtu
        or not qp.attr.qp_access_flags & _REMOTE_WRITE
    ):
        return None
    view = responder.keys.remote(qp.pd, va, nbytes, rkey, _REMOTE_WRITE, qp.qpn)
    if not isinstance(view, memoryview):
        return None
    view[:] = payload
    responder.landed_one_packet(ack_req, patient, out)
    return responder.keys.location(view)
