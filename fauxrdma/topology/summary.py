"""What a fabric consists of, in numbers: devices, cables, ports, oversubscription per tier."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from fauxrdma.topology.graph import TIER_NAMES, Link, Node, NodeKind, Topology
from fauxrdma.topology.ip_subnets import ip_subnets
from fauxrdma.units import Rate

__all__ = ["TierSummary", "TopologySummary", "summarise"]


@dataclass(frozen=True, slots=True)
class TierSummary:
    """One tier of switches. `down` is the total rate toward hosts and lower tiers, `up` toward higher tiers and between
    switches of this tier. `oversubscription` is down/up of the switch where it is worst; None where nothing goes up."""

    tier: int
    name: str
    switches: int
    ports: int
    ports_used: int
    down: Rate
    up: Rate
    oversubscription: float | None

    @property
    def verdict(self) -> str:
        """`non-blocking`, `2:1 oversubscribed`, or `nothing above`."""
        if self.oversubscription is None:
            return "nothing above"
        if self.oversubscription <= 1:
            return "non-blocking"
        return f"{self.oversubscription:.3g}:1 oversubscribed"


@dataclass(frozen=True, slots=True)
class TopologySummary:
    """Counts over a whole fabric. `host_cables` join HCAs to switches, `switch_cables` switches to each other;
    `cable_rates` counts cables by rate; `pcie_lanes` and `nvlinks` are the links inside hosts, both directions as one;
    `islands` are the parts that no way joins, `subnets` the IP subnets (1 where nothing routes)."""

    name: str
    hosts: int
    gpus: int
    hcas: int
    switches: int
    host_cables: int
    switch_cables: int
    cable_rates: dict[Rate, int]
    pcie_lanes: int
    nvlinks: int
    islands: int
    subnets: int
    tiers: tuple[TierSummary, ...]

    @property
    def cables(self) -> int:
        """All cables."""
        return self.host_cables + self.switch_cables

    def lines(self) -> list[str]:
        """For a person, one fact a line."""
        rates = ", ".join(f"{count} x {rate}" for rate, count in sorted(self.cable_rates.items()))
        out = [
            f"{self.name}: {_many(self.hosts, 'host')}, {_many(self.gpus, 'GPU')}, {_many(self.hcas, 'HCA')}, "
            f"{_many(self.switches, 'switch', 'switches')}",
            f"cables: {self.cables} ({self.host_cables} to hosts, {self.switch_cables} between switches): {rates}; "
            f"inside hosts {self.pcie_lanes} PCIe and {self.nvlinks} NVLink links",
        ]
        if self.islands > 1:
            out.append(f"{self.islands} islands: no way leads from one to another but through a host's NVLink (PXN)")
        if self.subnets > 1:
            out.append(f"{self.subnets} IP subnets, joined by switches that route")
        for tier in self.tiers:
            out.append(
                f"{tier.name}: {_many(tier.switches, 'switch', 'switches')}, {tier.ports_used} of {tier.ports} ports "
                f"used, {tier.down} down, {tier.up} up, {tier.verdict}"
            )
        return out


def summarise(topology: Topology) -> TopologySummary:
    """Count what is in `topology`."""
    kinds = Counter(node.kind for node in topology.nodes.values())
    kinds_of_links = Counter(link.kind for link in topology.links)
    cables = [link for link in topology.links if link.kind == "cable" and link.id < link.reverse]
    to_hosts = sum(1 for link in cables if NodeKind.HCA in (_kind(topology, link.src), _kind(topology, link.dst)))
    tiers = sorted({node.tier or 0 for node in topology.switches()})
    return TopologySummary(
        name=topology.name,
        hosts=topology.hosts,
        gpus=kinds[NodeKind.GPU],
        hcas=kinds[NodeKind.HCA],
        switches=kinds[NodeKind.SWITCH],
        host_cables=to_hosts,
        switch_cables=len(cables) - to_hosts,
        cable_rates=dict(Counter(link.rate for link in cables)),
        pcie_lanes=kinds_of_links["pcie"] // 2,
        nvlinks=kinds_of_links["nvlink"] // 2,
        islands=topology.islands,
        subnets=len(set(ip_subnets(topology).values())),
        tiers=tuple(_tier(topology, tier) for tier in tiers),
    )


def _many(count: int, one: str, more: str | None = None) -> str:
    return f"{count} {one if count == 1 else more or one + 's'}"


def _kind(topology: Topology, name: str) -> NodeKind:
    return topology.nodes[name].kind


def _tier(topology: Topology, tier: int) -> TierSummary:
    switches = [node for node in topology.switches() if node.tier == tier]
    down_total = up_total = used = 0
    worst: float | None = None
    for switch in switches:
        links = topology.links_from(switch.name)
        used += len(links)
        up = sum(link.rate.bits_per_s for link in links if _goes_up(topology, switch, link))
        down = sum(link.rate.bits_per_s for link in links) - up
        up_total += up
        down_total += down
        if up:
            worst = max(worst or 0.0, down / up)
    return TierSummary(
        tier=tier,
        name=TIER_NAMES[tier] if tier < len(TIER_NAMES) else f"tier {tier}",
        switches=len(switches),
        ports=sum(switch.radix or 0 for switch in switches),
        ports_used=used,
        down=Rate(down_total),
        up=Rate(up_total),
        oversubscription=worst,
    )


def _goes_up(topology: Topology, switch: Node, link: Link) -> bool:
    peer = topology.nodes[link.dst]
    return peer.kind is NodeKind.SWITCH and (peer.tier or 0) >= (switch.tier or 0)
