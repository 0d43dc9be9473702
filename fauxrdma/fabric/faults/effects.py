"""What the active faults together do: to links, by id and in both directions, to HCAs and to the subnet manager.

Of several faults of a link the lowest rate counts, delays add up, and a packet survives if it survives each.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from fauxrdma.topology.fault_targets import group_members
from fauxrdma.topology.graph import Topology
from fauxrdma.wire.fault_messages import FaultEvent, Hazard

__all__ = ["ALL_PRIORITIES", "FIRST_PARTITION", "Effects"]

ALL_PRIORITIES = frozenset(range(16))
"""Service levels of InfiniBand; the eight priorities of Ethernet are among them."""
FULL_MEMBER = 0x8000
FIRST_PARTITION = FULL_MEMBER | 1
"""The P_Key of a partition's first group; the others follow."""


@dataclass(frozen=True, slots=True)
class Effects:
    """`down`: names of cables; `slowdown`: what part of its rate a link has left; `latency_ns`: what it takes longer;
    `loss` and `bit_errors`: probabilities; `paused`: priorities; `dead`: names of HCAs; `partitions`: for each
    partition its groups of HCAs; `manager_away`: whether the subnet manager does nothing."""

    down: frozenset[str] = frozenset()
    slowdown: dict[int, float] = field(default_factory=dict)
    latency_ns: dict[int, int] = field(default_factory=dict)
    loss: dict[int, float] = field(default_factory=dict)
    bit_errors: dict[int, float] = field(default_factory=dict)
    paused: dict[int, frozenset[int]] = field(default_factory=dict)
    dead: frozenset[str] = frozenset()
    partitions: tuple[tuple[frozenset[str], ...], ...] = ()
    manager_away: bool = False

    @classmethod
    def of(cls, topology: Topology, events: Iterable[FaultEvent]) -> Effects:
        """The effects of these faults, whose targets are there."""
        by_name = {link.name: link for link in topology.links}
        down: set[str] = set()
        dead: set[str] = set()
        partitions = []
        made = cls(manager_away=any(event.kind == "sm-restart" for event in events))
        for event in events:
            kind = event.kind
            if kind in ("link-down", "link-flap"):
                down.add(event.target)
            elif kind == "switch-down":
                down.update(link.name for link in topology.links_from(event.target))
            elif kind == "hca-down":
                down.add(topology.fabric_link(topology.nodes[event.target]).name)
                dead.add(event.target)
            elif kind == "partition":
                partitions.append(tuple(group_members(event.groups, topology)))
            elif kind == "slow-gpu":
                for link in topology.links_from(event.target):
                    made._slow(link.id, link.reverse, 1 / event.factor)
            elif kind != "sm-restart":
                link = by_name[event.target]
                made._impair(link.id, link.reverse, event, link.rate.bits_per_s)
        return cls(
            frozenset(down), made.slowdown, made.latency_ns, made.loss, made.bit_errors, made.paused, frozenset(dead),
            tuple(partitions), made.manager_away,
        )  # fmt: skip

    def _slow(self, link: int, reverse: int, part: float) -> None:
        for one in (link, reverse):
            self.slowdown[one] = min(self.slowdown.get(one, 1.0), part)

    def _impair(self, link: int, reverse: int, event: FaultEvent, full_bps: int) -> None:
        if event.kind == "degrade":
            self._slow(link, reverse, min(1.0, event.rate_bps / full_bps))
            return
        for one in (link, reverse):
            if event.kind == "latency":
                self.latency_ns[one] = self.latency_ns.get(one, 0) + event.latency_ns
            elif event.kind == "packet-loss":
                self.loss[one] = 1 - (1 - self.loss.get(one, 0.0)) * (1 - event.loss)
            elif event.kind == "bit-errors":
                self.bit_errors[one] = self.bit_errors.get(one, 0.0) + event.bit_errors
            else:
                chosen = ALL_PRIORITIES if event.priority < 0 else frozenset((event.priority,))
                self.paused[one] = self.paused.get(one, frozenset()) | chosen

    # -- of a path, by the ids of its links

    def delay_ns(self, links: Iterable[int]) -> int:
        """What the path takes longer."""
        return sum(self.latency_ns.get(link, 0) for link in links) if self.latency_ns else 0

    def hazards(self, links: Iterable[int], names: dict[int, str]) -> list[Hazard]:
        """Its links that lose or damage packets; `names` are those of links."""
        if not self.loss and not self.bit_errors:
            return []
        bad = [link for link in links if link in self.loss or link in self.bit_errors]
        return [Hazard(names[link], self.loss.get(link, 0.0), self.bit_errors.get(link, 0.0)) for link in bad]

    def stopped(self, links: Iterable[int]) -> list[int]:
        """Priorities that do not move on it."""
        if not self.paused:
            return []
        return sorted(frozenset().union(*(self.paused.get(link, frozenset()) for link in links)))

    # -- of HCAs, by name

    def apart(self, one: str, other: str) -> bool:
        """Whether two HCAs have no P_Key in common. Those in no group of a partition keep all their peers."""
        for groups in self.partitions:
            sides = [number for number, group in enumerate(groups) if one in group or other in group]
            if len(sides) > 1:
                return True
        return False

    def pkeys(self, hca: str) -> list[int]:
        """The P_Key table that the manager gives an HCA; [] where no partition concerns it."""
        return [
            FIRST_PARTITION + number
            for groups in self.partitions
            for number, group in enumerate(groups)
            if hca in group
        ]
