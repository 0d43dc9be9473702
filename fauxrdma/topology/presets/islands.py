"""Fabrics made of parts without a way between them: traffic changes part inside a host, over NVLink (PXN), or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from fauxrdma.topology.host_shape import HostShape
from fauxrdma.topology.presets.base import Preset, Wiring, spread_storage
from fauxrdma.topology.presets.clos import spines_for
from fauxrdma.topology.presets.options import option, whole

__all__ = ["DualPlane", "RailOnly"]


@dataclass(frozen=True, kw_only=True)
class DualPlane(Preset):
    """Two equal fabrics, A and B, joined by nothing, each a non-blocking two-level tree.

    In the field (Alibaba HPN, SIGCOMM 2024) the two ports of one NIC go to two planes, so that a failed leaf costs half
    the rate and hashing polarises less. Our HCAs have one port: odd HCAs are on plane A, even ones on plane B, as in a
    host whose pairs of one-port HCAs stand for two-port NICs. A storage HCA goes to the plane that has fewer HCAs so
    far. All HCAs that a node has in a plane are on one leaf.
    """

    name = "dual-plane"
    summary = "Two disjoint two-level fabrics; odd HCAs of every node on plane A, even ones on plane B"
    usual: ClassVar[dict[str, Any]] = {"nvlink": True}
    radix: int = option(40, "ports of every switch", whole(2, 4096, even=True))

    def islands(self, shape: HostShape) -> int:
        return min(2, shape.hcas)

    def _nodes_per_leaf(self, shape: HostShape) -> int:
        return self.radix // 2 // -(-shape.hcas // 2)

    def max_nodes(self, shape: HostShape) -> int:
        return self.radix * self._nodes_per_leaf(shape)

    def limit(self, shape: HostShape) -> str:
        most = -(-shape.hcas // 2)
        if not self._nodes_per_leaf(shape):
            return (
                f"leafA1 ran out of ports (it has {self.radix}, of which {self.radix // 2} go up, and a node has "
                f"{most} HCAs on a plane)"
            )
        return (
            f"spineA1 ran out of ports (it has {self.radix}, one per leaf, and each leaf takes the {most} HCAs of "
            f"{self._nodes_per_leaf(shape)} nodes)"
        )

    def plug(self, wiring: Wiring) -> None:
        shape = wiring.shape
        per_leaf = self._nodes_per_leaf(shape)
        count = -(-wiring.nodes // per_leaf)
        planes = "AB"[: self.islands(shape)]
        leaves = [wiring.switches(f"leaf{plane}", count, 0, self.radix) for plane in planes]
        up = self.radix // 2
        spines = [
            wiring.switches(f"spine{plane}", spines_for(count, up, self.radix), 1, self.radix) for plane in planes
        ]
        used = [0] * len(planes)
        for host in range(wiring.nodes):
            plane_of = [i % len(planes) for i in range(shape.compute_hcas)]
            for plane in plane_of:
                used[plane] += 1
            plane_of += spread_storage(used, shape)
            wiring.host(host, (leaves[plane][host // per_leaf] for plane in plane_of))
        for low, high in zip(leaves, spines, strict=True):
            wiring.mesh(low, high, up // max(1, len(high)))


@dataclass(frozen=True, kw_only=True)
class RailOnly(Preset):
    """No spine: one switch per rail, HCA i of every node on switch i, storage HCAs as rails of their own (Wang et al.,
    "Rail-only: A Low-Cost High-Performance Network for Training LLMs with Trillion Parameters", 2023)."""

    name = "rail-only"
    summary = "One switch per rail and nothing between them; HCA i of every node on leaf i"
    usual: ClassVar[dict[str, Any]] = {"nvlink": True}
    radix: int = option(40, "ports of every switch", whole(1, 4096))

    def islands(self, shape: HostShape) -> int:
        return shape.hcas

    def max_nodes(self, shape: HostShape) -> int:
        return self.radix

    def limit(self, shape: HostShape) -> str:
        return f"leaf1 ran out of ports (it has {self.radix}, one per node)"

    def plug(self, wiring: Wiring) -> None:
        leaves = wiring.switches("leaf", wiring.shape.hcas, 0, self.radix)
        for host in range(wiring.nodes):
            wiring.host(host, leaves)
