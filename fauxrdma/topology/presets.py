"""The fabrics that come with fauxrdma, as REFERENCE D describes them, at any number of nodes that fits.

Every node is DGX-like: 8 GPUs, HCA1..8 one per GPU, HCA9 for storage, PCIe switches of two GPUs. The text of the seeds
do not say where HCA9 is plugged in. Rule for the presets that spread a node over several leaves: **HCA9 goes to the
leaf with the fewest ports taken when its node is cabled, the lowest number on a tie**, so that it costs each leaf as
few ports as possible. In the fat-tree it shares its node's leaf like the other eight.

A preset name may carry a rate: ``seed-rail8:ndr``. Without one it is HDR (200 Gb/s).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fauxrdma.errors import ConfigError
from fauxrdma.topology.building import TopologyBuilder
from fauxrdma.topology.graph import Topology
from fauxrdma.topology.host_shape import PCIE_GEN4_X16, HostShape
from fauxrdma.units import Rate

__all__ = ["DEFAULT_NODES", "PRESETS", "SPEEDS", "Preset", "Speed"]

DEFAULT_NODES = 2
GPUS_PER_NODE = 8
HCAS_PER_NODE = 9

HOST_CABLE_M = 3.0
"""A copper cable (DAC) inside the rack."""
SPINE_CABLE_M = 20.0
"""An optical cable (AOC) to the spine row."""
NEIGHBOUR_CABLE_M = 5.0
"""Between the two switches of seed-two-switch, which stand side by side."""


@dataclass(frozen=True, slots=True)
class Speed:
    """A generation by name: the rate of every cable (4x port) and of the PCIe lanes behind each HCA and GPU."""

    name: str
    cable: Rate
    pcie: Rate


SPEEDS = {
    "edr": Speed("edr", Rate.gbps(100), PCIE_GEN4_X16),
    "hdr": Speed("hdr", Rate.gbps(200), PCIE_GEN4_X16),
    "ndr": Speed("ndr", Rate.gbps(400), Rate.gbps(504)),  # PCIe gen5 x16
    "xdr": Speed("xdr", Rate.gbps(800), Rate.gbps(944)),  # PCIe gen6 x16: 236 of every 256-byte flit carry packets
}


@dataclass(frozen=True, slots=True)
class Preset:
    """A named fabric. `build(nodes, speed)` makes it, raising ConfigError when `nodes` do not fit; `max_nodes` is the
    largest number that does; `summary` is one line for `fauxrdma topo list`."""

    name: str
    summary: str
    max_nodes: int
    build: Callable[[int, Speed], Topology]


@dataclass(frozen=True, slots=True)
class _Spread:
    """A fabric whose leaves each take some HCAs of every node: HCA i goes to leaf `(i - 1) % leaves`.

    `cables(builder, speed)` plugs the leaves together before any host is cabled. `trunk_ports` of each leaf go there.
    """

    name: str
    description: str
    leaves: int
    radix: int
    trunk_ports: int
    cables: Callable[[TopologyBuilder, Speed], None]

    def place(self, nodes: int) -> list[list[int]]:
        """For each node, the leaf (0-based) of each of its HCAs."""
        used = [0] * self.leaves
        placed = []
        for _ in range(nodes):
            leaf_of = [i % self.leaves for i in range(GPUS_PER_NODE)]
            for leaf in leaf_of:
                used[leaf] += 1
            storage = used.index(min(used))
            used[storage] += 1
            placed.append([*leaf_of, storage])
        return placed

    def max_nodes(self) -> int:
        """How many nodes fit in the ports."""
        nodes = 0
        while self._full_leaf(nodes + 1) is None:
            nodes += 1
        return nodes

    def _full_leaf(self, nodes: int) -> int | None:
        """The first leaf that would need more ports than it has, or None when all fit."""
        free = self.radix - self.trunk_ports
        placed = self.place(nodes)
        for leaf in range(self.leaves):
            if sum(leaf_of.count(leaf) for leaf_of in placed) > free:
                return leaf
        return None

    def build(self, nodes: int, speed: Speed) -> Topology:
        full = self._full_leaf(nodes)
        if full is not None:
            raise ConfigError(
                f"{self.name} cannot hold {nodes} nodes: leaf{full + 1} ran out of ports (it has {self.radix}, of which"
                f" {self.trunk_ports} go to other switches); at most {self.max_nodes()} nodes fit"
            )
        builder = TopologyBuilder(HostShape(pcie_rate=speed.pcie))
        for leaf in range(1, self.leaves + 1):
            builder.add_switch(f"leaf{leaf}", tier=0, radix=self.radix)
        self.cables(builder, speed)
        _add_hosts(builder, self.place(nodes), speed)
        return builder.build(name=_full_name(self.name, speed), description=self.description, hosts=nodes)


def _add_hosts(builder: TopologyBuilder, placed: Sequence[Sequence[int]], speed: Speed) -> None:
    for host, leaf_of in enumerate(placed):
        builder.add_host(host)
        for i, leaf in enumerate(leaf_of, start=1):
            builder.connect(f"n{host}.hca{i}", f"leaf{leaf + 1}", speed.cable, HOST_CABLE_M)


def _full_name(name: str, speed: Speed) -> str:
    return name if speed.name == "hdr" else f"{name}:{speed.name}"


def _join_two(builder: TopologyBuilder, speed: Speed) -> None:
    for _ in range(4):
        builder.connect("leaf1", "leaf2", speed.cable, NEIGHBOUR_CABLE_M)


def _two_spines(leaves: int) -> Callable[[TopologyBuilder, Speed], None]:
    """80 cables from `leaves` leaves to two 40-port spines, the same number from each leaf to each spine."""

    def cables(builder: TopologyBuilder, speed: Speed) -> None:
        for spine in (1, 2):
            builder.add_switch(f"spine{spine}", tier=1, radix=40)
        for leaf in range(1, leaves + 1):
            for spine in (1, 2):
                for _ in range(40 // leaves):
                    builder.connect(f"leaf{leaf}", f"spine{spine}", speed.cable, SPINE_CABLE_M)

    return cables


FAT_TREE_RADIX = 36
FAT_TREE_HALF = FAT_TREE_RADIX // 2
FAT_TREE_NODES_PER_LEAF = FAT_TREE_HALF // HCAS_PER_NODE
FAT_TREE_MAX_NODES = FAT_TREE_RADIX * FAT_TREE_NODES_PER_LEAF


def _fat_tree(nodes: int, speed: Speed) -> Topology:
    """Two-level fat-tree of 36-port switches, as small as `nodes` allow.

    Non-blocking needs as many cables up as down and the same number from every leaf to every spine, so the number of
    spines is the smallest divisor of 18 that gives each leaf its 18 cables. One leaf needs no spine.
    """
    if nodes > FAT_TREE_MAX_NODES:
        raise ConfigError(
            f"fat-tree cannot hold {nodes} nodes: spine1 ran out of ports (it has {FAT_TREE_RADIX}, one per leaf, and"
            f" each {FAT_TREE_RADIX}-port leaf takes the {HCAS_PER_NODE} HCAs of {FAT_TREE_NODES_PER_LEAF} nodes); "
            f"at most {FAT_TREE_MAX_NODES} nodes fit"
        )
    leaves = -(-nodes // FAT_TREE_NODES_PER_LEAF)
    spines = 0
    if leaves > 1:
        spines = next(
            s for s in range(1, FAT_TREE_HALF + 1) if FAT_TREE_HALF % s == 0 and leaves * FAT_TREE_HALF // s <= 36
        )
    builder = TopologyBuilder(HostShape(pcie_rate=speed.pcie))
    for leaf in range(1, leaves + 1):
        builder.add_switch(f"leaf{leaf}", tier=0, radix=FAT_TREE_RADIX)
    for spine in range(1, spines + 1):
        builder.add_switch(f"spine{spine}", tier=1, radix=FAT_TREE_RADIX)
    placed = [[host // FAT_TREE_NODES_PER_LEAF] * HCAS_PER_NODE for host in range(nodes)]
    _add_hosts(builder, placed, speed)
    for leaf in range(1, leaves + 1):
        for spine in range(1, spines + 1):
            for _ in range(FAT_TREE_HALF // spines):
                builder.connect(f"leaf{leaf}", f"spine{spine}", speed.cable, SPINE_CABLE_M)
    return builder.build(
        name=_full_name("fat-tree", speed),
        description="Two-level fat-tree of 36-port switches, half down and half up, all HCAs of a node on one leaf",
        hosts=nodes,
    )


_TWO_SWITCH = _Spread(
    "seed-two-switch",
    "Two 40-port switches joined by 4 cables; odd HCAs of every node on the first, even ones on the second",
    leaves=2,
    radix=40,
    trunk_ports=4,
    cables=_join_two,
)
_RAIL8 = _Spread(
    "seed-rail8",
    "8 leaves and 2 spines of 40 ports, 80 cables between them; HCA i of every node on leaf i",
    leaves=8,
    radix=40,
    trunk_ports=10,
    cables=_two_spines(8),
)
_RAIL4 = _Spread(
    "seed-rail4",
    "4 leaves and 2 spines of 40 ports, 80 cables between them; HCAs i and i+4 of every node on leaf i",
    leaves=4,
    radix=40,
    trunk_ports=20,
    cables=_two_spines(4),
)

PRESETS: dict[str, Preset] = {
    **{
        spread.name: Preset(spread.name, spread.description, spread.max_nodes(), spread.build)
        for spread in (_TWO_SWITCH, _RAIL8, _RAIL4)
    },
    "fat-tree": Preset(
        "fat-tree",
        "Non-blocking two-level fat-tree of 36-port switches; all HCAs of a node on one leaf",
        FAT_TREE_MAX_NODES,
        _fat_tree,
    ),
}
"""The presets by name, in the order they are listed to people."""
