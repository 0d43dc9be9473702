"""A send request as it goes into the ring: what each operation needs, and what is refused before it is posted.

Refused here is what no queue pair of this kind can ever do; keys, ranges and lengths of memory are checked when the
request is executed, as hardware does.
"""

from __future__ import annotations

import errno
import struct

from fauxrdma.errors import VerbsError
from fauxrdma.ib.enums import MwType, QpType, SendFlags, WrOpcode
from fauxrdma.ib.rnic import IWARP
from fauxrdma.ib.work import OPERATIONS, SendWR

__all__ = ["PLAIN", "check_inline", "datagram_operands", "no_operation", "refused", "special_operands"]

PLAIN = frozenset(
    (
        WrOpcode.IBV_WR_RDMA_WRITE,
        WrOpcode.IBV_WR_RDMA_WRITE_WITH_IMM,
        WrOpcode.IBV_WR_SEND,
        WrOpcode.IBV_WR_SEND_WITH_IMM,
        WrOpcode.IBV_WR_RDMA_READ,
    )
)
"""Operations whose operands are what SendWR calls them; the others need `special_operands`."""

_ATOMICS = (WrOpcode.IBV_WR_ATOMIC_CMP_AND_SWP, WrOpcode.IBV_WR_ATOMIC_FETCH_AND_ADD)
_INLINE = int(SendFlags.IBV_SEND_INLINE)
_CARRIES_DATA = frozenset(
    (
        WrOpcode.IBV_WR_RDMA_WRITE,
        WrOpcode.IBV_WR_RDMA_WRITE_WITH_IMM,
        WrOpcode.IBV_WR_SEND,
        WrOpcode.IBV_WR_SEND_WITH_IMM,
        WrOpcode.IBV_WR_SEND_WITH_INV,
    )
)

Operands = tuple[int, int, int, int, int, int]
"""remote_addr, rkey, imm, compare_add, swap, handle, as in the ABI's send request."""


def refuse(reason: str) -> VerbsError:
    """EINVAL of ibv_post_send."""
    return VerbsError(errno.EINVAL, f"Failed to post send: {reason}")


def refused(what: str, error: VerbsError | struct.error, bad_wr: object) -> VerbsError:
    """What a post that stopped at `bad_wr` raises: a number that does not fit its field in struct ibv_send_wr,
    ibv_recv_wr or ibv_sge is EINVAL."""
    if not isinstance(error, VerbsError):
        error = VerbsError(errno.EINVAL, f"Failed to post {what}: {bad_wr!r} has a number out of its range ({error})")
    error.bad_wr = bad_wr
    return error


def no_operation(opcode: int, qp_type: QpType, transport: str) -> VerbsError:
    """EINVAL for an operation that a queue pair of this type does not have."""
    try:
        name = WrOpcode(opcode).name
    except ValueError:
        name = f"opcode {opcode!r}"
    where = " on iWARP" if opcode in OPERATIONS[qp_type] and transport == IWARP else ""
    return refuse(f"{name} is not an operation of {qp_type.name} queue pairs{where}")


def check_inline(wr: SendWR) -> None:
    """Raise VerbsError(EINVAL) when an operation that sends no data of its own is to be inline."""
    if wr.opcode not in _CARRIES_DATA:
        raise refuse(f"{WrOpcode(wr.opcode).name} cannot be inline: it sends no data")


def datagram_operands(wr: SendWR) -> Operands:
    """Operands of a UD send. Raises VerbsError(EINVAL) without an address handle."""
    if wr.ah is None:
        raise refuse("a UD request needs an address handle: call set_wr_ud first")
    return 0, 0, wr.imm_data, wr.remote_qpn & 0xFFFFFF, wr.remote_qkey & 0xFFFFFFFF, wr.ah.handle


def special_operands(wr: SendWR, of_type_1: bool = False) -> Operands:
    """Operands of an atomic, an invalidation or a bind. Raises VerbsError(EINVAL) for those that cannot be.

    `of_type_1`: the bind comes from `QP.bind_mw`, the only way to bind a type 1 window and none to bind another.
    """
    if wr.opcode in _ATOMICS:
        for name, value in (("compare_add", wr.compare_add), ("swap", wr.swap)):
            if not 0 <= value < 1 << 64:
                raise refuse(f"{name} is {value}, an atomic's operand is an unsigned 64-bit number")
        return wr.remote_addr, wr.rkey, 0, wr.compare_add, wr.swap, 0
    if wr.opcode != WrOpcode.IBV_WR_BIND_MW:
        return 0, wr.imm_data, 0, 0, 0, 0
    mw, info = wr.mw, wr.bind_info
    if mw is None or info is None:
        raise refuse("IBV_WR_BIND_MW without a window: call set_bind_wr first")
    if (mw.mw_type == MwType.IBV_MW_TYPE_1) is not of_type_1:
        raise refuse(
            "a type 1 window is bound by QP.bind_mw, not by a posted request"
            if not of_type_1
            else "QP.bind_mw binds type 1 windows; post IBV_WR_BIND_MW for type 2"
        )
    return info.addr, wr.rkey, info.mr.lkey, info.length, info.mw_access_flags, mw.handle
