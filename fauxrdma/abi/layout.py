"""The shared-memory layout between an application and its HCA daemon; docs/abi.md describes it for other languages.

All numbers are little-endian. Indices are 64-bit and only grow; a slot is `index % entries`. Each index has one writer.
The writer fills the slot first and stores the index after it; a reader loads the index first. (On x86-64 that order
needs no fence; a client for a weaker memory model must release on the store and acquire on the load.)
"""

from __future__ import annotations

import struct

__all__ = [
    "ABI_VERSION",
    "CQE",
    "CQE_BYTES",
    "CQ_HEADER_BYTES",
    "DOORBELL_ENTRIES",
    "DOORBELL_HEADER_BYTES",
    "MAGIC",
    "QP_HEADER_BYTES",
    "RECEIVE_QUEUE_BIT",
    "RECV_WQE",
    "RECV_WQE_BYTES",
    "SEND_WQE",
    "SEND_WQE_BYTES",
    "SGE",
    "SGE_BYTES",
    "SRQ_HEADER_BYTES",
    "QpLayout",
    "SrqLayout",
    "cq_bytes",
    "doorbell_bytes",
]

ABI_VERSION = 2
MAGIC = 0x4D524446  # "FDRM" read as little-endian bytes

SGE = struct.Struct("<QII")
"""addr u64, length u32, lkey u32"""
SGE_BYTES = SGE.size

SEND_WQE = struct.Struct("<QIIQIIIIQQII")
"""wr_id u64, opcode u32, send_flags u32, remote_addr u64, rkey u32, imm u32, num_sge u32, inline_bytes u32,
compare_add u64, swap u64, handle u32, reserved u32. SGEs follow, or the inline data when IBV_SEND_INLINE is set.

By operation: atomics use compare_add and swap. UD sends: handle is the address handle, compare_add the remote queue
pair, swap the remote Q_Key. SEND_WITH_INV and LOCAL_INV: rkey is the key to invalidate. BIND_MW: handle is the window,
rkey its new key, remote_addr and compare_add the range (address, length), imm the region's lkey, swap the access."""
SEND_WQE_BYTES = SEND_WQE.size

RECV_WQE = struct.Struct("<QII")
"""wr_id u64, num_sge u32, reserved u32. SGEs follow."""
RECV_WQE_BYTES = RECV_WQE.size

CQE = struct.Struct("<QIIIIIIIIHHIQQ")
"""wr_id u64, status, opcode, vendor_err, byte_len, imm, qp_num, src_qp, wc_flags u32; pkey_index, slid u16; sl u32;
timestamp_ns u64 (fabric time); wqe_index u64 (its top bit set for receives)."""
CQE_BYTES = CQE.size
RECEIVE_QUEUE_BIT = 1 << 63

# Index positions in each object's header, as offsets in 8-byte words; one cache line (8 words) each.
QP_STATE_WORD = 1
QP_SQ_PRODUCER = 8
QP_RQ_PRODUCER = 16
QP_SQ_CONSUMER = 24
QP_RQ_CONSUMER = 32
QP_HEADER_BYTES = 320

SRQ_PRODUCER = 8
SRQ_CONSUMER = 16
SRQ_DROPPED = 24
SRQ_HEADER_BYTES = 256

CQ_PRODUCER = 8
CQ_CONSUMER = 16
CQ_ARMED = 24
CQ_HEADER_BYTES = 256

DOORBELL_PRODUCER = 8
DOORBELL_CONSUMER = 16
DOORBELL_OVERFLOW = 24
DOORBELL_HEADER_BYTES = 256
DOORBELL_ENTRIES = 4096

ARMED_ANY = 1
ARMED_SOLICITED = 2


class QpLayout:
    """Where things are in a queue pair's memory, from its capacities (counts of requests, SGEs, inline bytes).

    A queue of size 0 still has one slot."""

    __slots__ = ("rq_entries", "rq_offset", "rq_stride", "sq_entries", "sq_offset", "sq_stride", "total_bytes")

    def __init__(self, sq_entries: int, rq_entries: int, send_sge: int, recv_sge: int, inline_bytes: int) -> None:
        self.sq_entries = max(1, sq_entries)
        self.rq_entries = max(1, rq_entries)
        self.sq_stride = _round_up(SEND_WQE_BYTES + max(send_sge * SGE_BYTES, inline_bytes), 64)
        self.rq_stride = _round_up(RECV_WQE_BYTES + recv_sge * SGE_BYTES, 32)
        self.sq_offset = QP_HEADER_BYTES
        self.rq_offset = self.sq_offset + self.sq_entries * self.sq_stride
        self.total_bytes = _round_up(self.rq_offset + self.rq_entries * self.rq_stride, 4096)


class SrqLayout:
    """Where things are in a shared receive queue's memory, from its capacity in receives and SGEs of each."""

    __slots__ = ("entries", "max_sge", "stride", "total_bytes")

    def __init__(self, entries: int, max_sge: int) -> None:
        self.entries = max(1, entries)
        self.max_sge = max_sge
        self.stride = _round_up(RECV_WQE_BYTES + max_sge * SGE_BYTES, 32)
        self.total_bytes = _round_up(SRQ_HEADER_BYTES + self.entries * self.stride, 4096)


def cq_bytes(entries: int) -> int:
    """Size of a completion queue's memory."""
    return _round_up(CQ_HEADER_BYTES + entries * CQE_BYTES, 4096)


def doorbell_bytes() -> int:
    """Size of a context's doorbell memory: u32 queue-pair numbers behind the header."""
    return _round_up(DOORBELL_HEADER_BYTES + DOORBELL_ENTRIES * 4, 4096)


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step
