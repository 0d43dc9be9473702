"""A route hop by hop, each with the reason why this port and no other.

The reasons are found again from the outcome: which ports start a shortest way, what the engine's rule leaves of them,
and how many destinations each port had when this one's turn came.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from fauxrdma.errors import ConfigError, FabricUnhealthy
from fauxrdma.fabric.host_path import links_to_hca, memory_number, usual_memory
from fauxrdma.fabric.routing import FlowKey, Routes
from fauxrdma.fabric.routing.minhop import by_switch_load
from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.topology.graph import Link, Node, NodeKind, Topology
from fauxrdma.topology.ip_subnets import links_into_routers
from fauxrdma.units import Rate

__all__ = ["Hop", "TracedRoute", "parse_end", "trace_route"]


@dataclass(frozen=True, slots=True)
class Hop:
    """One link of a route: out of `port` of node `at` to node `to`. `rate` is the payload rate, `latency_ns` what the
    hop adds for a small message (the switch that sends, the cable, the HCAs' own share at the ends)."""

    link: str
    at: str
    port: int
    to: str
    rate: Rate
    latency_ns: int
    reason: str


@dataclass(frozen=True, slots=True)
class TracedRoute:
    """A route between two memories. `lane` is its service level and virtual lane."""

    source: str
    target: str
    slid: int
    dlid: int
    engine: str
    lane: int
    switches: int
    latency_ns: int
    rate: Rate
    hops: tuple[Hop, ...]


def parse_end(manager: SubnetManager, text: str) -> tuple[Node, Node]:
    """(HCA, memory behind it) that `text` names: ``n0.hca1`` (its usual memory), a LID or a GID; ``n3.gpu2`` by the HCA
    it uses, ``n0.mem``, the host memory, by the node's first; ``n3.gpu2@hca5``, ``n0.mem@hca2`` and ``n0.dm@hca2``, the
    HCA's own memory, by an HCA of the same node. Raises ConfigError for what is no end of a route."""
    topology = manager.topology
    memory, at, hca = text.partition("@")
    if at:
        return _memory_by_hca(topology, memory, hca)
    node = topology.nodes.get(text)
    if node is None:
        lid = _lid_of(manager, text)
        node = manager.node(lid) if lid in manager.lids else None
    if node is not None and node.kind is NodeKind.MEMORY:
        return next(hca for hca in topology.hcas() if hca.host == node.host), node
    if node is None or node.kind not in (NodeKind.HCA, NodeKind.GPU):
        what = f"{text} is a {node.kind.value}" if node is not None else f"nothing is called {text}"
        raise ConfigError(
            f"{topology.name}: {what}: a route's end is an HCA (n0.hca1), a GPU (n0.gpu0), host memory (n0.mem), an "
            f"HCA's LID (1 to {len(topology.hcas())}) or its GID, or a memory by an HCA of its node (n0.mem@hca2)"
        )
    if node.kind is NodeKind.GPU:
        return topology.hca_of(node), node
    return node, usual_memory(topology, node)


def _memory_by_hca(topology: Topology, memory: str, by: str) -> tuple[Node, Node]:
    name, _, what = memory.partition(".")
    hca = topology.nodes.get(f"{name}.{by}")
    if hca is None or hca.kind is not NodeKind.HCA:
        raise ConfigError(f"{topology.name}: {memory}@{by}: {name} has no HCA called {by}: write n0.mem@hca2")
    node = hca if what == "dm" else topology.nodes.get(memory)
    if node is None or (node is not hca and node.kind not in (NodeKind.GPU, NodeKind.MEMORY)):
        raise ConfigError(
            f"{topology.name}: {memory}@{by}: {memory} is no memory: there are {name}.mem, {name}.gpu0 to "
            f"{name}.gpu{topology.gpus_per_host - 1}, and {name}.dm, the HCA's own"
        )
    return hca, node


def _lid_of(manager: SubnetManager, text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        pass
    for hca in manager.topology.hcas():
        lid = manager.lid(hca.name)
        if manager.gid(lid) == text.lower():
            return lid
    return 0


def trace_route(manager: SubnetManager, source: str, target: str, label: int = 0) -> TracedRoute:
    """The route from `source` to `target`, which `parse_end` understands; on Ethernet that of the flow with `label`, of
    a sprayed flow that of its first packet. Raises ConfigError for an end that is none,
    FabricUnhealthy when there is no route."""
    topology = manager.topology
    (hca_a, memory_a), (hca_b, memory_b) = parse_end(manager, source), parse_end(manager, target)
    slid, dlid = manager.lid(hca_a.name), manager.lid(hca_b.name)
    ends = memory_number(memory_a), memory_number(memory_b)
    path = manager.flow_path(FlowKey(slid, dlid, label), source=ends[0], target=ends[1])
    links = path.ways[0] if path.ways else path.links
    cables = [topology.links[link] for link in links if topology.links[link].kind == "cable"]
    _check_routers(manager, cables)
    reasons = _Reasons(manager.routes, label)
    hops = [
        _hop(manager, link, 0, f"inside the host: from {memory_a.name} to its HCA")
        for link in links_to_hca(topology, memory_a, hca_a)
    ]
    before = manager.transport.tx_ns
    inward = links_to_hca(topology, memory_b, hca_b)
    for number, cable in enumerate(cables, start=1):
        until = manager.transport.latency_ns(topology, cables[:number])
        if inward or number < len(cables):  # else the HCA's own memory is where it ends
            until -= manager.transport.rx_ns
        reason = "the HCA's only cable" if number == 1 else reasons.why(cable, dlid)
        added = until if number == 1 else until - before
        hops.append(_hop(manager, cable, added, reason))
        before = until
    takes_in = manager.transport.rx_ns + (0 if cables else manager.transport.tx_ns)
    for place, link in enumerate(reversed(inward)):
        back = topology.links[link.reverse]
        hops.append(
            _hop(manager, back, takes_in if place == 0 else 0, f"inside the host: from the HCA to {memory_b.name}")
        )
    return TracedRoute(
        source=memory_a.name,
        target=memory_b.name,
        slid=slid,
        dlid=dlid,
        engine=manager.routes.engine,
        lane=manager.routes.sl(slid, dlid) if cables else 0,
        switches=path.switches,
        latency_ns=manager.transport.latency_ns(topology, cables),
        rate=path.rate,
        hops=tuple(hops),
    )


def _check_routers(manager: SubnetManager, cables: list[Link]) -> None:
    """Raise FabricUnhealthy where the route leads over a router that drops its packets."""
    if manager.transport.routable:
        return
    walls = links_into_routers(manager.topology)
    wall = next((cable for cable in cables if cable.id in walls), None)
    if wall is not None:
        raise FabricUnhealthy(
            f"no route from {cables[0].src} to {cables[-1].dst}: they are in different IP subnets, and {wall.dst} is a "
            f"router, which drops what has no IP header, as {manager.transport.name}; rocev2 and iwarp get through"
        )


def _hop(manager: SubnetManager, link: Link, latency_ns: int, reason: str) -> Hop:
    return Hop(link.name, link.src, link.src_port, link.dst, manager.payload_rate(link.id), latency_ns, reason)


_BY_FLOW = {
    "ecmp": "ecmp picks one by the hash of the flow, so other queue pairs may go other ways (here: {flow})",
    "spray": "spray deals packets out over all of them in turn (here: the first packet of {flow})",
    "adaptive": "adaptive picks the least loaded when a flow begins to send (here: {flow}, with nothing loaded)",
}


class _Reasons:
    """Why a switch sends to a LID by the port it does."""

    def __init__(self, routes: Routes, label: int) -> None:
        self._routes = routes
        self._label = label
        self._graph = routes.graph
        self._ends = {end.lid: end for end in routes.graph.endpoints}
        self._order = [end.lid for end in by_switch_load(routes.graph)]

    def why(self, cable: Link, dlid: int) -> str:
        """For the hop over `cable`, whose sender is a switch."""
        at = self._graph.number[cable.src]
        end = self._ends[dlid]
        if end.switch == at:
            return f"{end.name} is on port {end.port} of this switch"
        shortest = np.flatnonzero(self._graph.shortest_ports(end.switch)[at]).tolist()
        away = int(self._graph.hops[at, end.switch])
        leaf = self._graph.switches[end.switch]
        if cable.src_port not in shortest:
            return self._not_shortest(away, leaf)
        if len(shortest) == 1:
            return f"the only port that starts a shortest way to {leaf} ({_hops(away)})"
        chosen = self._among(at, cable.src_port, shortest, dlid)
        return f"one of {len(shortest)} ports that start a shortest way to {leaf} ({_hops(away)}); {chosen}"

    def _not_shortest(self, away: int, leaf: str) -> str:
        if self._routes.engine == "updn":
            return f"{leaf} is {_hops(away)} away, but no shorter way keeps the rule never to climb after a descent"
        if self._routes.engine == "ftree":
            return f"{leaf} is {_hops(away)} away, but the tree leads up and down again this way"
        return f"{leaf} is {_hops(away)} away; this port was kept from before a link changed"

    def _among(self, at: int, port: int, shortest: list[int], dlid: int) -> str:
        """What decided between equally short ways."""
        row = self._routes.ports[at]
        if self._routes.engine in _BY_FLOW:
            return _BY_FLOW[self._routes.engine].format(flow=f"queue pair {self._label:#x}")
        if self._routes.engine == "ftree":
            carried = _spread(Counter(row[self._order].tolist()), port, shortest)
            return f"ftree gave this one the destination when it balanced the tree: it has {carried}"
        if self._routes.engine == "dfsssp":
            carried = _spread(Counter(row[self._order].tolist()), port, shortest)
            return f"its way had the least weight, which grows with every route over a cable: it has {carried}"
        earlier = Counter(row[self._order[: self._order.index(dlid)]].tolist())
        if any(earlier[other] < earlier[port] for other in shortest):
            return "this one was kept from before a link changed"
        tie = "" if sum(earlier[p] == earlier[port] for p in shortest) == 1 else ", the lowest number of those"
        return f"fewest destinations when this one was assigned{tie}: it had {_spread(earlier, port, shortest)}"


def _hops(count: int) -> str:
    return f"{count} hop{'s' if count > 1 else ''}"


def _spread(counts: Counter[int], port: int, ports: list[int]) -> str:
    others = [counts[other] for other in ports if other != port]
    least, most = min(others), max(others)
    return f"{counts[port]}, the others {least}" + (f" to {most}" if most > least else "")
