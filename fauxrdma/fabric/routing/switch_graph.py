"""What a routing engine sees of a topology: switches by number, the cables between them that are up, who is where.

**LIDs** count from 1: HCAs in (host, index) order, then switches in (tier, index) order, whether they are reached or
not. Switches are numbered from 0 in the same order.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fauxrdma.topology.graph import Node, NodeKind, Topology, reachable_switches

__all__ = ["NO_PORT", "UNREACHED", "Endpoint", "HopArray", "PortArray", "SwitchGraph", "Trunk", "spread"]

HopArray = npt.NDArray[np.int16]
PortArray = npt.NDArray[np.int16]

NO_PORT = -1
"""Where a forwarding table has no entry."""

UNREACHED = 1 << 14
"""Hops to a switch that cannot be reached. Fits int16 with room for one more hop."""


@dataclass(frozen=True, slots=True)
class Trunk:
    """One direction of a cable between switches: from `port` of the switch it is listed under to `peer_port` of switch
    number `peer`; `link` is its id in `Topology.links`."""

    port: int
    peer: int
    peer_port: int
    link: int


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An HCA with a cable that is up: it hangs on `port` of switch number `switch`; `link` leads from switch to HCA."""

    lid: int
    name: str
    switch: int
    port: int
    link: int


class SwitchGraph:
    """`nodes[lid - 1]` has LID `lid`; `switches[i]` is the name of switch i, `switch_lids[i]` its LID; `trunks[i]` its
    cables to other switches by port; `endpoints` the HCAs that are reached, by LID."""

    def __init__(self, topology: Topology, down: Collection[int] = (), only: Collection[str] | None = None) -> None:
        """`down`: ids of links that are down; naming one direction of a cable takes out both. `only`: the switches to
        look at, with what hangs on them (default: all)."""
        self.topology = topology
        self.down = frozenset(down) | frozenset(topology.links[link].reverse for link in down)
        hcas, switches = topology.hcas(), topology.switches()
        self.nodes: list[Node] = [*hcas, *switches]
        seen = [
            (lid, node.name)
            for lid, node in enumerate(switches, start=len(hcas) + 1)
            if only is None or node.name in only
        ]
        self.switches = [name for _, name in seen]
        self.switch_lids = [lid for lid, _ in seen]
        self.number = {name: at for at, name in enumerate(self.switches)}
        self.trunks = [self._trunks_of(name) for name in self.switches]
        self.endpoints = self._find_endpoints(hcas)
        self.width = 1 + max((link.src_port for name in self.switches for link in topology.links_from(name)), default=0)

    @classmethod
    def of(cls, topology: Topology, down: Collection[int] = ()) -> SwitchGraph:
        """The graph of `topology` without the links in `down`."""
        return cls(topology, down)

    def islands(self) -> list[SwitchGraph]:
        """The parts of a fabric that no cable joins, up or down, each a subnet to its manager; this graph itself where
        it is one."""
        topology = self.topology
        if topology.islands == 1:
            return [self]
        parts = [
            reachable_switches(topology.fabric_link(hcas[0]).dst, topology.nodes, topology.links)
            for hcas in topology.members_of_islands()
        ]
        return [SwitchGraph(topology, self.down, part) for part in parts]

    def _trunks_of(self, name: str) -> list[Trunk]:
        found = [
            Trunk(link.src_port, self.number[link.dst], link.dst_port, link.id)
            for link in self.topology.links_from(name)
            if link.id not in self.down and self.topology.nodes[link.dst].kind is NodeKind.SWITCH
        ]
        return sorted(found, key=lambda trunk: trunk.port)

    def _find_endpoints(self, hcas: list[Node]) -> list[Endpoint]:
        found = []
        for lid, hca in enumerate(hcas, start=1):
            for link in self.topology.links_from(hca.name):
                if link.kind == "cable" and link.id not in self.down and link.dst in self.number:
                    found.append(Endpoint(lid, hca.name, self.number[link.dst], link.dst_port, link.reverse))
        return found

    @cached_property
    def peers(self) -> npt.NDArray[np.intp]:
        """`peers[i, port]`: the switch at the other end, or -1 where there is none."""
        out = np.full((len(self.switches), self.width), -1, dtype=np.intp)
        for at, trunks in enumerate(self.trunks):
            for trunk in trunks:
                out[at, trunk.port] = trunk.peer
        return out

    @cached_property
    def peer_ports(self) -> npt.NDArray[np.int16]:
        """`peer_ports[i, port]`: the port at the other end, or -1 where there is none."""
        out = np.full((len(self.switches), self.width), -1, dtype=np.int16)
        for at, trunks in enumerate(self.trunks):
            for trunk in trunks:
                out[at, trunk.port] = trunk.peer_port
        return out

    @cached_property
    def hops(self) -> HopArray:
        """`hops[i, j]`: cables on a shortest way from switch j to switch i, or UNREACHED. Symmetric."""
        return spread(self.peers, np.eye(len(self.switches), dtype=np.bool_))

    def shortest_ports(self, target: int) -> npt.NDArray[np.bool_]:
        """`[switch, port]`: whether the port starts a shortest path to switch `target`."""
        hops = self.hops[:, target]
        reached = (hops > 0) & (hops < UNREACHED)
        return np.asarray((self.peers >= 0) & (hops[self.peers] == (hops - 1)[:, None]) & reached[:, None])


def spread(neighbours: npt.NDArray[np.intp], start: npt.NDArray[np.bool_]) -> HopArray:
    """Breadth first, all columns at once. `start[i, j]`: whether column j starts at switch i; `neighbours[i]` are the
    switches from which i is reached, -1 for none. `out[i, j]`: the hops to i in column j, or UNREACHED."""
    count, columns = start.shape
    seen = np.zeros((count + 1, -(-columns // 8)), dtype=np.uint8)  # the last row is for -1: never reached
    seen[:count] = np.packbits(start, axis=1)
    front = seen.copy()
    out = np.where(start, 0, UNREACHED).astype(np.int16)
    distance = 0
    while front.any():
        distance += 1
        reached = np.bitwise_or.reduce(front[neighbours], axis=1) & ~seen[:count]
        out[np.unpackbits(reached, axis=1, count=columns).astype(np.bool_)] = distance
        front[:count] = reached
        seen[:count] |= reached
    return out
