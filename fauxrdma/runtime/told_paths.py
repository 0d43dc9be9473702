"""Which path every daemon goes by: what it was told, and what it has said it applied.

A path is that of a flow, (source LID, destination LID, label), since on Ethernet the flows of one pair go different
ways; elsewhere the label is 0. Bytes belong to the links that the daemon's path had when it sent them. So a path is
*told* first and *in force* once the daemon has counted what went the old way and said so; counters that come in are
booked on the path in force.
"""

from __future__ import annotations

from fauxrdma.errors import FabricUnhealthy
from fauxrdma.fabric.faults import Effects
from fauxrdma.fabric.flow_ways import Flow, FlowWays
from fauxrdma.fabric.sweep import LivingSubnet
from fauxrdma.ib.attributes import FIRST_MULTICAST_LID
from fauxrdma.wire.fabric_messages import PathAnswer

__all__ = ["ToldPaths", "Ways"]

Ways = tuple[tuple[int, ...], ...]
"""Ids of links: the ways that packets take in turn, a single one unless they are sprayed."""


class ToldPaths:
    """Paths by flow. A source LID is one node's, so a flow has one daemon that asked."""

    def __init__(self, subnet: LivingSubnet, ways: FlowWays) -> None:
        self._subnet = subnet
        self._ways = ways
        self._manager = subnet.manager
        self._names = {link.id: link.name for link in self._manager.topology.links}
        self.effects = Effects()
        self._told: dict[Flow, PathAnswer] = {}
        self._in_force: dict[Flow, Ways] = {}
        self._coming: dict[Flow, Ways] = {}

    def describe(self, slid: int, dlid: int, label: int = 0) -> PathAnswer:
        """The path of a flow as things are now."""
        if dlid >= FIRST_MULTICAST_LID:
            return self._describe_group(slid, dlid)
        try:
            path = self._ways.path((slid, dlid, label))
        except FabricUnhealthy:
            return PathAnswer(slid, dlid, False, 0, [], 0, 0, self._stuck_at(slid, dlid), label=label)
        found = [self._subnet.follow(way) for way in path.ways or (path.links,)]
        lost = [number for number, way in enumerate(found) if way.lost_at]
        names = [self._manager.topology.links[link].name for link in path.links]
        effects = self.effects
        slowest = min((self._rate_bps(link) for link in path.links if link in effects.slowdown), default=None)
        rate_bps = path.rate.bits_per_s if slowest is None else min(slowest, path.rate.bits_per_s)
        lost_at = found[0].lost_at if len(lost) == len(found) else ""
        return PathAnswer(
            slid, dlid, True, path.switches, names, path.latency_ns + effects.delay_ns(path.links), rate_bps,
            lost_at=lost_at or self._shut_out(slid, dlid),
            hazards=effects.hazards(path.links, self._names),
            stopped=effects.stopped(path.links),
            label=label,
            ways=len(found),
            lost_ways=lost if path.ways else [],
            sl=self._manager.routes.sl(slid, dlid),
        )  # fmt: skip

    def _rate_bps(self, link: int) -> int:
        """The payload rate of a link that is slower for now."""
        return int(self._manager.payload_rate(link).bits_per_s * self.effects.slowdown[link])

    def _shut_out(self, slid: int, dlid: int) -> str:
        """The HCA that drops packets from another one for their P_Key, "" if it takes them."""
        if not self.effects.partitions:
            return ""
        source, target = self._manager.node(slid).name, self._manager.node(dlid).name
        return f"{target} (partition)" if self.effects.apart(source, target) else ""

    def _stuck_at(self, slid: int, dlid: int) -> str:
        """Where packets end that have no way; "" if there is no such HCA."""
        try:
            return self._subnet.way(slid, dlid).lost_at
        except FabricUnhealthy:
            return ""

    def _describe_group(self, slid: int, group: int) -> PathAnswer:
        try:
            sent = self._subnet.deliver(slid, group)
        except FabricUnhealthy:
            return PathAnswer(slid, group, False, 0, [], 0, 0)
        names = [self._manager.topology.links[link].name for link in sent.links]
        rate = min(self._manager.payload_rate(link) for link in sent.links)
        members = {lid: ns for lid, ns in sent.latency_ns.items() if not self._shut_out(slid, lid)}
        return PathAnswer(slid, group, True, 0, names, 0, rate.bits_per_s, members=members)

    def tell(self, slid: int, dlid: int, label: int = 0) -> PathAnswer:
        """The answer to the daemon of `slid`, which will go by it and hear of changes."""
        flow = (slid, dlid, label)
        answer = self._told[flow] = self.describe(*flow)
        self._coming.pop(flow, None)
        self._in_force[flow] = self._ways_of(*flow)
        return answer

    def changes(self) -> dict[int, list[PathAnswer]]:
        """By node, the paths told before that are others now. They count as told; `apply` puts them in force."""
        out: dict[int, list[PathAnswer]] = {}
        for flow, told in self._told.items():
            now = self.describe(*flow)
            if now != told:
                self._told[flow] = now
                self._coming[flow] = self._ways_of(*flow)
                out.setdefault(self._manager.node(flow[0]).host or 0, []).append(now)
        return out

    def chosen(self, flow: Flow) -> bool:
        """A flow's way was chosen anew, and nothing is under way that is not counted: it is in force at once. Returns
        whether the daemon has to hear of it, since its packets are lost now, or are so no more."""
        told = self._told.get(flow)
        if told is None:
            return False
        self._coming.pop(flow, None)
        self._in_force[flow] = self._ways_of(*flow)
        now = self.describe(*flow)
        if (now.reachable, now.lost_at, now.latency_ns) != (told.reachable, told.lost_at, told.latency_ns):
            return True
        self._told[flow] = now
        return False

    def apply(self, node: int) -> None:
        """A node goes by all that it was told."""
        for flow in [flow for flow in self._coming if self._manager.node(flow[0]).host == node]:
            self._in_force[flow] = self._coming.pop(flow)

    def in_force(self, slid: int, dlid: int, label: int = 0) -> Ways:
        """The ways that a flow's packets take in turn, up to where they are lost. A flow that no daemon asked for goes
        the way it has now."""
        ways = self._in_force.get((slid, dlid, label))
        return self._ways_of(slid, dlid, label) if ways is None else ways

    def forget_flow(self, flow: Flow) -> None:
        """A flow is gone. Harmless for one that was not asked for."""
        self._told.pop(flow, None)
        self._in_force.pop(flow, None)
        self._coming.pop(flow, None)
        self._ways.forget(flow)

    def forget(self, node: int) -> None:
        """A node's daemon is gone."""
        for flow in [flow for flow in self._told if self._manager.node(flow[0]).host == node]:
            self.forget_flow(flow)

    def _ways_of(self, slid: int, dlid: int, label: int) -> Ways:
        try:
            if dlid >= FIRST_MULTICAST_LID:
                return (self._subnet.deliver(slid, dlid).links,)
            path = self._ways.path((slid, dlid, label))
            return tuple(self._subnet.follow(way).links for way in path.ways or (path.links,))
        except FabricUnhealthy:
            pass
        try:
            return (self._subnet.way(slid, dlid).links,)
        except FabricUnhealthy:
            return ((),)
