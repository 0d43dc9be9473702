"""The GID table of a port (IBTA vol. 1, 4.1.1; annexes A16 and A17 for RoCE).

An InfiniBand port has its default GID, subnet prefix and GUID, at index 0. A RoCE port has its link-local address, made
of the MAC address, then its IPv4 address as ::ffff:a.b.c.d, each once for RoCE v1 and, unless the fabric speaks only
that, once for RoCE v2. An iWARP port has one entry, which is its MAC address and zeros (as the drivers siw and cxgb4
fill it).
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from fauxrdma.ib.attributes import FIRST_MULTICAST_LID, LAST_MULTICAST_LID
from fauxrdma.ib.enums import GidType

__all__ = [
    "GID_TABLE_LENGTH",
    "GIDEntry",
    "connection_gid_index",
    "gid_table",
    "gid_types",
    "multicast_lid_of_gid",
    "short_gid",
]

GID_TABLE_LENGTH = 16
"""Entries of a port's table; those without an address read as ``::``."""

_FIRST_NETWORK = 0x0A40
"""10.64"""


@dataclass(frozen=True, slots=True)
class GIDEntry:
    """A GID and what it is (struct ibv_gid_entry). `gid` is text; `ndev_ifindex` is 0, for no network device."""

    gid: str
    gid_index: int
    port_num: int
    gid_type: GidType
    ndev_ifindex: int = 0


_ETHERNET_TYPES = {
    "rocev1": (GidType.IBV_GID_TYPE_ROCE_V1,),
    "rocev2": (GidType.IBV_GID_TYPE_ROCE_V1, GidType.IBV_GID_TYPE_ROCE_V2),
}


def short_gid(gid: str) -> str:
    """A GID in the short form of RFC 5952, a mapped IPv4 address as ::ffff:a.b.c.d. Raises ValueError for no GID."""
    address = ipaddress.IPv6Address(gid)
    return f"::ffff:{address.ipv4_mapped}" if address.ipv4_mapped else str(address)


def gid_types(transport: str) -> tuple[GidType, ...]:
    """The types in which a port has each of its addresses, by the fabric's transport."""
    return _ETHERNET_TYPES.get(transport, (GidType.IBV_GID_TYPE_IB,))


def gid_table(
    guid: int, lid: int, default_gid: str, transport: str = "infiniband", subnet: int = 0
) -> list[tuple[str, GidType]]:
    """The addresses of the port, by index, with their types; a pure function of the HCA's identity.

    `default_gid` is the InfiniBand GID. A RoCE port's MAC address is taken from the GUID; its IPv4 address is the LID
    in the network of its IP subnet: 10.64.0.0/16 for subnet 0, 10.65.0.0/16 for the next.
    """
    if transport == "infiniband":
        return [(default_gid, GidType.IBV_GID_TYPE_IB)]
    eui64 = guid & 0xFFFFFF0000FFFFFF | 0x000000FFFE000000
    if transport == "iwarp":
        mac = eui64 >> 40 << 24 | eui64 & 0xFFFFFF
        return [(str(ipaddress.IPv6Address(mac << 80)), GidType.IBV_GID_TYPE_IB)]
    link_local = ipaddress.IPv6Address(0xFE80 << 112 | eui64 ^ 1 << 57)  # the universal/local bit is inverted
    ipv4 = f"::ffff:{ipaddress.IPv4Address((_FIRST_NETWORK + subnet) << 16 | lid)}"  # as every tool writes it
    return [(address, kind) for address in (str(link_local), ipv4) for kind in gid_types(transport)]


def connection_gid_index(transport: str) -> int:
    """The entry that connections use unless told otherwise: the last one, which on RoCE is IPv4 in the newest version,
    as NCCL and UCX choose, and elsewhere the only one."""
    return len(gid_table(0, 0, "", transport)) - 1


def multicast_lid_of_gid(gid: str) -> int:
    """The multicast LID by which the fabric knows an Ethernet group: its last bits, as for a multicast MAC address.
    Groups that share one are told apart by the receivers."""
    span = LAST_MULTICAST_LID - FIRST_MULTICAST_LID + 1
    return FIRST_MULTICAST_LID + int(ipaddress.IPv6Address(gid)) % span
