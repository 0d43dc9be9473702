"""The GID table of a port (IBTA vol. 1, 4.1.1; annexes A16 and A17 for RoCE).

An InfiniBand port has its default GID, subnet prefix and GUID, at index 0. A port of Ethernet link layer has each of
its addresses twice, once for RoCE v1 and once for RoCE v2: first the link-local one, made of the MAC address, then the
IPv4 address as ::ffff:a.b.c.d.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from fauxrdma.ib.attributes import FIRST_MULTICAST_LID, LAST_MULTICAST_LID
from fauxrdma.ib.enums import GidType, LinkLayer

__all__ = ["GID_TABLE_LENGTH", "GIDEntry", "connection_gid_index", "gid_table", "lid_of_gid", "multicast_lid_of_gid"]

GID_TABLE_LENGTH = 16
"""Entries of a port's table; those without an address read as ``::``."""


@dataclass(frozen=True, slots=True)
class GIDEntry:
    """A GID and what it is (struct ibv_gid_entry). `gid` is text; `ndev_ifindex` is 0, for no network device."""

    gid: str
    gid_index: int
    port_num: int
    gid_type: GidType
    ndev_ifindex: int = 0


def gid_table(guid: int, lid: int, default_gid: str, link_layer: LinkLayer) -> list[tuple[str, GidType]]:
    """The addresses of the port, by index, with their types; a pure function of the HCA's identity.

    `default_gid` is the InfiniBand GID. An Ethernet port's MAC address is taken from the GUID, its IPv4 address is
    10.64.(LID / 256).(LID modulo 256).
    """
    if link_layer != LinkLayer.IBV_LINK_LAYER_ETHERNET:
        return [(default_gid, GidType.IBV_GID_TYPE_IB)]
    eui64 = guid & 0xFFFFFF0000FFFFFF | 0x000000FFFE000000
    link_local = ipaddress.IPv6Address(0xFE80 << 112 | eui64 ^ 1 << 57)  # the universal/local bit is inverted
    ipv4 = f"::ffff:10.64.{lid >> 8}.{lid & 0xFF}"  # the way every tool writes a mapped address
    v1, v2 = GidType.IBV_GID_TYPE_ROCE_V1, GidType.IBV_GID_TYPE_ROCE_V2
    return [(address, kind) for address in (str(link_local), ipv4) for kind in (v1, v2)]


def connection_gid_index(link_layer: LinkLayer) -> int:
    """The entry that connections use unless told otherwise: the only one on InfiniBand, RoCE v2 over IPv4 on Ethernet,
    as NCCL and UCX choose."""
    return 3 if link_layer == LinkLayer.IBV_LINK_LAYER_ETHERNET else 0


def lid_of_gid(gid: str, own_guid: int) -> int | None:
    """The LID by which the fabric knows the Ethernet port with address `gid`; None when no port has it.

    Stands for neighbour discovery: a port's addresses are made of its LID, so nobody needs to be asked. All GUIDs of a
    fabric, `own_guid` among them, differ in their last 24 bits only.
    """
    address = ipaddress.IPv6Address(gid)
    lid = int(address) & (0xFFFF if address.ipv4_mapped else 0xFFFFFF)
    table = gid_table(own_guid & ~0xFFFFFF | lid, lid, gid, LinkLayer.IBV_LINK_LAYER_ETHERNET)
    unicast = 1 <= lid < FIRST_MULTICAST_LID
    return lid if unicast and any(ipaddress.IPv6Address(known) == address for known, _ in table) else None


def multicast_lid_of_gid(gid: str) -> int:
    """The multicast LID by which the fabric knows an Ethernet group: its last bits, as for a multicast MAC address.
    Groups that share one are told apart by the receivers."""
    span = LAST_MULTICAST_LID - FIRST_MULTICAST_LID + 1
    return FIRST_MULTICAST_LID + int(ipaddress.IPv6Address(gid)) % span
