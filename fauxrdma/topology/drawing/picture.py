"""What a drawing of a fabric shows: rows of boxes, the highest tier first and hosts last, and bundles between boxes.

Hosts that are plugged into the same leaves in the same way are one box. A row that is still longer than `MOST_BOXES` is
folded: switches or hosts that stand alike (the same ports, neighbours that stand alike, as many cables of the same rate
to each) become one box. A bundle is all cables between two boxes.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, field

from fauxrdma.topology.drawing.names import runs
from fauxrdma.topology.graph import TIER_NAMES, NodeKind, Topology
from fauxrdma.units import Rate

__all__ = ["MOST_BOXES", "Box", "Bundle", "Picture", "picture_of"]

MOST_BOXES = 24
"""Boxes in a row that are still readable; a longer row is folded."""


_MOST_BESIDE_FOLDED = 8
"""The same in a fabric of which another row is folded."""

_LOOKS = 6
"""How often it is looked closer at which switches stand alike."""


@dataclass(slots=True)
class Box:
    """One or several switches, or hosts, that are drawn as one. `label` fits into a box, `detail` into a tooltip."""

    members: list[str]
    is_hosts: bool
    detail: str = ""

    @property
    def label(self) -> str:
        """The names, as a range where they count up, shortened."""
        text = runs(self.members)
        return text if len(text) <= 24 else f"{self.members[0]} ... {self.members[-1]}"


@dataclass(slots=True)
class Bundle:
    """All cables between two boxes, by rate; `pairs` of devices that have at least one."""

    a: int
    b: int
    rates: Counter[Rate] = field(default_factory=Counter)
    pairs: set[tuple[str, str]] = field(default_factory=set)

    @property
    def cables(self) -> int:
        """How many."""
        return self.rates.total()

    def text(self) -> str:
        """`10 x 200 Gb/s`, each rate by itself."""
        return " + ".join(f"{count} x {rate}" for rate, count in sorted(self.rates.items()))


@dataclass(slots=True)
class Picture:
    """`rows` of indices into `boxes`, each with the name of its tier; bundles between boxes, upper box first."""

    title: str
    boxes: list[Box]
    rows: list[tuple[str, list[int]]]
    bundles: list[Bundle]


def picture_of(topology: Topology) -> Picture:
    """The picture of a fabric of any size."""
    rows = _rows(topology)
    big = max(len(groups) for _, groups in rows) > MOST_BOXES
    standings = _standings(topology) if big else []
    boxes: list[Box] = []
    drawn: list[tuple[str, list[int]]] = []
    box_of: dict[str, int] = {}
    for name, groups in rows:
        if big and len(groups) > _MOST_BESIDE_FOLDED:
            groups = _folded(groups, standings)
        own = []
        for group in groups:
            own.append(len(boxes))
            box_of.update(dict.fromkeys(group, len(boxes)))
            boxes.append(Box(group, name == "hosts", _detail(topology, group)))
        drawn.append((name, own))
    place = {index: row for row, (_, own) in enumerate(drawn) for index in own}
    bundles: dict[tuple[int, int], Bundle] = {}
    for a, b, rate in _cables(topology):
        one, other = sorted((box_of[a], box_of[b]), key=lambda index: (place[index], index))
        bundle = bundles.setdefault((one, other), Bundle(one, other))
        bundle.rates[rate] += 1
        bundle.pairs.add((a, b))
    return Picture(topology.name, boxes, drawn, list(bundles.values()))


def _device(topology: Topology, name: str) -> str:
    """The switch, or the host that a device is in."""
    host = topology.nodes[name].host
    return name if host is None else f"n{host}"


def _cables(topology: Topology) -> list[tuple[str, str, Rate]]:
    return [
        (_device(topology, link.src), _device(topology, link.dst), link.rate)
        for link in topology.links
        if link.kind == "cable" and link.id < link.reverse
    ]


def _rows(topology: Topology) -> list[tuple[str, list[list[str]]]]:
    """Tiers from the top, each switch by itself; then the hosts, those on the same leaves together."""
    tiers: dict[int, list[list[str]]] = defaultdict(list)
    for switch in topology.switches():
        tiers[switch.tier or 0].append([switch.name])
    rows = [
        (TIER_NAMES[tier] if 0 <= tier < len(TIER_NAMES) else f"tier {tier}", tiers[tier])
        for tier in sorted(tiers, reverse=True)
    ]
    plugged: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for hca in topology.hcas():
        compute = hca.index <= topology.shape.compute_hcas or not topology.shape.compute_hcas
        if compute:  # storage HCAs take turns over the leaves, which would keep alike hosts apart
            plugged[hca.host or 0].append((hca.index, topology.fabric_link(hca).dst))
    groups: dict[Hashable, list[str]] = defaultdict(list)
    for host in range(topology.hosts):
        groups[tuple(plugged[host])].append(f"n{host}")
    return [*rows, ("hosts", list(groups.values()))]


def _standings(topology: Topology) -> list[dict[str, Hashable]]:
    """Marks for every switch and host, the same for those that stand alike; each time a closer look (colour
    refinement), beginning with tier, ports, and the name without its numbers."""
    cables = _cables(topology)
    colour: dict[str, Hashable] = {f"n{host}": -1 for host in range(topology.hosts)}
    colour |= {s.name: (s.tier or 0, s.radix or 0, re.sub(r"\d+", "", s.name)) for s in topology.switches()}
    found = [colour]
    while len(found) < _LOOKS:
        near: dict[str, Counter[Hashable]] = {name: Counter() for name in colour}
        for a, b, rate in cables:
            near[a][colour[b], rate.bits_per_s] += 1
            near[b][colour[a], rate.bits_per_s] += 1
        marks: dict[Hashable, int] = {}
        refined: dict[str, Hashable] = {
            name: marks.setdefault((own, frozenset(near[name].items())), len(marks)) for name, own in colour.items()
        }
        if len(marks) == len(set(colour.values())):
            break
        found.append(refined)
        colour = refined
    return found


def _folded(groups: list[list[str]], standings: list[dict[str, Hashable]]) -> list[list[str]]:
    """The groups joined by the closest look that leaves few enough, else by the first."""
    for marks in reversed(standings):
        joined: dict[Hashable, list[str]] = defaultdict(list)
        for group in groups:
            for member in group:
                joined[marks[member]].append(member)
        if len(joined) <= MOST_BOXES:
            break
    return list(joined.values())


def _detail(topology: Topology, group: list[str]) -> str:
    node = topology.nodes.get(group[0])
    many = "" if len(group) == 1 else f"{len(group)} alike, "
    if node is not None and node.kind is NodeKind.SWITCH:
        used = len(topology.links_from(node.name))
        ports = f"{used} ports used" if node.radix is None else f"{used} of {node.radix} ports used"
        return f"{runs(group)}: {many}{ports}"
    shape = topology.shape
    return f"{runs(group)}: {many}{shape.gpus} GPUs and {shape.hcas} HCAs each"
