"""Which path every daemon goes by: what it was told, and what it has said it applied.

Bytes belong to the links that the daemon's path had when it sent them. So a path is *told* first and *in force* once
the daemon has counted what went the old way and said so; counters that come in are booked on the path in force.
"""

from __future__ import annotations

from fauxrdma.errors import FabricUnhealthy
from fauxrdma.fabric.sweep import LivingSubnet
from fauxrdma.ib.attributes import FIRST_MULTICAST_LID
from fauxrdma.wire.fabric_messages import PathAnswer

__all__ = ["ToldPaths"]

_Pair = tuple[int, int]


class ToldPaths:
    """Paths by (source LID, destination LID). A source LID is one node's, so a pair has one daemon that asked."""

    def __init__(self, subnet: LivingSubnet) -> None:
        self._subnet = subnet
        self._manager = subnet.manager
        self._told: dict[_Pair, PathAnswer] = {}
        self._in_force: dict[_Pair, tuple[int, ...]] = {}
        self._coming: dict[_Pair, tuple[int, ...]] = {}

    def describe(self, slid: int, dlid: int) -> PathAnswer:
        """The path from one LID to another as things are now."""
        if dlid >= FIRST_MULTICAST_LID:
            return self._describe_group(slid, dlid)
        try:
            way = self._subnet.way(slid, dlid)
        except FabricUnhealthy:
            return PathAnswer(slid, dlid, False, 0, [], 0, 0)
        try:
            path = self._manager.path(slid, dlid)
        except FabricUnhealthy:
            return PathAnswer(slid, dlid, False, 0, [], 0, 0, way.lost_at)
        names = [self._manager.topology.links[link].name for link in path.links]
        return PathAnswer(
            slid, dlid, True, path.switches, names, path.latency_ns, path.rate.bits_per_s, lost_at=way.lost_at
        )

    def _describe_group(self, slid: int, group: int) -> PathAnswer:
        try:
            sent = self._subnet.deliver(slid, group)
        except FabricUnhealthy:
            return PathAnswer(slid, group, False, 0, [], 0, 0)
        names = [self._manager.topology.links[link].name for link in sent.links]
        rate = min(self._manager.payload_rate(link) for link in sent.links)
        return PathAnswer(slid, group, True, 0, names, 0, rate.bits_per_s, members=dict(sent.latency_ns))

    def tell(self, slid: int, dlid: int) -> PathAnswer:
        """The answer to the daemon of `slid`, which will go by it and hear of changes."""
        answer = self._told[slid, dlid] = self.describe(slid, dlid)
        self._coming.pop((slid, dlid), None)
        self._in_force[slid, dlid] = self._links(slid, dlid)
        return answer

    def changes(self) -> dict[int, list[PathAnswer]]:
        """By node, the paths told before that are others now. They count as told; `apply` puts them in force."""
        out: dict[int, list[PathAnswer]] = {}
        for (slid, dlid), told in self._told.items():
            now = self.describe(slid, dlid)
            if now != told:
                self._told[slid, dlid] = now
                self._coming[slid, dlid] = self._links(slid, dlid)
                out.setdefault(self._manager.node(slid).host or 0, []).append(now)
        return out

    def apply(self, node: int) -> None:
        """A node goes by all that it was told."""
        for pair in [pair for pair in self._coming if self._manager.node(pair[0]).host == node]:
            self._in_force[pair] = self._coming.pop(pair)

    def in_force(self, slid: int, dlid: int) -> tuple[int, ...]:
        """Ids of the links that the daemon's packets cross, up to where they are lost. A pair that no daemon asked for
        goes the way it has now."""
        links = self._in_force.get((slid, dlid))
        return self._links(slid, dlid) if links is None else links

    def forget(self, node: int) -> None:
        """A node's daemon is gone."""
        for pair in [pair for pair in self._told if self._manager.node(pair[0]).host == node]:
            del self._told[pair], self._in_force[pair]
            self._coming.pop(pair, None)

    def _links(self, slid: int, dlid: int) -> tuple[int, ...]:
        try:
            if dlid >= FIRST_MULTICAST_LID:
                return self._subnet.deliver(slid, dlid).links
            return self._subnet.way(slid, dlid).links
        except FabricUnhealthy:
            return ()
