"""Work requests, receive requests, scatter/gather entries and work completions."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fauxrdma.ib.enums import QpType, WcOpcode, WcStatus, WrOpcode

__all__ = ["MAX_MESSAGE_BYTES", "OPERATIONS", "POISON", "SGE", "WC", "WC_OPCODE_OF", "RecvWR", "SendWR", "failed"]

MAX_MESSAGE_BYTES = 1 << 31
"""A message is at most 2^31 bytes (IBTA vol. 1, 9.7.1)."""

WC_OPCODE_OF: dict[int, WcOpcode] = {
    WrOpcode.IBV_WR_RDMA_WRITE: WcOpcode.IBV_WC_RDMA_WRITE,
    WrOpcode.IBV_WR_RDMA_WRITE_WITH_IMM: WcOpcode.IBV_WC_RDMA_WRITE,
    WrOpcode.IBV_WR_SEND: WcOpcode.IBV_WC_SEND,
    WrOpcode.IBV_WR_SEND_WITH_IMM: WcOpcode.IBV_WC_SEND,
    WrOpcode.IBV_WR_RDMA_READ: WcOpcode.IBV_WC_RDMA_READ,
    WrOpcode.IBV_WR_ATOMIC_CMP_AND_SWP: WcOpcode.IBV_WC_COMP_SWAP,
    WrOpcode.IBV_WR_ATOMIC_FETCH_AND_ADD: WcOpcode.IBV_WC_FETCH_ADD,
    WrOpcode.IBV_WR_LOCAL_INV: WcOpcode.IBV_WC_LOCAL_INV,
    WrOpcode.IBV_WR_BIND_MW: WcOpcode.IBV_WC_BIND_MW,
    WrOpcode.IBV_WR_SEND_WITH_INV: WcOpcode.IBV_WC_SEND,
}
"""Completion opcode by work-request opcode."""

_DATAGRAM = frozenset((WrOpcode.IBV_WR_SEND, WrOpcode.IBV_WR_SEND_WITH_IMM))
OPERATIONS: dict[QpType, frozenset[WrOpcode]] = {
    QpType.IBV_QPT_RC: frozenset(WrOpcode),
    QpType.IBV_QPT_UC: _DATAGRAM
    | {WrOpcode.IBV_WR_RDMA_WRITE, WrOpcode.IBV_WR_RDMA_WRITE_WITH_IMM, WrOpcode.IBV_WR_BIND_MW},
    QpType.IBV_QPT_UD: _DATAGRAM,
}
"""What may be posted, by transport (ibv_post_send's table)."""


class HasHandle(Protocol):
    """An address handle, as a work request names it."""

    handle: int


@dataclass(slots=True)
class SGE:
    """One piece of local memory: address, length in bytes, local key."""

    addr: int
    length: int
    lkey: int

    def read(self, length: int, offset: int) -> bytes:
        """A copy of `length` bytes from `offset` of its memory, which is this process's own."""
        return ctypes.string_at(self.addr + offset, length)


@dataclass(slots=True)
class SendWR:
    """A send-queue work request. `imm_data` is the raw 32-bit number whose big-endian bytes travel, unchanged; for
    SEND_WITH_INV and LOCAL_INV it is the rkey to invalidate (`invalidate_rkey`: they share a word in ibv_send_wr).

    `compare_add` and `swap` are the operands of atomics, unsigned 64-bit. `mw` and `bind_info` are BIND_MW's.
    `next_wr` is the request to be posted after this one.
    """

    wr_id: int = 0
    opcode: int = WrOpcode.IBV_WR_SEND
    sg: Sequence[SGE] = ()
    imm_data: int = 0
    send_flags: int = 2
    remote_addr: int = 0
    rkey: int = 0
    ah: HasHandle | None = None
    remote_qpn: int = 0
    remote_qkey: int = 0
    next_wr: SendWR | None = None
    compare_add: int = 0
    swap: int = 0
    mw: Any = None
    bind_info: Any = None

    @property
    def num_sge(self) -> int:
        """Number of scatter/gather entries."""
        return len(self.sg)

    @property
    def invalidate_rkey(self) -> int:
        """The rkey that SEND_WITH_INV or LOCAL_INV invalidates."""
        return self.imm_data

    @invalidate_rkey.setter
    def invalidate_rkey(self, rkey: int) -> None:
        self.imm_data = rkey

    def set_wr_rdma(self, rkey: int, addr: int) -> None:
        """Say where an RDMA operation goes: remote key and remote virtual address."""
        self.rkey = rkey
        self.remote_addr = addr

    def set_wr_ud(self, ah: HasHandle, rqpn: int, rqkey: int) -> None:
        """Say where a datagram goes: address handle, queue pair (0xFFFFFF for a multicast group) and Q_Key (with its
        top bit set: the sender's own)."""
        self.ah = ah
        self.remote_qpn = rqpn
        self.remote_qkey = rqkey

    def set_wr_atomic(self, rkey: int, addr: int, compare_add: int, swap: int = 0) -> None:
        """Say where an atomic goes and its operands: compared with the word or added to it; and stored if equal."""
        self.rkey = rkey
        self.remote_addr = addr
        self.compare_add = compare_add
        self.swap = swap

    def set_bind_wr(self, mw: Any, bind_info: Any) -> None:
        """Say which type 2 window BIND_MW binds (verbs.MW) and to what (verbs.MWBindInfo). `rkey` becomes the window's
        next key, inc_rkey(mw.rkey); set it afterwards to choose another tag."""
        self.mw = mw
        self.bind_info = bind_info
        self.rkey = mw.rkey & 0xFFFFFF00 | (mw.rkey + 1) & 0xFF


@dataclass(slots=True)
class RecvWR:
    """A receive request: where the next incoming SEND goes. No entries are legal for immediates without payload.
    `next_wr` is the request to be posted after this one."""

    wr_id: int = 0
    sg: Sequence[SGE] = ()
    next_wr: RecvWR | None = None


@dataclass(slots=True)
class WC:
    """A work completion. After an error only `wr_id`, `status`, `qp_num` and `vendor_err` mean anything.

    `timestamp_ns` is fabric time. `imm_data` is the sender's 32-bit number, untouched; with IBV_WC_WITH_INV it is the
    rkey that was invalidated.
    """

    wr_id: int = 0
    status: int = WcStatus.IBV_WC_SUCCESS
    opcode: int = 0
    vendor_err: int = 0
    byte_len: int = 0
    imm_data: int = 0
    qp_num: int = 0
    src_qp: int = 0
    wc_flags: int = 0
    pkey_index: int = 0
    slid: int = 0
    sl: int = 0
    timestamp_ns: int = 0
    wqe_index: int = field(default=0, repr=False)
    is_receive: int = field(default=False, repr=False)


POISON = 0xDEADBEEF
"""What the fields of a completion hold that mean nothing after an error (its low half in 16-bit ones): code that reads
them on hardware reads what was there before."""


def failed(
    wr_id: int, status: int, qp_num: int, now: int, wqe_index: int, is_receive: bool = False, vendor_err: int = 0
) -> WC:
    """A completion in error: valid are `wr_id`, `status`, `qp_num` and `vendor_err` (ibv_poll_cq), the rest is POISON.

    `now` (fabric ns), `wqe_index` and `is_receive` are the emulator's own and true.
    """
    short = POISON & 0xFFFF
    return WC(
        wr_id, status, POISON, vendor_err, POISON, POISON, qp_num, POISON, POISON, short, short, POISON, now, wqe_index,
        is_receive,
    )  # fmt: skip
