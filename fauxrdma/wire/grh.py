"""The global route header: the 40 bytes in front of every datagram a UD queue pair receives.

InfiniBand and RoCE v1 have a GRH there (IBTA vol. 1, 8.3); RoCE v2 has the header of the IP packet in its place (annex
A17): an IPv6 header, which is laid out as a GRH is, or 20 zero bytes and then an IPv4 header. Which of the two IP
versions it is follows from the GIDs: those of the form ``::ffff:a.b.c.d`` are IPv4 addresses.
"""

from __future__ import annotations

import ipaddress
import struct
from dataclasses import dataclass

from fauxrdma.errors import RemoteProtocolError
from fauxrdma.ib.enums import GidType

__all__ = ["GRH_BYTES", "Grh", "gid_bytes", "gid_text", "is_multicast_gid"]

GRH_BYTES = 40

_IPV6 = struct.Struct("!IHBB16s16s")
# version, class and flow; payload bytes; next header; hop limit; source; destination
_IPV4 = struct.Struct("!BBHHHBBH4s4s")
# version and words; class; bytes; identification; flags; time to live; protocol; checksum; source; destination
_V4_PAD = bytes(20)
_V4_MAPPED = bytes(10) + b"\xff\xff"
_NEXT_IBA = 0x1B
_NEXT_UDP = 17
_DONT_FRAGMENT = 0x4000
_UDP_BYTES = 8


def gid_bytes(gid: str) -> bytes:
    """The 16 bytes of a GID in text. Raises ValueError when it is none."""
    return ipaddress.IPv6Address(gid).packed


def gid_text(gid: bytes) -> str:
    """A GID as text, in the long form that pyverbs prints."""
    return ipaddress.IPv6Address(gid).exploded


def is_multicast_gid(gid: bytes) -> bool:
    """Multicast GIDs begin with ff (IBTA vol. 1, 4.1.1)."""
    return gid[0] == 0xFF


@dataclass(frozen=True, slots=True)
class Grh:
    """What a global route header says. `payload_bytes` counts what follows it in the packet, ICRC included (and the UDP
    header, for RoCE v2). `gid_type` tells which of the three layouts it has."""

    sgid: bytes
    dgid: bytes
    payload_bytes: int = 0
    hop_limit: int = 0xFF
    traffic_class: int = 0
    flow_label: int = 0
    gid_type: GidType = GidType.IBV_GID_TYPE_IB

    @property
    def is_ipv4(self) -> bool:
        """Whether the 40 bytes hold an IPv4 header."""
        return (
            self.gid_type == GidType.IBV_GID_TYPE_ROCE_V2
            and self.sgid.startswith(_V4_MAPPED)
            and (self.dgid.startswith(_V4_MAPPED))
        )

    def to_bytes(self) -> bytes:
        """The 40 bytes as the receiver finds them in its buffer."""
        if self.is_ipv4:
            fields = (
                0x45, self.traffic_class, _IPV4.size + self.payload_bytes, 0, _DONT_FRAGMENT, self.hop_limit, _NEXT_UDP,
            )  # fmt: skip
            addresses = self.sgid[12:], self.dgid[12:]
            checksum = _checksum(_IPV4.pack(*fields, 0, *addresses))
            return _V4_PAD + _IPV4.pack(*fields, checksum, *addresses)
        next_header = _NEXT_UDP if self.gid_type == GidType.IBV_GID_TYPE_ROCE_V2 else _NEXT_IBA
        first = 6 << 28 | self.traffic_class << 20 | self.flow_label
        return _IPV6.pack(first, self.payload_bytes, next_header, self.hop_limit, self.sgid, self.dgid)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Grh:
        """Read the first 40 bytes of a receive buffer. Raises RemoteProtocolError when there is none of the layouts."""
        if len(data) < GRH_BYTES:
            raise RemoteProtocolError(f"a GRH has {GRH_BYTES} bytes, there are {len(data)}")
        first, payload_bytes, next_header, hop_limit, sgid, dgid = _IPV6.unpack_from(data)
        if first >> 28 == 6 and next_header in (_NEXT_IBA, _NEXT_UDP):
            kind = GidType.IBV_GID_TYPE_ROCE_V2 if next_header == _NEXT_UDP else GidType.IBV_GID_TYPE_IB
            return cls(sgid, dgid, payload_bytes, hop_limit, first >> 20 & 0xFF, first & 0xFFFFF, kind)
        version, traffic_class, length, _, _, ttl, protocol, _, src, dst = _IPV4.unpack_from(data, len(_V4_PAD))
        if version == 0x45 and protocol == _NEXT_UDP and _checksum(bytes(data[20:40])) == 0:
            return cls(
                _V4_MAPPED + src, _V4_MAPPED + dst, length - _IPV4.size, ttl, traffic_class, 0,
                GidType.IBV_GID_TYPE_ROCE_V2,
            )  # fmt: skip
        raise RemoteProtocolError(f"these 40 bytes are neither a GRH nor an IP header: {bytes(data[:GRH_BYTES]).hex()}")

    @staticmethod
    def payload_bytes_of(nbytes: int, with_imm: bool, gid_type: GidType) -> int:
        """What a UD packet with `nbytes` of payload has behind its GRH: BTH, DETH, immediate, padding, ICRC."""
        inside = 12 + 8 + (4 if with_imm else 0) + nbytes + (-nbytes & 3) + 4
        return inside + (_UDP_BYTES if gid_type == GidType.IBV_GID_TYPE_ROCE_V2 else 0)


def _checksum(header: bytes) -> int:
    """The Internet checksum (RFC 1071) of an even number of bytes; 0 when it already holds the right one."""
    total: int = sum(struct.unpack(f"!{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return 0xFFFF - total
