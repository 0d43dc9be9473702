"""Connection messages as MADs of 256 bytes (IBTA vol. 1, 12.6 and 12.11; annex A11 for the header of RDMA IP CM).

Fields are at the offsets of the specification. What the emulated fabric has only one of (P_Key, alternate paths, end to
end contexts) is left zero.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from fauxrdma.errors import RemoteProtocolError

__all__ = ["MAD_BYTES", "PRIVATE_BYTES", "CmMessage", "Kind", "Reject"]

MAD_BYTES = 256
_HEADER = struct.Struct("!BBBBHHQHHI")
# base version, class, class version, method, status, class specific, transaction, attribute, reserved, modifier
_CLASS_CM, _METHOD_SEND = 7, 3
_IP_BYTES = 36
"""The header that RDMA IP CM puts in front of a REQ's private data: versions, the sender's port, both addresses."""


class Kind(IntEnum):
    """Attribute identifiers (IBTA table 100)."""

    REQ = 0x10
    MRA = 0x11
    REJ = 0x12
    REP = 0x13
    RTU = 0x14
    DREQ = 0x15
    DREP = 0x16
    SIDR_REQ = 0x17
    SIDR_REP = 0x18


class Reject(IntEnum):
    """Reasons of a REJ (IBTA 12.6.7.2), those that are used here."""

    TIMEOUT = 4
    INVALID_COMM_ID = 6
    INVALID_SERVICE_ID = 8
    STALE_CONNECTION = 10
    CONSUMER_DEFINED = 28


_PRIVATE_AT = {
    Kind.REQ: 140 + _IP_BYTES, Kind.MRA: 10, Kind.REJ: 84, Kind.REP: 36, Kind.RTU: 8, Kind.DREQ: 12, Kind.DREP: 8,
    Kind.SIDR_REQ: 16 + _IP_BYTES, Kind.SIDR_REP: 96,
}  # fmt: skip
_BODY = MAD_BYTES - _HEADER.size
PRIVATE_BYTES = {kind: _BODY - at for kind, at in _PRIVATE_AT.items()}
"""How much private data each message has room for: 56 of a REQ, 196 of a REP, 148 of a REJ, ..."""

# Where fields are, per kind: name, byte, bits to shift left, mask; in 4 bytes, network order.
_IDS = (("local_id", 0, 0, 0xFFFFFFFF), ("remote_id", 4, 0, 0xFFFFFFFF))
_WORDS: dict[Kind, tuple[tuple[str, int, int, int], ...]] = {
    Kind.REQ: (
        _IDS[0], ("qkey", 28, 0, 0xFFFFFFFF),
        ("qpn", 32, 8, 0xFFFFFF), ("responder_resources", 32, 0, 0xFF), ("initiator_depth", 36, 0, 0xFF),
        ("qp_type", 40, 1, 3), ("flow_control", 40, 0, 1),
        ("psn", 44, 8, 0xFFFFFF), ("timeout", 44, 3, 31), ("retry_count", 44, 0, 7),
        ("path_mtu", 48, 12, 15), ("rnr_retry_count", 48, 8, 7), ("srq", 48, 3, 1),
    ),
    Kind.MRA: (*_IDS, ("answered", 8, 30, 3), ("timeout", 8, 19, 31)),
    Kind.REJ: (*_IDS, ("answered", 8, 30, 3), ("reason", 8, 0, 0xFFFF)),
    Kind.REP: (
        *_IDS, ("qkey", 8, 0, 0xFFFFFFFF), ("qpn", 12, 8, 0xFFFFFF), ("psn", 20, 8, 0xFFFFFF),
        ("responder_resources", 24, 24, 0xFF), ("initiator_depth", 24, 16, 0xFF), ("flow_control", 24, 8, 1),
        ("rnr_retry_count", 24, 5, 7), ("srq", 24, 4, 1),
    ),
    Kind.RTU: _IDS,
    Kind.DREQ: (*_IDS, ("qpn", 8, 8, 0xFFFFFF)),
    Kind.DREP: _IDS,
    Kind.SIDR_REQ: (_IDS[0],),
    Kind.SIDR_REP: (("remote_id", 0, 0, 0xFFFFFFFF), ("reason", 4, 24, 0xFF), ("qpn", 8, 8, 0xFFFFFF),
                    ("qkey", 20, 0, 0xFFFFFFFF)),
}  # fmt: skip
_SERVICE_AT = {Kind.REQ: 8, Kind.SIDR_REQ: 8, Kind.SIDR_REP: 12}
_WORD, _LONG, _IP = struct.Struct("!I"), struct.Struct("!Q"), struct.Struct("!BBH16s16s")


@dataclass(slots=True)
class CmMessage:
    """One message. `local_id` is the sender's number of the connection, `remote_id` the receiver's.

    `answered` of an MRA or REJ: 0 REQ, 1 REP, 2 none. `timeout` is a code as in ACK timeouts (4.096 us x 2^n). `reason`
    is a REJ's or the status of a SIDR_REP. `source_port`, `source_gid` and `target_gid` are of the IP header.
    """

    kind: Kind
    local_id: int = 0
    remote_id: int = 0
    transaction: int = 0
    service_id: int = 0
    qpn: int = 0
    psn: int = 0
    qkey: int = 0
    qp_type: int = 0
    responder_resources: int = 0
    initiator_depth: int = 0
    flow_control: int = 0
    retry_count: int = 0
    rnr_retry_count: int = 0
    srq: int = 0
    path_mtu: int = 0
    timeout: int = 0
    answered: int = 0
    reason: int = 0
    source_port: int = 0
    source_gid: bytes = bytes(16)
    target_gid: bytes = bytes(16)
    private: bytes = b""

    def encode(self) -> bytes:
        """The MAD. Raises ValueError for private data that does not fit; what is shorter is padded with zeros."""
        kind = self.kind
        if len(self.private) > PRIVATE_BYTES[kind]:
            raise ValueError(
                f"{len(self.private)} B of private data, a {kind.name} has room for {PRIVATE_BYTES[kind]} B"
            )
        body = bytearray(_BODY)
        for name, at, shift, mask in _WORDS[kind]:
            (word,) = _WORD.unpack_from(body, at)
            _WORD.pack_into(body, at, word | (int(getattr(self, name)) & mask) << shift)
        if kind in _SERVICE_AT:
            _LONG.pack_into(body, _SERVICE_AT[kind], self.service_id)
        at = _PRIVATE_AT[kind]
        if kind in (Kind.REQ, Kind.SIDR_REQ):
            _IP.pack_into(body, at - _IP_BYTES, 0, 6 << 4, self.source_port, self.source_gid, self.target_gid)
        body[at : at + len(self.private)] = self.private
        return _HEADER.pack(1, _CLASS_CM, 2, _METHOD_SEND, 0, 0, self.transaction, kind, 0, 0) + body

    @staticmethod
    def decode(mad: bytes | memoryview) -> CmMessage:
        """Read a MAD. Raises RemoteProtocolError for what is no message of the communication manager."""
        if len(mad) != MAD_BYTES:
            raise RemoteProtocolError(f"a MAD of {len(mad)} B, they have {MAD_BYTES} B")
        _, mad_class, _, method, _, _, transaction, attribute, _, _ = _HEADER.unpack_from(mad)
        if (mad_class, method) != (_CLASS_CM, _METHOD_SEND) or attribute not in _KINDS:
            raise RemoteProtocolError(f"a MAD of class {mad_class}, method {method}, attribute 0x{attribute:x}")
        kind = Kind(attribute)
        body = bytes(mad[_HEADER.size :])
        out = CmMessage(kind, transaction=transaction)
        for name, at, shift, mask in _WORDS[kind]:
            setattr(out, name, _WORD.unpack_from(body, at)[0] >> shift & mask)
        if kind in _SERVICE_AT:
            (out.service_id,) = _LONG.unpack_from(body, _SERVICE_AT[kind])
        at = _PRIVATE_AT[kind]
        if kind in (Kind.REQ, Kind.SIDR_REQ):
            _, _, out.source_port, out.source_gid, out.target_gid = _IP.unpack_from(body, at - _IP_BYTES)
        out.private = body[at:]
        return out


_KINDS = frozenset(Kind)
