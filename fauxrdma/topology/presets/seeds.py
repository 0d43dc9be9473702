"""The fabrics of the seed documents that spread a node over several leaves (REFERENCE D).

HCA i goes to leaf ``(i - 1) % leaves``. The text of the seeds does not say where HCA9 is plugged in: storage HCAs go
where the fewest ports are taken (`spread_storage`).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from fauxrdma.topology.host_shape import HostShape
from fauxrdma.topology.presets.base import Preset, Wiring, spread_storage
from fauxrdma.topology.presets.options import option, whole

__all__ = ["Rail4", "Rail8", "TwoSwitch"]


@dataclass(frozen=True, kw_only=True)
class _Spread(Preset):
    """`leaves` leaves, each with some HCAs of every node."""

    leaves: ClassVar[int]
    radix: int = option(40, "ports of every switch", whole(2, 4096))

    @property
    @abstractmethod
    def trunk_ports(self) -> int:
        """Ports of each leaf that go to other switches."""

    @abstractmethod
    def join(self, wiring: Wiring, leaves: list[str]) -> None:
        """Plug the leaves together."""

    def place(self, nodes: int, shape: HostShape) -> list[list[int]]:
        """For each node, the leaf (from 0) of each of its HCAs."""
        used = [0] * self.leaves
        placed = []
        for _ in range(nodes):
            leaf_of = [i % self.leaves for i in range(shape.compute_hcas)]
            for leaf in leaf_of:
                used[leaf] += 1
            placed.append(leaf_of + spread_storage(used, shape))
        return placed

    def _full_leaf(self, nodes: int, shape: HostShape) -> int | None:
        """The first leaf that would need more ports than it has, or None when all fit."""
        placed = self.place(nodes, shape)
        needs = [sum(leaf_of.count(leaf) for leaf_of in placed) for leaf in range(self.leaves)]
        return next((leaf for leaf, need in enumerate(needs) if need > self.radix - self.trunk_ports), None)

    def max_nodes(self, shape: HostShape) -> int:
        nodes = 0
        while self._full_leaf(nodes + 1, shape) is None:
            nodes += 1
        return nodes

    def limit(self, shape: HostShape) -> str:
        full = self._full_leaf(self.max_nodes(shape) + 1, shape)
        assert full is not None
        return (
            f"leaf{full + 1} ran out of ports (it has {self.radix}, of which {self.trunk_ports} go to other switches)"
        )

    def plug(self, wiring: Wiring) -> None:
        leaves = wiring.switches("leaf", self.leaves, 0, self.radix)
        self.join(wiring, leaves)
        for host, leaf_of in enumerate(self.place(wiring.nodes, wiring.shape)):
            wiring.host(host, (leaves[leaf] for leaf in leaf_of))


@dataclass(frozen=True, kw_only=True)
class TwoSwitch(_Spread):
    """Two switches side by side."""

    name = "seed-two-switch"
    summary = "Two 40-port switches joined by 4 cables; odd HCAs of every node on the first, even ones on the second"
    leaves = 2
    usual: ClassVar[dict[str, Any]] = {"trunk": 5.0}
    trunks: int = option(4, "cables between the two switches", whole(1, 4096))

    @property
    def trunk_ports(self) -> int:
        return self.trunks

    def join(self, wiring: Wiring, leaves: list[str]) -> None:
        wiring.trunks(leaves[0], leaves[1], self.trunks)


@dataclass(frozen=True, kw_only=True)
class _Rail(_Spread):
    """Leaves below spines whose ports are all taken: the same number of cables from each leaf to each spine."""

    spines: int = option(2, "spine switches", whole(1, 4096))

    @property
    def trunk_ports(self) -> int:
        return self.spines * (self.radix // self.leaves)

    def join(self, wiring: Wiring, leaves: list[str]) -> None:
        spines = wiring.switches("spine", self.spines, 1, self.radix)
        wiring.mesh(leaves, spines, self.radix // self.leaves)


@dataclass(frozen=True, kw_only=True)
class Rail8(_Rail):
    """One leaf per rail."""

    name = "seed-rail8"
    summary = "8 leaves and 2 spines of 40 ports, 80 cables between them; HCA i of every node on leaf i"
    leaves = 8


@dataclass(frozen=True, kw_only=True)
class Rail4(_Rail):
    """Two rails to a leaf."""

    name = "seed-rail4"
    summary = "4 leaves and 2 spines of 40 ports, 80 cables between them; HCAs i and i+4 of every node on leaf i"
    leaves = 4
