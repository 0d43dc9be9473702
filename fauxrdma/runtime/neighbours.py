"""Which port has which address: what neighbour discovery is to an Ethernet, kept by the subnet manager."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from fauxrdma.ib.gids import gid_table, short_gid
from fauxrdma.wire.fabric_messages import HcaInfo

__all__ = ["Neighbours"]


class Neighbours:
    """The addresses of all ports, those that applications added included."""

    def __init__(self, hcas: Iterable[HcaInfo]) -> None:
        self._subnets: dict[int, int] = {}
        self._lids: dict[ipaddress.IPv6Address, int] = {}
        self._added: dict[int, list[ipaddress.IPv6Address]] = {}
        for hca in hcas:
            self._subnets[hca.lid] = hca.subnet
            for gid, _ in gid_table(hca.guid, hca.lid, hca.gid, hca.transport, hca.subnet):
                self._lids[ipaddress.IPv6Address(gid)] = hca.lid

    def find(self, gid: str) -> tuple[int, int]:
        """The LID of the HCA whose port has the address, and its IP subnet; 0 and 0 if none has."""
        try:
            lid = self._lids.get(ipaddress.IPv6Address(gid), 0)
        except ValueError:
            return 0, 0
        return lid, self._subnets.get(lid, 0)

    def set_added(self, lid: int, gids: Iterable[str]) -> str:
        """Give the port of the HCA with `lid` these addresses besides its own. Returns "", or, with nothing changed,
        the first that another port has. Raises ValueError for what is no address."""
        wanted = [ipaddress.IPv6Address(gid) for gid in gids]
        for address in wanted:
            if self._lids.get(address, lid) != lid:
                return short_gid(str(address))
        self.forget(lid)
        self._added[lid] = [address for address in wanted if address not in self._lids]
        self._lids |= dict.fromkeys(self._added[lid], lid)
        return ""

    def forget(self, lid: int) -> None:
        """Nobody answers any more to the addresses that were added to this port."""
        for address in self._added.pop(lid, ()):
            del self._lids[address]
