"""InfiniBand transport headers as fixed structs, and the frame that carries them between HCA daemons.

A frame on the TCP stream between two daemons is::

    frame header  24 B   fauxrdma's own: lengths, LIDs, service level, the sender's path MTU, modelled times
    GRH           40 B   on UD frames that have one (8.3; see wire/grh.py), told by a bit of the frame header
    BTH           12 B   base transport header        (IBTA vol. 1, 9.2)
    RETH          16 B   on the first frame of an RDMA WRITE and on READ requests (9.3.3)
    AETH           4 B   on acknowledgements and READ responses (9.3.5)
    ImmDt          4 B   on ... WITH_IMMEDIATE (9.3.6)
    DETH           8 B   on every UD frame (9.3.2): Q_Key, source queue pair
    AtomicETH     28 B   on COMPARE_SWAP and FETCH_ADD (9.3.4)
    AtomicAckETH   8 B   on ATOMIC_ACKNOWLEDGE, behind the AETH (9.3.7): the original value
    IETH           4 B   on ... WITH_INVALIDATE (9.3.8): the R_Key
    payload        n B

in network byte order throughout. One frame stands for ``ceil(n / MTU)`` packets (at least one): the PSN advances by
that many, so that packet counts, PSN wrap and go-back-N are those of the real protocol while Python touches bursts of
up to a megabyte.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from fauxrdma.errors import RemoteProtocolError
from fauxrdma.ib.enums import BthOpcode
from fauxrdma.wire.grh import GRH_BYTES

__all__ = [
    "AETH_BYTES",
    "BTH_BYTES",
    "FRAME_HEADER_BYTES",
    "MAX_HEADER_BYTES",
    "MAX_PAYLOAD_BYTES",
    "PSN_MASK",
    "WRITE_ONLY_BYTES",
    "Frame",
    "SmallWrite",
    "decode_header",
    "decode_write_only",
    "encode_header",
    "encode_write_only",
    "frame_lengths",
    "header_bytes",
    "is_acknowledgement",
    "packets_in",
    "psn_add",
    "psn_diff",
]

PSN_MASK = 0xFFFFFF
"""Packet sequence numbers are 24 bits and wrap."""

MAX_PAYLOAD_BYTES = 4 * 1024 * 1024
"""Largest payload of one frame; a longer one is refused and the connection closed."""

_FRAME = struct.Struct("!BBHIHHIQ")
# magic, header bytes, flags, payload bytes, source LID, destination LID, modelled ns on the way, modelled arrival ns
_BTH = struct.Struct("!BBHII")
_RETH = struct.Struct("!QII")
_AETH = struct.Struct("!I")
_IMM = struct.Struct("!I")
_DETH = struct.Struct("!II")
_ATOMIC = struct.Struct("!QIQQ")
_ORIGINAL = struct.Struct("!Q")

FRAME_HEADER_BYTES = _FRAME.size
BTH_BYTES = _BTH.size
AETH_BYTES = _AETH.size
MAX_HEADER_BYTES = 104
"""Room for the frame header and the largest combination of transport headers."""

FRAME_MAGIC = 0xFA
_PKEY_DEFAULT = 0xFFFF
_PATIENT_FLAG, _GRH_FLAG, _MTU_SHIFT, _SL_SHIFT = 1, 2, 4, 8  # in the flags of the frame header

_RETH_BIT, _AETH_BIT, _IMM_BIT, _DETH_BIT, _ATOMIC_BIT, _ORIGINAL_BIT, _IETH_BIT = (1 << i for i in range(7))


def _layout(opcode: int) -> int:
    """Which transport headers follow the BTH, as an or of bits (IBTA vol. 1, table 38)."""
    try:
        name = BthOpcode(opcode).name
    except ValueError:
        return 0
    bits = 0
    if "RDMA_WRITE_FIRST" in name or "RDMA_WRITE_ONLY" in name or name == "RC_RDMA_READ_REQUEST":
        bits |= _RETH_BIT
    if "ACKNOWLEDGE" in name or ("READ_RESPONSE" in name and "MIDDLE" not in name):
        bits |= _AETH_BIT
    if name.endswith("WITH_IMMEDIATE"):
        bits |= _IMM_BIT
    if name.startswith("UD_"):
        bits |= _DETH_BIT
    if name in ("RC_COMPARE_SWAP", "RC_FETCH_ADD"):
        bits |= _ATOMIC_BIT
    if name == "RC_ATOMIC_ACKNOWLEDGE":
        bits |= _ORIGINAL_BIT
    if name.endswith("WITH_INVALIDATE"):
        bits |= _IETH_BIT
    return bits


_SIZES = (
    (_RETH_BIT, 16),
    (_AETH_BIT, 4),
    (_IMM_BIT, 4),
    (_DETH_BIT, 8),
    (_ATOMIC_BIT, 28),
    (_ORIGINAL_BIT, 8),
    (_IETH_BIT, 4),
)
_KNOWN = frozenset(int(o) for o in BthOpcode)
_LAYOUT = [_layout(opcode) for opcode in range(256)]
_LAYOUT_BYTES = [
    FRAME_HEADER_BYTES + BTH_BYTES + sum(size for bit, size in _SIZES if flags & bit) for flags in range(128)
]

# A whole RDMA_WRITE_ONLY header at once, for the frame that small messages are made of: frame header, BTH, RETH.
_WRITE_ONLY = struct.Struct("!BBHIHHIQBBHIIQII")
WRITE_ONLY_BYTES = _WRITE_ONLY.size
_WRITE_ONLY_OPCODE = int(BthOpcode.RC_RDMA_WRITE_ONLY)


@dataclass(slots=True)
class Frame:
    """One frame's headers in host form, and on the sending side its payload.

    `opcode` is a BthOpcode value. `va`, `rkey`, `dma_len` are the RETH's (the first two also the AtomicETH's, with
    `swap_add` and `compare`); `syndrome`, `msn` the AETH's; `original` the AtomicAckETH's; `qkey`, `src_qpn` the
    DETH's; `inv_rkey` the IETH's; `imm` the immediate data as the 32-bit number its four wire bytes form in network
    order. `nbytes` is the payload's length.
    `sl` is the service level, `grh` the 40 bytes of a global route header or nothing.
    `payload` holds views of registered memory (never copies), in order. `arrival_ns` is when the fabric model says
    the frame arrives (fabric time) and `duration_ns` how long it was on its way; both 0 when nothing is shaped.
    `mtu` is the path MTU of the sending queue pair as an Mtu code, which says how many packets the frame stands for; 0:
    not told. `patient`: nobody waits for the acknowledgement it asks for, so the responder may collect it with later
    ones. `aside`, on the receiving side: parts of the payload received into scratch memory, and where they belong.
    `extents`, on neither wire: which memories of the node (fauxrdma.memory.location) the payload was read from or, on
    the receiving side, lands in, and how many bytes each; empty where nothing does.
    """

    opcode: int
    slid: int
    dlid: int
    dest_qpn: int
    psn: int
    ack_req: bool = False
    solicited: bool = False
    va: int = 0
    rkey: int = 0
    dma_len: int = 0
    syndrome: int = 0
    msn: int = 0
    imm: int = 0
    nbytes: int = 0
    payload: tuple[memoryview, ...] = ()
    arrival_ns: int = 0
    duration_ns: int = 0
    patient: bool = False
    swap_add: int = 0
    compare: int = 0
    original: int = 0
    qkey: int = 0
    src_qpn: int = 0
    inv_rkey: int = 0
    mtu: int = 0
    aside: list[tuple[Any, memoryview]] | None = None
    sl: int = 0
    grh: bytes = b""
    extents: tuple[tuple[int, int], ...] = ()


def psn_add(psn: int, count: int) -> int:
    """`psn` advanced by `count` packets, modulo 2^24."""
    return (psn + count) & PSN_MASK


def psn_diff(a: int, b: int) -> int:
    """How far PSN `a` is ahead of `b`: -2^23 .. 2^23-1, so that wrap-around compares right (IBTA 9.7.2)."""
    return ((a - b + 0x800000) & PSN_MASK) - 0x800000


def packets_in(nbytes: int, mtu: int) -> int:
    """Packets that `nbytes` of payload take at `mtu`: at least one, since zero-length messages travel too."""
    return max(1, -(-nbytes // mtu))


def is_acknowledgement(opcode: int) -> bool:
    """True for what an RC responder sends (ACK, NAK, READ response, atomic response): the requester half's."""
    return 0x0D <= opcode <= 0x12


def header_bytes(opcode: int) -> int:
    """Bytes before the payload of a frame with this opcode, the frame header included."""
    return _LAYOUT_BYTES[_LAYOUT[opcode]]


def encode_header(frame: Frame) -> bytes:
    """All of the frame but its payload, as one bytes object ready to send."""
    flags = _LAYOUT[frame.opcode]
    size = _LAYOUT_BYTES[flags]
    pad = -frame.nbytes & 3
    flag_bits = frame.sl << _SL_SHIFT | frame.mtu << _MTU_SHIFT | (_PATIENT_FLAG if frame.patient else 0)
    grh = frame.grh
    if grh:
        flag_bits |= _GRH_FLAG
        size += len(grh)
    head = _FRAME.pack(
        FRAME_MAGIC,
        size,
        flag_bits,
        frame.nbytes,
        frame.slid,
        frame.dlid,
        min(frame.duration_ns, 0xFFFFFFFF),
        frame.arrival_ns,
    )
    if grh:
        head += grh
    head += _BTH.pack(
        frame.opcode,
        (0x80 if frame.solicited else 0) | pad << 4,
        _PKEY_DEFAULT,
        frame.dest_qpn,
        (0x80000000 if frame.ack_req else 0) | frame.psn,
    )
    if flags & _RETH_BIT:
        head += _RETH.pack(frame.va, frame.rkey, frame.dma_len)
    if flags & _AETH_BIT:
        head += _AETH.pack(frame.syndrome << 24 | frame.msn)
    if flags > _AETH_BIT + _RETH_BIT:
        # The order on the wire: DETH before ImmDt, AETH before AtomicAckETH.
        if flags & _DETH_BIT:
            head += _DETH.pack(frame.qkey, frame.src_qpn)
        if flags & _ATOMIC_BIT:
            head += _ATOMIC.pack(frame.va, frame.rkey, frame.swap_add, frame.compare)
        if flags & _ORIGINAL_BIT:
            head += _ORIGINAL.pack(frame.original)
        if flags & _IMM_BIT:
            head += _IMM.pack(frame.imm)
        if flags & _IETH_BIT:
            head += _IMM.pack(frame.inv_rkey)
    return head


def encode_write_only(
    slid: int,
    dlid: int,
    dest_qpn: int,
    psn: int,
    va: int,
    rkey: int,
    nbytes: int,
    patient: bool,
    solicited: bool,
    mtu: int = 0,
) -> bytes:
    """`encode_header` of an unshaped RDMA_WRITE_ONLY frame that asks for an acknowledgement."""
    return _WRITE_ONLY.pack(
        FRAME_MAGIC, WRITE_ONLY_BYTES, patient | mtu << 4, nbytes, slid, dlid, 0, 0, _WRITE_ONLY_OPCODE,
        (0x80 if solicited else 0) | (-nbytes & 3) << 4, _PKEY_DEFAULT, dest_qpn, 0x80000000 | psn, va, rkey, nbytes,
    )  # fmt: skip


SmallWrite = tuple[int, int, int, int, bool, bool, int, int, int]
"""slid, dlid, dest_qpn, psn, ack_req, patient, va, rkey, nbytes."""


def decode_write_only(buffer: bytearray | memoryview, offset: int, end: int) -> SmallWrite | None:
    """An unshaped RDMA_WRITE_ONLY frame that lies whole in `buffer[offset:end]`, payload included; None for anything
    else, also what is malformed: `decode_header` tells why."""
    if end - offset < WRITE_ONLY_BYTES or buffer[offset + FRAME_HEADER_BYTES] != _WRITE_ONLY_OPCODE:
        return None
    magic, size, flags, nbytes, slid, dlid, _, arrival_ns, _, _, _, dest_qpn, last, va, rkey, dma_len = (
        _WRITE_ONLY.unpack_from(buffer, offset)
    )
    if (
        magic != FRAME_MAGIC
        or size != WRITE_ONLY_BYTES
        or arrival_ns
        or nbytes != dma_len
        or offset + size + nbytes > end
    ):
        return None
    return slid, dlid, dest_qpn & 0xFFFFFF, last & PSN_MASK, bool(last & 0x80000000), bool(flags & 1), va, rkey, nbytes


def frame_lengths(buffer: bytearray | memoryview | bytes, offset: int = 0) -> tuple[int, int]:
    """(header bytes, payload bytes) of the frame that begins at `offset`; FRAME_HEADER_BYTES must be there.

    Raises RemoteProtocolError when the bytes are no frame or over the limits: a length that is wrong once is wrong for
    the rest of the stream, so the connection has to go.
    """
    magic, size, _, nbytes, _, _, _, _ = _FRAME.unpack_from(buffer, offset)
    if magic != FRAME_MAGIC:
        raise RemoteProtocolError(
            f"byte 0x{magic:02x} where a frame must begin with 0x{FRAME_MAGIC:02x}: the peer is not a fauxrdma HCA"
        )
    if not FRAME_HEADER_BYTES + BTH_BYTES <= size <= MAX_HEADER_BYTES:
        raise RemoteProtocolError(
            f"a frame claims {size} header bytes; {FRAME_HEADER_BYTES + BTH_BYTES} to {MAX_HEADER_BYTES} are legal"
        )
    if nbytes > MAX_PAYLOAD_BYTES:
        raise RemoteProtocolError(f"a frame claims {nbytes} payload bytes, over the limit {MAX_PAYLOAD_BYTES}")
    return size, nbytes


def decode_header(buffer: bytearray | memoryview | bytes, offset: int = 0) -> Frame:
    """The frame whose complete header begins at `offset`. Raises RemoteProtocolError for what is malformed."""
    _, size, frame_flags, nbytes, slid, dlid, duration_ns, arrival_ns = _FRAME.unpack_from(buffer, offset)
    at = offset + FRAME_HEADER_BYTES
    grh = b""
    if frame_flags & _GRH_FLAG:
        if size < FRAME_HEADER_BYTES + GRH_BYTES + BTH_BYTES:
            raise RemoteProtocolError(f"a frame of {size} header bytes claims to have a GRH")
        grh = bytes(buffer[at : at + GRH_BYTES])
        at += GRH_BYTES
        size -= GRH_BYTES
    opcode, bits, _, dest_qpn, last = _BTH.unpack_from(buffer, at)
    if opcode not in _KNOWN:
        raise RemoteProtocolError(f"BTH opcode 0x{opcode:02x} is not one this version speaks")
    flags = _LAYOUT[opcode]
    if _LAYOUT_BYTES[flags] != size:
        raise RemoteProtocolError(
            f"{BthOpcode(opcode).name} has {_LAYOUT_BYTES[flags]} header bytes, the frame claims {size}"
        )
    frame = Frame(opcode, slid, dlid, dest_qpn & 0xFFFFFF, last & PSN_MASK, bool(last & 0x80000000), bool(bits & 0x80))
    frame.nbytes = nbytes
    frame.arrival_ns, frame.duration_ns = arrival_ns, duration_ns
    frame.patient = bool(frame_flags & _PATIENT_FLAG)
    frame.mtu = frame_flags >> _MTU_SHIFT & 7
    if grh or frame_flags >> _SL_SHIFT:
        frame.sl = frame_flags >> _SL_SHIFT & 0xF
        frame.grh = grh
    at += BTH_BYTES
    if flags & _RETH_BIT:
        frame.va, frame.rkey, frame.dma_len = _RETH.unpack_from(buffer, at)
        at += 16
    if flags & _AETH_BIT:
        (word,) = _AETH.unpack_from(buffer, at)
        frame.syndrome, frame.msn = word >> 24, word & 0xFFFFFF
        at += 4
    if flags > _AETH_BIT + _RETH_BIT:
        if flags & _DETH_BIT:
            frame.qkey, source = _DETH.unpack_from(buffer, at)
            frame.src_qpn = source & 0xFFFFFF
            at += 8
        if flags & _ATOMIC_BIT:
            frame.va, frame.rkey, frame.swap_add, frame.compare = _ATOMIC.unpack_from(buffer, at)
        if flags & _ORIGINAL_BIT:
            (frame.original,) = _ORIGINAL.unpack_from(buffer, at)
        if flags & _IMM_BIT:
            (frame.imm,) = _IMM.unpack_from(buffer, at)
        if flags & _IETH_BIT:
            (frame.inv_rkey,) = _IMM.unpack_from(buffer, at)
    return frame
