"""The fabric as a graph: GPUs, PCIe switches, HCAs and switches, joined by directed links.

Everything that has a rate is a link. A full-duplex cable (or PCIe lane bundle) is two links, one per direction, that
know each other through `Link.reverse`. The graph is data: it says what is plugged into what, not how packets travel
(that is the subnet manager's part, `fauxrdma.fabric`).

Names: host ``h`` has ``n{h}.gpu{g}`` (g from 0), ``n{h}.pcie{p}`` (p from 0), ``n{h}.nvsw{s}`` (s from 0),
``n{h}.mem`` and ``n{h}.hca{i}`` (i from 1, compute before storage). Which GPU uses which HCA says the `HostShape`,
which all hosts share. Switches are called ``leaf1``, ``spine1`` ... in the presets.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fauxrdma.errors import ConfigError
from fauxrdma.topology.host_shape import HostShape
from fauxrdma.topology.routing_choice import INFINIBAND, IWARP, ROCEV1, ROCEV2, ROUTING_ENGINES, parse_routing
from fauxrdma.units import Rate
from fauxrdma.wire.fault_messages import FaultEvent

__all__ = [
    "CUT_THROUGH",
    "INFINIBAND",
    "IWARP",
    "ROCEV1",
    "ROCEV2",
    "ROUTING_ENGINES",
    "STORE_AND_FORWARD",
    "TIER_NAMES",
    "Link",
    "Node",
    "NodeKind",
    "Topology",
    "reachable_switches",
]

CUT_THROUGH = "cut-through"
STORE_AND_FORWARD = "store-and-forward"
TIER_NAMES = ("leaf", "spine", "core")
"""What the tiers are called, by number."""

HCA_PCIE_PORT = 0
"""The side of an HCA that faces its PCIe switch; port 1 faces the fabric, as in verbs."""
HCA_FABRIC_PORT = 1


class NodeKind(StrEnum):
    """What a node of the graph is. MEMORY is host memory with the root complex in front of it."""

    GPU = "gpu"
    PCIE = "pcie"
    NVSWITCH = "nvswitch"
    MEMORY = "memory"
    HCA = "hca"
    SWITCH = "switch"


@dataclass(frozen=True, slots=True)
class Node:
    """A device. `host` is None for switches; `tier` (0 leaf, 1 spine, 2 core) and `radix` (ports) only for switches.
    `index` counts from 0 inside hosts, from 1 for HCAs and for the switches of each tier."""

    name: str
    kind: NodeKind
    host: int | None
    index: int
    tier: int | None = None
    radix: int | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """ONE DIRECTION of a full-duplex cable or lane bundle. `rate` is the signalling rate after line coding, before
    packet headers; `kind` is "pcie", "nvlink" or "cable"; `reverse` is the id of the other direction; `id` its place in
    `Topology.links`. The name is ``src->dst``, with ``:n`` appended (n from 1) where cables run in parallel."""

    id: int
    name: str
    src: str
    dst: str
    src_port: int
    dst_port: int
    rate: Rate
    length_m: float
    kind: str
    reverse: int


class Topology:
    """A whole fabric. Immutable by convention: build one with a preset, a YAML file or `TopologyBuilder`.

    `hosts` hosts of one `shape`; `active_gpus` says how many GPUs of each host the job uses (0..n-1).
    `switch_latency_ns` is the forwarding latency of every fabric switch, `switching` "cut-through" or
    "store-and-forward", `mtu` the payload bytes of a full packet. `transport` is "infiniband", "rocev2", "rocev1" or
    "iwarp", of which all but the first make the HCAs' ports Ethernet; `routing` is one of its `ROUTING_ENGINES`, maybe
    with roots (`parse_routing`), None for the usual one. `islands` is how many parts without a way between them the
    fabric is meant to have (planes, rails without spines): an HCA reaches the others of its island. `routed` is the
    lowest tier of switches that are IP routers (`ip_subnets`), None for one IP subnet. `compute` is what ranks'
    computing costs (`fauxrdma.topology.computing`), None: nothing.
    """

    def __init__(
        self,
        *,
        name: str,
        description: str,
        hosts: int,
        shape: HostShape,
        active_gpus: int,
        nodes: dict[str, Node],
        links: list[Link],
        switch_latency_ns: int,
        switching: str,
        mtu: int,
        transport: str = INFINIBAND,
        routing: str | None = None,
        islands: int = 1,
        routed: str | None = None,
        compute: str | None = None,
    ) -> None:
        self.name = name
        self.description = description
        self.hosts = hosts
        self.shape = shape
        self.active_gpus = active_gpus
        self.nodes = nodes
        self.links = links
        self.switch_latency_ns = switch_latency_ns
        self.switching = switching
        self.mtu = mtu
        self.transport = transport
        self.routing = routing
        self.islands = islands
        self.routed = routed
        self.compute = compute
        self.events: list[FaultEvent] = []
        """Faults on the fabric's timeline, with the names of what is there."""
        self._from: dict[str, list[Link]] = {name: [] for name in nodes}
        for link in links:
            if link.src in self._from:
                self._from[link.src].append(link)

    # -- looking things up

    def hca(self, host: int, index: int) -> Node:
        """HCA `index` (from 1) of `host`. Raises ConfigError naming what exists."""
        return self._device(f"n{host}.hca{index}")

    def gpu(self, host: int, index: int) -> Node:
        """GPU `index` (from 0) of `host`. Raises ConfigError naming what exists."""
        return self._device(f"n{host}.gpu{index}")

    def _device(self, name: str) -> Node:
        node = self.nodes.get(name)
        if node is None:
            raise ConfigError(
                f"{self.name} has no {name}: it has hosts n0..n{self.hosts - 1} with gpu0..gpu{self.gpus_per_host - 1}"
                f" and hca1..hca{self.hcas_per_host}"
            )
        return node

    @property
    def gpus_per_host(self) -> int:
        """GPUs of each host."""
        return self.shape.gpus

    @property
    def hcas_per_host(self) -> int:
        """HCAs of each host, storage included."""
        return self.shape.hcas

    def hcas(self) -> list[Node]:
        """All HCAs in (host, index) order."""
        found = [node for node in self.nodes.values() if node.kind is NodeKind.HCA]
        return sorted(found, key=lambda node: (node.host or 0, node.index))

    def switches(self) -> list[Node]:
        """All fabric switches in (tier, index) order; PCIe switches are not among them."""
        found = [node for node in self.nodes.values() if node.kind is NodeKind.SWITCH]
        return sorted(found, key=lambda node: (node.tier or 0, node.index))

    def gpus_of(self, hca: Node) -> list[Node]:
        """The GPUs that use `hca`, in order; none for an HCA that only serves storage."""
        return [self.nodes[f"n{hca.host}.gpu{gpu}"] for gpu in self.shape.gpus_of_hca(hca.index)]

    def hca_of(self, gpu: Node) -> Node:
        """The HCA that `gpu` uses."""
        return self.nodes[f"n{gpu.host}.hca{self.shape.hca_of_gpu(gpu.index)}"]

    def memory(self, host: int) -> Node:
        """The host memory of `host`. Raises ConfigError naming what exists."""
        return self._device(f"n{host}.mem")

    def active_hcas(self, host: int) -> list[Node]:
        """The HCAs of `host` that the GPUs in use need, in order."""
        indices = {self.shape.hca_of_gpu(gpu): None for gpu in range(self.active_gpus)}
        return [self.hca(host, index) for index in indices]

    def members_of_islands(self) -> list[list[Node]]:
        """The HCAs of each island, islands in the order of their first HCA: within one there is a way from each to
        each, between two there is none."""
        members: list[list[Node]] = []
        island_of: dict[str, int] = {}
        for hca in self.hcas():
            leaf = self.fabric_link(hca).dst
            if leaf not in island_of:
                island_of.update(dict.fromkeys(reachable_switches(leaf, self.nodes, self.links), len(members)))
                members.append([])
            members[island_of[leaf]].append(hca)
        return members

    def links_from(self, name: str) -> list[Link]:
        """Links that leave the node `name`, in port order of insertion."""
        return self._from[name]

    def fabric_link(self, hca: Node) -> Link:
        """The cable of an HCA, in the direction HCA to switch. Raises ConfigError for an HCA without one."""
        for link in self._from[hca.name]:
            if link.kind == "cable":
                return link
        raise ConfigError(f"{self.name}: {hca.name} has no cable to a switch")

    def with_routing(self, engine: str | None) -> Topology:
        """The same fabric routed by `engine`, None for what it has. Raises ConfigError if that is not for its
        transport."""
        if engine is None:
            return self
        routed = copy.copy(self)
        routed.routing = engine
        routed._check_routing()
        return routed

    # -- plain data

    def to_dict(self) -> dict[str, Any]:
        """Plain data (JSON- and msgpack-able) from which `from_dict` makes an equal topology."""
        return {
            "name": self.name,
            "description": self.description,
            "hosts": self.hosts,
            "shape": self.shape.to_dict(),
            "active_gpus": self.active_gpus,
            "switch_latency_ns": self.switch_latency_ns,
            "switching": self.switching,
            "mtu": self.mtu,
            "transport": self.transport,
            "routing": self.routing,
            "islands": self.islands,
            "routed": self.routed,
            "compute": self.compute,
            "nodes": [
                {"name": n.name, "kind": n.kind.value, "host": n.host, "index": n.index, "tier": n.tier,
                 "radix": n.radix}
                for n in self.nodes.values()
            ],
            "links": [
                {"id": k.id, "name": k.name, "src": k.src, "dst": k.dst, "src_port": k.src_port,
                 "dst_port": k.dst_port, "rate_bps": k.rate.bits_per_s, "length_m": k.length_m, "kind": k.kind,
                 "reverse": k.reverse}
                for k in self.links
            ],
        }  # fmt: skip

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Topology:
        """The topology that `to_dict` described. Raises ConfigError if anything is missing or inconsistent."""
        try:
            nodes = {
                raw["name"]: Node(
                    raw["name"], NodeKind(raw["kind"]), raw["host"], raw["index"], raw["tier"], raw["radix"]
                )
                for raw in data["nodes"]
            }
            links = [
                Link(
                    raw["id"], raw["name"], raw["src"], raw["dst"], raw["src_port"], raw["dst_port"],
                    Rate(raw["rate_bps"]), raw["length_m"], raw["kind"], raw["reverse"],
                )
                for raw in data["links"]
            ]  # fmt: skip
            made = cls(
                name=data["name"],
                description=data["description"],
                hosts=data["hosts"],
                shape=HostShape.from_dict(data["shape"]),
                active_gpus=data["active_gpus"],
                nodes=nodes,
                links=links,
                switch_latency_ns=data["switch_latency_ns"],
                switching=data["switching"],
                mtu=data["mtu"],
                transport=data["transport"],
                routing=data["routing"],
                islands=data["islands"],
                routed=data.get("routed"),
                compute=data.get("compute"),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"this is not a topology written by to_dict: {type(error).__name__}: {error}") from None
        if len(nodes) != len(data["nodes"]):
            raise ConfigError(f"{made.name}: two nodes have the same name")
        made.validate()
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Topology) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]

    # -- checks

    def validate(self) -> None:
        """Check that the graph is consistent: link ends exist, directions pair up, no port holds two cables or
        exceeds its switch's radix, every HCA has one cable to a switch, and there are as many islands as are meant.

        Raises ConfigError naming the first thing wrong.
        """
        self._check_routing()
        self._check_routed()
        names: set[str] = set()
        ports: set[tuple[str, int]] = set()
        for position, link in enumerate(self.links):
            if link.id != position or link.name in names:
                raise ConfigError(f"{self.name}: link {link.name} has a wrong id or a name in use")
            names.add(link.name)
            for end in (link.src, link.dst):
                if end not in self.nodes:
                    raise ConfigError(f"{self.name}: link {link.name} ends at {end}, which does not exist")
            self._check_direction(link)
            port = (link.src, link.src_port)
            if port in ports:
                raise ConfigError(f"{self.name}: port {link.src_port} of {link.src} holds two cables")
            ports.add(port)
            radix = self.nodes[link.src].radix
            if radix is not None and not 1 <= link.src_port <= radix:
                raise ConfigError(f"{self.name}: {link.src} has {radix} ports, link {link.name} uses {link.src_port}")
        self._check_hcas()

    def _check_routing(self) -> None:
        engines = ROUTING_ENGINES.get(self.transport)
        if engines is None:
            raise ConfigError(
                f"{self.name}: transport must be one of {', '.join(ROUTING_ENGINES)}; not {self.transport!r}"
            )
        if self.routing is None:
            return
        if self.routing.partition(":")[0] not in engines:
            raise ConfigError(
                f"{self.name}: routing {self.routing!r} is not for {self.transport}: it is one of {', '.join(engines)}"
            )
        try:
            parse_routing(self.routing).check_roots(node.name for node in self.switches())
        except ConfigError as error:
            raise ConfigError(f"{self.name}: {error}") from None

    def _check_routed(self) -> None:
        if self.routed is None:
            return
        if self.transport == INFINIBAND:
            raise ConfigError(f"{self.name}: routed says where IP subnets end, and {INFINIBAND} has none")
        tiers = {TIER_NAMES[node.tier or 0] for node in self.switches() if (node.tier or 0) < len(TIER_NAMES)}
        if self.routed not in tiers:
            raise ConfigError(f"{self.name}: routed is {self.routed!r}, its switches are {', '.join(sorted(tiers))}")

    def _check_direction(self, link: Link) -> None:
        other = self.links[link.reverse] if 0 <= link.reverse < len(self.links) else None
        if other is None or (other.src, other.src_port, other.dst, other.dst_port, other.reverse, other.rate) != (
            link.dst, link.dst_port, link.src, link.src_port, link.id, link.rate,
        ):  # fmt: skip
            raise ConfigError(f"{self.name}: link {link.name} has no matching other direction")

    def _check_hcas(self) -> None:
        hcas = self.hcas()
        if not hcas:
            raise ConfigError(f"{self.name}: a fabric needs at least one HCA")
        for hca in hcas:
            cables = [link for link in self._from[hca.name] if link.kind == "cable"]
            if len(cables) != 1 or self.nodes[cables[0].dst].kind is not NodeKind.SWITCH:
                raise ConfigError(f"{self.name}: {hca.name} must have one cable to a switch, it has {len(cables)}")
        found = self.members_of_islands()
        if len(found) != self.islands:
            first, other = hcas[0], (found[1] if len(found) > 1 else found[0])[0]
            apart = "" if len(found) == 1 else (
                f"{other.name} on {self.fabric_link(other).dst} cannot be reached from {first.name}"
            )  # fmt: skip
            meant = "" if self.islands == 1 else f"{self.islands} islands are meant, {len(found)} found"
            raise ConfigError(f"{self.name}: {'; '.join(filter(None, (apart, meant)))}")


def reachable_switches(start: str, nodes: dict[str, Node], links: Iterable[Link]) -> set[str]:
    """Names of the switches that can be reached from the switch `start` over cables between switches, with itself."""
    neighbours: dict[str, list[str]] = {}
    for link in links:
        if nodes[link.src].kind is NodeKind.SWITCH and nodes[link.dst].kind is NodeKind.SWITCH:
            neighbours.setdefault(link.src, []).append(link.dst)
    seen = {start}
    todo = [start]
    while todo:
        for name in neighbours.get(todo.pop(), ()):
            if name not in seen:
                seen.add(name)
                todo.append(name)
    return seen
