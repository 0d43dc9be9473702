"""The hello that opens every daemon-to-daemon connection, before the first frame.

Fixed 24 bytes in network order: magic ``FAUXRDMA``, lowest and highest version spoken, the node number, the fabric's
epoch. The listener answers with 16 bytes: magic, the version chosen (0 = refused) and a reason code.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from fauxrdma.errors import RemoteProtocolError

__all__ = [
    "ANSWER_BYTES",
    "HELLO_BYTES",
    "LINK_VERSION",
    "LINK_VERSION_MIN",
    "LinkHello",
    "check_answer",
    "choose_version",
    "decode_hello",
    "encode_answer",
    "encode_hello",
]

LINK_VERSION = 1
LINK_VERSION_MIN = 1
_MAGIC = b"FAUXRDMA"
_HELLO = struct.Struct("!8sHHIQ")
_ANSWER = struct.Struct("!8sHHI")
HELLO_BYTES = _HELLO.size
ANSWER_BYTES = _ANSWER.size

_REASONS = {
    0: "accepted",
    1: "no common version of the link protocol: upgrade the older fauxrdma",
    2: "the connection belongs to another fabric (the subnet manager was restarted?): restart this daemon",
}


@dataclass(slots=True, frozen=True)
class LinkHello:
    """What the connecting daemon says: versions it speaks, its node, and the epoch that identifies the fabric run."""

    version_min: int
    version_max: int
    node: int
    epoch_ns: int


def encode_hello(node: int, epoch_ns: int) -> bytes:
    """The hello of this build."""
    return _HELLO.pack(_MAGIC, LINK_VERSION_MIN, LINK_VERSION, node, epoch_ns)


def decode_hello(data: bytes | bytearray | memoryview) -> LinkHello:
    """Read a hello. Raises RemoteProtocolError when the magic is wrong."""
    magic, low, high, node, epoch_ns = _HELLO.unpack_from(data)
    if magic != _MAGIC:
        raise RemoteProtocolError(f"a connection began with {bytes(magic)!r}: the peer is not a fauxrdma HCA daemon")
    return LinkHello(low, high, node, epoch_ns)


def choose_version(hello: LinkHello, epoch_ns: int) -> tuple[int, int]:
    """(version, reason): the highest version both speak, or 0 and why not."""
    version = min(hello.version_max, LINK_VERSION)
    if version < max(hello.version_min, LINK_VERSION_MIN):
        return 0, 1
    if hello.epoch_ns != epoch_ns:
        return 0, 2
    return version, 0


def encode_answer(version: int, reason: int) -> bytes:
    """The listener's answer."""
    return _ANSWER.pack(_MAGIC, version, reason, 0)


def check_answer(data: bytes | bytearray | memoryview) -> int:
    """The version the listener chose. Raises RemoteProtocolError with its reason when it refused."""
    magic, version, reason, _ = _ANSWER.unpack_from(data)
    if magic != _MAGIC:
        raise RemoteProtocolError(f"the answer to a link hello began with {bytes(magic)!r}: not a fauxrdma HCA daemon")
    if version == 0:
        raise RemoteProtocolError(f"the peer daemon refused the link: {_REASONS.get(reason, f'reason {reason}')}")
    return int(version)
