"""What is plugged into each switch, told for a person: ports used of its radix, to hosts and to other switches."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from fauxrdma.topology.drawing import runs
from fauxrdma.topology.graph import NodeKind, Topology
from fauxrdma.units import Rate

__all__ = ["CableKind", "SwitchPorts", "cable_kinds", "cable_lines", "switch_lines", "switch_ports"]


@dataclass(frozen=True, slots=True)
class SwitchPorts:
    """One switch: its `radix`, and how many of its ports go to HCAs, to lower tiers, and up (or across its tier)."""

    name: str
    tier: int
    radix: int
    to_hosts: int
    to_lower: int
    to_upper: int

    @property
    def used(self) -> int:
        """Ports that hold a cable."""
        return self.to_hosts + self.to_lower + self.to_upper

    def to_dict(self) -> dict[str, Any]:
        """Plain data, with `used`."""
        return {**asdict(self), "used": self.used}


@dataclass(frozen=True, slots=True, order=True)
class CableKind:
    """`count` cables of one rate and length."""

    rate: Rate
    length_m: float
    count: int

    def to_dict(self) -> dict[str, Any]:
        """Plain data, the rate in bits/s."""
        return {"rate_bps": self.rate.bits_per_s, "length_m": self.length_m, "count": self.count}


def switch_ports(topology: Topology) -> list[SwitchPorts]:
    """The ports of every switch, in (tier, index) order."""
    out = []
    for switch in topology.switches():
        to_hosts = to_lower = to_upper = 0
        for link in topology.links_from(switch.name):
            peer = topology.nodes[link.dst]
            if peer.kind is not NodeKind.SWITCH:
                to_hosts += 1
            elif (peer.tier or 0) < (switch.tier or 0):
                to_lower += 1
            else:
                to_upper += 1
        out.append(SwitchPorts(switch.name, switch.tier or 0, switch.radix or 0, to_hosts, to_lower, to_upper))
    return out


def cable_kinds(topology: Topology) -> list[CableKind]:
    """How many cables there are of each rate and length, slow and short ones first."""
    counts: dict[tuple[Rate, float], int] = {}
    for link in topology.links:
        if link.kind == "cable" and link.id < link.reverse:
            counts[link.rate, link.length_m] = counts.get((link.rate, link.length_m), 0) + 1
    return [CableKind(rate, length_m, count) for (rate, length_m), count in sorted(counts.items())]


def switch_lines(topology: Topology) -> list[str]:
    """One line for all switches that are alike: `leaf1-leaf8: 26 of 40 ports used (16 to hosts, 10 up)`."""
    alike: dict[tuple[int, ...], list[str]] = {}
    for each in switch_ports(topology):
        key = (each.tier, each.radix, each.to_hosts, each.to_lower, each.to_upper)
        alike.setdefault(key, []).append(each.name)
    lines = []
    for (_, radix, *uses), names in alike.items():
        words = zip(uses, ("to hosts", "down", "up"), strict=True)
        told = ", ".join(f"{count} {word}" for count, word in words if count)
        lines.append(f"{runs(names)}: {sum(uses)} of {radix} ports used{f' ({told})' if told else ''}")
    return lines


def cable_lines(topology: Topology) -> list[str]:
    """One line for each rate and length: `80 cables of 200 Gb/s, 20 m`."""
    return [
        f"{kind.count} cable{'' if kind.count == 1 else 's'} of {kind.rate}, {kind.length_m:g} m"
        for kind in cable_kinds(topology)
    ]
