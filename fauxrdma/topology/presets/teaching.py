"""Small fabrics to learn from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from fauxrdma.topology.host_shape import HostShape
from fauxrdma.topology.presets.base import Preset, Wiring
from fauxrdma.topology.presets.options import option, whole

__all__ = ["Ring", "SingleSwitch"]


@dataclass(frozen=True, kw_only=True)
class SingleSwitch(Preset):
    """The smallest fabric: no routes to choose, nothing shared but the hosts' own cables."""

    name = "single-switch"
    summary = "One switch with everything on it"
    radix: int = option(40, "ports of the switch", whole(1, 4096))

    def max_nodes(self, shape: HostShape) -> int:
        return self.radix // shape.hcas

    def limit(self, shape: HostShape) -> str:
        return f"leaf1 ran out of ports (it has {self.radix}, and a node has {shape.hcas} HCAs)"

    def plug(self, wiring: Wiring) -> None:
        (leaf,) = wiring.switches("leaf", 1, 0, self.radix)
        for host in range(wiring.nodes):
            wiring.host(host, [leaf] * wiring.shape.hcas)


@dataclass(frozen=True, kw_only=True)
class Ring(Preset):
    """Switches in a circle, node n on switch n mod `switches`. With shortest paths and four or more switches, the
    buffers along the circle wait for each other in a circle too: a credit loop."""

    name = "ring"
    summary = "Switches in a circle; shortest paths make a credit loop, which routing engines must break"
    usual: ClassVar[dict[str, Any]] = {"trunk": 5.0}
    switches: int = option(4, "switches in the circle", whole(3, 4096))
    radix: int = option(40, "ports of every switch", whole(2, 4096))
    trunks: int = option(1, "cables between neighbours", whole(1, 2048))

    def max_nodes(self, shape: HostShape) -> int:
        return self.switches * max(0, (self.radix - 2 * self.trunks) // shape.hcas)

    def limit(self, shape: HostShape) -> str:
        return (
            f"leaf1 ran out of ports (it has {self.radix}, of which {2 * self.trunks} go to other switches, and a node "
            f"has {shape.hcas} HCAs)"
        )

    def plug(self, wiring: Wiring) -> None:
        switches = wiring.switches("leaf", self.switches, 0, self.radix)
        for one, two in zip(switches, [*switches[1:], switches[0]], strict=True):
            wiring.trunks(one, two, self.trunks)
        for host in range(wiring.nodes):
            wiring.host(host, [switches[host % self.switches]] * wiring.shape.hcas)
