"""What connections are asked for with: addresses, parameters, port spaces; and the kinds of events (rdma_cma.h)."""

from __future__ import annotations

import errno
import ipaddress
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from fauxrdma.errors import VerbsError
from fauxrdma.ib.attributes import AHAttr
from fauxrdma.ib.gids import short_gid

if TYPE_CHECKING:
    from fauxrdma.verbs.cm.events import CMEvent

__all__ = ["RAI_PASSIVE", "UDP_QKEY", "AddrInfo", "ConnParam", "EventType", "PortSpace", "UDParam", "address_text"]

RAI_PASSIVE = 1
UDP_QKEY = 0x01234567
"""The Q_Key of all datagram queue pairs of RDMA_PS_UDP (RDMA_UDP_QKEY)."""


class PortSpace(IntEnum):
    """enum rdma_port_space: TCP is for connections, UDP for datagram services."""

    RDMA_PS_TCP = 0x106
    RDMA_PS_UDP = 0x111


class EventType(IntEnum):
    """enum rdma_cm_event_type, those that happen here."""

    RDMA_CM_EVENT_ADDR_RESOLVED = 0
    RDMA_CM_EVENT_ADDR_ERROR = 1
    RDMA_CM_EVENT_ROUTE_RESOLVED = 2
    RDMA_CM_EVENT_ROUTE_ERROR = 3
    RDMA_CM_EVENT_CONNECT_REQUEST = 4
    RDMA_CM_EVENT_CONNECT_RESPONSE = 5
    RDMA_CM_EVENT_CONNECT_ERROR = 6
    RDMA_CM_EVENT_UNREACHABLE = 7
    RDMA_CM_EVENT_REJECTED = 8
    RDMA_CM_EVENT_ESTABLISHED = 9
    RDMA_CM_EVENT_DISCONNECTED = 10
    RDMA_CM_EVENT_DEVICE_REMOVAL = 11
    RDMA_CM_EVENT_TIMEWAIT_EXIT = 15


def address_text(address: str | bytes) -> str:
    """A GID, or an IPv4 address as the GID that stands for it. Raises VerbsError(EINVAL)."""
    text = address.decode() if isinstance(address, bytes) else address
    try:
        return short_gid(f"::ffff:{ipaddress.IPv4Address(text)}" if "." in text and ":" not in text else text)
    except ValueError:
        raise VerbsError(
            errno.EINVAL, f"Failed to resolve address: {text!r} is neither a GID nor an IPv4 address"
        ) from None


@dataclass(slots=True)
class ConnParam:
    """Parameters of a connection, with pyverbs' defaults (struct rdma_conn_param). `resources` are the READs and
    atomics of the peer that may be outstanding, `depth` our own; `private_data` travels with the request or its
    answer, and comes padded with zeros: 56 B of a request, 196 B of an acceptance, 148 B of a rejection."""

    resources: int = 1
    depth: int = 1
    flow_control: int = 0
    retry: int = 5
    rnr_retry: int = 5
    srq: int = 0
    qp_num: int = 0
    data_len: int = 0
    private_data: bytes = field(default=b"", kw_only=True)

    def set_private_data(self, data: bytes) -> None:
        """As the argument."""
        self.private_data = bytes(data)
        self.data_len = len(self.private_data)


class UDParam:
    """What a datagram service said when it accepted: `qp_num`, `qkey` and the `ah_attr` to make an AH of."""

    def __init__(self, event: CMEvent) -> None:
        if event.ah_attr is None:
            raise VerbsError(errno.EINVAL, f"Failed to get UD parameters: {event!r} is of no datagram service")
        self.qp_num = event.qpn
        self.qkey = event.qkey
        self.ah_attr: AHAttr = event.ah_attr


class AddrInfo:
    """Where to connect to, or with flags=RAI_PASSIVE where to listen. `src` and `dst` are GIDs or, on Ethernet, IPv4
    addresses; services are port numbers. Raises VerbsError(EINVAL) for others."""

    def __init__(
        self,
        src: str | bytes | None = None,
        dst: str | bytes | None = None,
        src_service: str | int | None = None,
        dst_service: str | int | None = None,
        port_space: int = PortSpace.RDMA_PS_TCP,
        flags: int = 0,
    ) -> None:
        self.src = None if src is None else address_text(src)
        self.dst = None if dst is None else address_text(dst)
        self.src_service, self.dst_service = int(src_service or 0), int(dst_service or 0)
        self.port_space = PortSpace(port_space or PortSpace.RDMA_PS_TCP)
        self.flags = flags
        if not flags & RAI_PASSIVE and self.dst is None:
            raise VerbsError(errno.EINVAL, "Failed to get Address Info: neither dst nor flags=RAI_PASSIVE")
