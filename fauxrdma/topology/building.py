"""Putting a topology together cable by cable, with ports handed out in order and never beyond a switch's radix."""

from __future__ import annotations

from dataclasses import replace

from fauxrdma.errors import ConfigError
from fauxrdma.topology.graph import (
    CUT_THROUGH,
    HCA_FABRIC_PORT,
    HCA_PCIE_PORT,
    INFINIBAND,
    IWARP,
    ROCEV1,
    ROCEV2,
    STORE_AND_FORWARD,
    Link,
    Node,
    NodeKind,
    Topology,
    reachable_switches,
)
from fauxrdma.topology.host_shape import HostShape
from fauxrdma.units import Rate

__all__ = [
    "DEFAULT_MTU",
    "DEFAULT_SWITCH_LATENCY_NS",
    "SWITCHING",
    "SWITCH_LATENCY_NS",
    "PortRefused",
    "PortsExhausted",
    "TopologyBuilder",
]

DEFAULT_SWITCH_LATENCY_NS = 130
"""Cut-through InfiniBand switch (REFERENCE C: 100-130 ns; the seed's 130)."""

SWITCH_LATENCY_NS = {INFINIBAND: DEFAULT_SWITCH_LATENCY_NS, ROCEV2: 400, ROCEV1: 400, IWARP: 400}
SWITCHING = {
    INFINIBAND: CUT_THROUGH,
    ROCEV2: STORE_AND_FORWARD,
    ROCEV1: STORE_AND_FORWARD,
    IWARP: STORE_AND_FORWARD,
}
"""What switches are like unless something else is said, by transport (REFERENCE C: Ethernet switches 300-500 ns)."""

DEFAULT_MTU = 4096


class PortsExhausted(ConfigError):
    """A cable was to be plugged into a switch whose ports are all taken. `switch` and `radix` say which and how big."""

    def __init__(self, switch: str, radix: int) -> None:
        super().__init__(f"{switch} has {radix} ports and all are taken")
        self.switch = switch
        self.radix = radix


class PortRefused(ConfigError):
    """A cable was to be plugged into a port that is taken or does not exist, of the node `node`."""

    def __init__(self, node: str, message: str) -> None:
        super().__init__(f"{node} {message}")
        self.node = node


class TopologyBuilder:
    """Collects nodes and cables, then makes the Topology. Names must be new; ports are handed out in call order.
    All hosts have the same `shape`."""

    def __init__(self, shape: HostShape) -> None:
        self.shape = shape
        self.nodes: dict[str, Node] = {}
        self._links: list[Link] = []
        self._next_port: dict[str, int] = {}
        """Every port below this one is taken."""
        self._chosen_ports: dict[str, set[int]] = {}
        """Ports that calls named."""
        self._parallel: dict[tuple[str, str], list[int]] = {}
        self._tier_sizes: dict[int, int] = {}

    def add_switch(self, name: str, tier: int, radix: int) -> Node:
        """A fabric switch with `radix` ports. Its index counts the switches of its tier from 1."""
        self._tier_sizes[tier] = self._tier_sizes.get(tier, 0) + 1
        return self._add(Node(name, NodeKind.SWITCH, None, self._tier_sizes[tier], tier, radix))

    def add_host(self, host: int) -> None:
        """Host number `host`: its memory, GPUs, PCIe switches, NVSwitches and HCAs with the lanes between them, no
        cables yet."""
        shape = self.shape
        memory = self._add(Node(f"n{host}.mem", NodeKind.MEMORY, host, 0))
        for p in range(shape.gpu_pcie_switches + shape.storage_hcas):
            pcie = self._add(Node(f"n{host}.pcie{p}", NodeKind.PCIE, host, p))
            self.connect(pcie.name, memory.name, shape.pcie_rate, 0.0, kind="pcie")
        for s in range(shape.nvswitches):
            self._add(Node(f"n{host}.nvsw{s}", NodeKind.NVSWITCH, host, s))
        for g in range(shape.gpus):
            gpu = self._add(Node(f"n{host}.gpu{g}", NodeKind.GPU, host, g))
            pcie_of_gpu = f"n{host}.pcie{g // shape.gpus_per_pcie_switch}"
            self.connect(gpu.name, pcie_of_gpu, shape.pcie_rate, 0.0, kind="pcie")
            if shape.nvlink_rate is not None:
                lanes = Rate(shape.nvlink_rate.bits_per_s // shape.nvswitches)
                for s in range(shape.nvswitches):
                    self.connect(gpu.name, f"n{host}.nvsw{s}", lanes, 0.0, kind="nvlink")
        for i in range(1, shape.hcas + 1):
            hca = self._add(Node(f"n{host}.hca{i}", NodeKind.HCA, host, i))
            self.connect(hca.name, f"n{host}.pcie{shape.pcie_switch_of_hca(i)}", shape.pcie_rate, 0.0, kind="pcie")

    def connect(
        self,
        a: str,
        b: str,
        rate: Rate,
        length_m: float,
        *,
        kind: str = "cable",
        ports: tuple[int | None, int | None] = (None, None),
    ) -> None:
        """A full-duplex cable between `a` and `b`: two links. It takes the lowest free port of each where `ports` does
        not name one. Raises PortsExhausted when a switch is full, PortRefused for a port that cannot be had."""
        a_port = self._port(a, kind, ports[0])
        b_port = self._port(b, kind, ports[1])
        first = len(self._links)
        self._links.append(Link(first, f"{a}->{b}", a, b, a_port, b_port, rate, length_m, kind, first + 1))
        self._links.append(Link(first + 1, f"{b}->{a}", b, a, b_port, a_port, rate, length_m, kind, first))
        self._parallel.setdefault((a, b), []).append(first)
        self._parallel.setdefault((b, a), []).append(first + 1)

    def switch_of(self) -> dict[str, str]:
        """For every HCA that has a cable, the switch at its other end."""
        cables = (link for link in self._links if link.kind == "cable")
        return {link.src: link.dst for link in cables if self.nodes[link.src].kind is NodeKind.HCA}

    def reachable_switches(self, start: str) -> set[str]:
        """Names of the switches that can be reached from `start` over cables between switches, itself included."""
        return reachable_switches(start, self.nodes, self._links)

    def _add(self, node: Node) -> Node:
        if node.name in self.nodes:
            raise ConfigError(f"two nodes are named {node.name}")
        self.nodes[node.name] = node
        return node

    def _port(self, name: str, kind: str, wanted: int | None) -> int:
        node = self.nodes[name]
        if node.kind is NodeKind.HCA:
            port = HCA_PCIE_PORT if kind == "pcie" else HCA_FABRIC_PORT
            if wanted not in (None, port):
                raise PortRefused(name, f"has one port for cables, port {port}; not {wanted}")
            return port
        taken = self._chosen_ports.get(name, set())
        if wanted is not None:
            if node.radix is not None and not 1 <= wanted <= node.radix:
                raise PortRefused(name, f"has ports 1 to {node.radix}, not {wanted}")
            if wanted < self._next_port.get(name, 1) or wanted in taken:
                raise PortRefused(name, f"has a cable in port {wanted} already")
            self._chosen_ports.setdefault(name, set()).add(wanted)
            return wanted
        port = self._next_port.get(name, 1)
        while port in taken:
            port += 1
        if node.radix is not None and port > node.radix:
            raise PortsExhausted(name, node.radix)
        self._next_port[name] = port + 1
        return port

    def build(
        self,
        *,
        name: str,
        description: str,
        hosts: int,
        switch_latency_ns: int = DEFAULT_SWITCH_LATENCY_NS,
        switching: str = CUT_THROUGH,
        mtu: int = DEFAULT_MTU,
        transport: str = INFINIBAND,
        routing: str | None = None,
        islands: int = 1,
        routed: str | None = None,
        compute: str | None = None,
    ) -> Topology:
        """The finished topology, validated. Raises ConfigError if it is inconsistent.

        Switches stand before hosts, and lanes inside hosts before cables, each in the order of the calls: whether a
        host was added before or after a cable that is not its own makes no difference.
        """
        if switching not in (CUT_THROUGH, STORE_AND_FORWARD):
            raise ConfigError(f"switching must be {CUT_THROUGH} or {STORE_AND_FORWARD}, not {switching!r}")
        links = list(self._links)
        for same in self._parallel.values():
            if len(same) > 1:
                for n, link_id in enumerate(same, start=1):
                    links[link_id] = replace(links[link_id], name=f"{links[link_id].name}:{n}")
        nodes = dict(sorted(self.nodes.items(), key=lambda item: -1 if item[1].host is None else item[1].host))
        topology = Topology(
            name=name,
            description=description,
            hosts=hosts,
            shape=self.shape,
            active_gpus=self.shape.gpus,
            nodes=nodes,
            links=_in_order(links, nodes),
            switch_latency_ns=switch_latency_ns,
            switching=switching,
            mtu=mtu,
            transport=transport,
            routing=routing,
            islands=islands,
            routed=routed,
            compute=compute,
        )
        topology.validate()
        return topology


def _in_order(links: list[Link], nodes: dict[str, Node]) -> list[Link]:
    """Lanes by host, then cables; renumbered."""

    def host(link: Link) -> int:
        inside = nodes[link.src].host
        return len(nodes) if inside is None or inside != nodes[link.dst].host else inside

    ordered = sorted(links, key=host)
    place = {link.id: number for number, link in enumerate(ordered)}
    return [replace(link, id=place[link.id], reverse=place[link.reverse]) for link in ordered]
