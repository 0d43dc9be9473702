"""The subnet manager's computation: sweep, LIDs, forwarding tables, paths.

**LIDs** count from 1: HCAs in (host, index) order, then switches in (tier, index) order. **Tables** come from a routing
engine (`fauxrdma.fabric.routing`). Paths only follow the tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, MutableMapping, Set
from dataclasses import dataclass, replace

from fauxrdma.errors import ConfigError, FabricUnhealthy
from fauxrdma.fabric.host_path import links_to_hca, memory_behind
from fauxrdma.fabric.routing import FlowKey, Load, Routes, SwitchGraph, compute_routes
from fauxrdma.fabric.routing.ethernet import unloaded
from fauxrdma.fabric.routing.spray import spray_cycle
from fauxrdma.fabric.routing.switch_graph import NO_PORT
from fauxrdma.fabric.transport import transport_of
from fauxrdma.topology.graph import ROUTING_ENGINES, Link, Node, NodeKind, Topology
from fauxrdma.units import Rate

__all__ = ["Path", "SubnetManager"]

_OUI = 0xFA0C << 48
"""Leading bits of every GUID we make; not a registered vendor, so that nobody takes it for hardware."""
_LINK_LOCAL = "fe80:0000:0000:0000"


_USUAL_ENGINE = {name: engines[0] for name, engines in ROUTING_ENGINES.items()}

MAX_LID = 0xBFFF
"""The last unicast LID (IBTA vol. 1, 4.1.3); multicast begins above."""


@dataclass(frozen=True, slots=True)
class Path:
    """A route from source memory (a GPU's, the host's, the HCA's own) to destination. `links` are ids into
    `Topology.links`; `switches` counts fabric switches; `latency_ns` is one-way for a small message, NIC overheads
    included; `rate` is the payload rate of the narrowest link.

    Where packets are sprayed there are several `ways`, which they take in turn; `links` are those of all of them,
    `rate` is what the flow gets alone, and `switches` and `latency_ns` are those of the longest."""

    links: tuple[int, ...]
    switches: int
    latency_ns: int
    rate: Rate
    ways: tuple[tuple[int, ...], ...] = ()

    @property
    def shares(self) -> tuple[float, ...]:
        """What part of the flow crosses each of `links`."""
        if not self.ways:
            return (1.0,) * len(self.links)
        crossings = Counter(link for way in self.ways for link in way)
        return tuple(crossings[link] / len(self.ways) for link in self.links)


class SubnetManager:
    """Addresses and routes of one topology. Pure and deterministic: the same topology and seed give the same answers.

    `seed` is mixed into the GUIDs, so that two fabrics on one machine can be told apart. `engine` is one of
    `routing.ENGINES`, the topology's unless given. Raises ConfigError for an unknown engine and for a fabric with more
    HCAs and switches than a subnet has unicast LIDs.
    """

    def __init__(self, topology: Topology, seed: int = 0, engine: str | None = None) -> None:
        self.topology = topology
        self.transport = transport = transport_of(topology)
        self._seed = seed & 0xFFFF
        self._route_seed = seed
        graph = SwitchGraph.of(topology)
        self._nodes = graph.nodes
        if len(self._nodes) > MAX_LID:
            raise ConfigError(
                f"{topology.name} has {len(self._nodes)} HCAs and switches: a subnet has {MAX_LID} unicast LIDs"
            )
        self._lids = {node.name: lid for lid, node in enumerate(self._nodes, start=1)}
        self._by_port = {(link.src, link.src_port): link for link in topology.links}
        self._paths: dict[tuple[int, int, int | None, int | None], Path] = {}
        self._host_links: dict[tuple[int, int | None], tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self._payload = [transport.payload_rate(link, topology.mtu) for link in topology.links]
        self.engine = engine = engine or topology.routing or _USUAL_ENGINE[topology.transport]
        self.routes = compute_routes(graph, engine, seed)
        self.tables: Mapping[str, MutableMapping[int, int]] = self.routes.tables

    # -- addresses

    @property
    def lids(self) -> range:
        """All LIDs in use."""
        return range(1, len(self._nodes) + 1)

    def lid(self, name: str) -> int:
        """The LID of an HCA or switch. Raises FabricUnhealthy for a name that has none."""
        found = self._lids.get(name)
        if found is None:
            raise FabricUnhealthy(f"{name} has no LID in {self.topology.name}")
        return found

    def node(self, lid: int) -> Node:
        """The HCA or switch with `lid`. Raises FabricUnhealthy if nothing has it."""
        if not 1 <= lid <= len(self._nodes):
            raise FabricUnhealthy(f"nothing in {self.topology.name} has LID {lid}: LIDs are 1..{len(self._nodes)}")
        return self._nodes[lid - 1]

    def guid(self, lid: int) -> int:
        """The 64-bit GUID of the HCA or switch with `lid`."""
        return _OUI | self._seed << 32 | self.node(lid).kind.value.encode()[0] << 24 | lid

    def gid(self, lid: int) -> str:
        """The link-local GID: the subnet prefix fe80::/64 and the GUID, written out as ibv_devinfo does."""
        digits = f"{self.guid(lid):016x}"
        return ":".join([_LINK_LOCAL, *(digits[at : at + 4] for at in range(0, 16, 4))])

    # -- routes

    def payload_rate(self, link_id: int) -> Rate:
        """The payload rate of a link, after header efficiency."""
        return self._payload[link_id]

    def path(self, slid: int, dlid: int, source: int | None = None, target: int | None = None) -> Path:
        """The path between two HCAs, from memory number `source` of the first's host to `target` of the second's
        (`fauxrdma.memory.location`; None: what the HCA usually serves, its first GPU). Raises FabricUnhealthy when a
        LID is unknown, not an HCA's, or not reachable.

        Within one HCA (`slid` = `dlid`) the path turns around inside it and touches no cable.
        """
        key = (slid, dlid, source, target)
        known = self._paths.get(key)
        if known is None:
            known = self._paths[key] = self._trace(*key)
        return known

    def flow_path(
        self, flow: FlowKey, load: Load = unloaded, source: int | None = None, target: int | None = None
    ) -> Path:
        """The path of one flow. On Ethernet the switches choose among all shortest ways; `load` says how loaded a link
        is, which only adaptive routing asks. Sprayed, it has a cycle of ways. Elsewhere it is `path`. Raises
        FabricUnhealthy as `path` does."""
        if not self.routes.any_shortest or flow.slid == flow.dlid:
            return self.path(flow.slid, flow.dlid, source, target)
        hca, other, host_in, host_out = self.ends(flow.slid, flow.dlid, source, target)
        cables = [self.topology.fabric_link(hca)]
        if self.routes.engine == "spray":
            return self._sprayed(flow, cables[0], hca, other, host_in, host_out)
        while cables[-1].dst != other.name:
            at = cables[-1].dst
            port = self.routes.port_for(self.routes.graph.number[at], flow, load)
            if port == NO_PORT:
                raise FabricUnhealthy(f"no route from {hca.name} to {other.name}: {at} has no port for it")
            cables.append(self._by_port[at, port])
        return self._path_over(hca, host_in, cables, host_out)

    def cables_of(self, links: Iterable[int]) -> tuple[int, ...]:
        """Those of `links` (ids) that are cables: the part of a path outside the hosts."""
        return tuple(link for link in links if self.topology.links[link].kind == "cable")

    def into_hca(self, lid: int, memory: int | None) -> tuple[int, ...]:
        """Ids of the links from memory number `memory` to the HCA (None as in `path`). Raises FabricUnhealthy for one
        that is not there."""
        return self._inside(lid, memory)[0]

    def out_of_hca(self, lid: int, memory: int | None) -> tuple[int, ...]:
        """Ids of the links from the HCA to memory number `memory` (None as in `path`). Raises FabricUnhealthy for one
        that is not there."""
        return self._inside(lid, memory)[1]

    def _inside(self, lid: int, memory: int | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
        known = self._host_links.get((lid, memory))
        if known is None:
            _, _, host_in, host_out = self.ends(lid, lid, memory, memory)
            known = self._host_links[lid, memory] = (tuple(host_in), tuple(host_out))
        return known

    def between(self, path: Path, slid: int, dlid: int, source: int | None, target: int | None) -> Path:
        """`path`, which leads from HCA `slid` to HCA `dlid`, for other memories at its ends: from number `source` to
        `target` (None as in `path`). Only where it runs inside the hosts changes, and the rate. Raises FabricUnhealthy
        for a memory that is not there."""
        host_in, host_out = self.into_hca(slid, source), self.out_of_hca(dlid, target)
        ways = tuple((*host_in, *self.cables_of(way), *host_out) for way in path.ways)
        links = (*host_in, *self.cables_of(path.links), *host_out)
        moved = replace(path, links=links, ways=ways)
        return replace(moved, rate=self._rate_alone(moved, slid))

    def _sprayed(
        self, flow: FlowKey, first: Link, hca: Node, target: Node, host_in: list[int], host_out: list[int]
    ) -> Path:
        graph = self.routes.graph
        ways = []
        for hops in spray_cycle(self.routes, graph.number[first.dst], flow):
            cables = [first, *(self._by_port[graph.switches[number], port] for number, port in hops)]
            if cables[-1].dst != target.name:
                at = cables[-1].dst
                raise FabricUnhealthy(f"no route from {first.src} to {target.name}: {at} has no port for it")
            ways.append(self._path_over(hca, host_in, cables, host_out))
        if len(ways) == 1:
            return ways[0]
        links = tuple(dict.fromkeys(link for way in ways for link in way.links))
        path = Path(
            links=links,
            switches=max(way.switches for way in ways),
            latency_ns=max(way.latency_ns for way in ways),
            rate=min(way.rate for way in ways),
            ways=tuple(way.links for way in ways),
        )
        return replace(path, rate=self._rate_alone(path, self._lids[hca.name]))

    def _rate_alone(self, path: Path, slid: int) -> Rate:
        """What a flow on `path` gets with nobody else there. From the memory of HCA `slid` into the same there is no
        link at all: it is no faster than its port."""
        if not path.links:
            return self._payload[self.topology.fabric_link(self.node(slid)).id]
        if not path.ways:  # without GPUDirect a link may be crossed twice within a host
            return Rate(min(self._payload[link].bits_per_s // n for link, n in Counter(path.links).items()))
        shared = zip(path.links, path.shares, strict=True)
        return Rate(int(min(self._payload[link].bits_per_s / share for link, share in shared)))

    def compute_routes(self, down: Set[int], *, keep: bool) -> Routes:
        """Routes that do without the links `down` (ids, both directions). With `keep`, entries of the tables in force
        stay where they are still as good, so that only routes over those links change."""
        graph = SwitchGraph.of(self.topology, down)
        return compute_routes(graph, self.engine, self._route_seed, previous=self.routes if keep else None)

    def adopt(self, routes: Routes) -> None:
        """Put new routes in force, as a sweep does at its end."""
        self.routes = routes
        self.tables = routes.tables
        self._paths.clear()

    def ends(
        self, slid: int, dlid: int, source: int | None = None, target: int | None = None
    ) -> tuple[Node, Node, list[int], list[int]]:
        """Both HCAs of a path, the links from memory number `source` behind the first to it, and those from the second
        to `target` behind that; None as in `path`. Raises FabricUnhealthy for a LID that is not an HCA's and a memory
        that is not there."""
        hcas = self.node(slid), self.node(dlid)
        for node in hcas:
            if node.kind is not NodeKind.HCA:
                raise FabricUnhealthy(f"LID {self._lids[node.name]} is {node.name}: traffic runs between HCAs")
        first, last = hcas
        host_in = links_to_hca(self.topology, memory_behind(self.topology, first, source), first)
        inward = links_to_hca(self.topology, memory_behind(self.topology, last, target), last)
        return first, last, [link.id for link in host_in], [link.reverse for link in reversed(inward)]

    def _trace(self, slid: int, dlid: int, source: int | None, target: int | None) -> Path:
        hca, other, host_in, host_out = self.ends(slid, dlid, source, target)
        cables = self._cables(hca, other, dlid) if slid != dlid else []
        return self._path_over(hca, host_in, cables, host_out)

    def _path_over(self, hca: Node, host_in: list[int], cables: list[Link], host_out: list[int]) -> Path:
        path = Path(
            links=(*host_in, *(link.id for link in cables), *host_out),
            switches=max(0, len(cables) - 1),
            latency_ns=self.transport.latency_ns(self.topology, cables),
            rate=Rate(0),
        )
        return replace(path, rate=self._rate_alone(path, self._lids[hca.name]))

    def _cables(self, source: Node, target: Node, dlid: int) -> list[Link]:
        cables = [self.topology.fabric_link(source)]
        while cables[-1].dst != target.name:
            at = cables[-1].dst
            port = self.tables[at].get(dlid)
            if port is None or len(cables) > len(self.tables) + 1:
                raise FabricUnhealthy(
                    f"no route from {source.name} to {target.name}: {self._why_not(source, target, at, dlid)}"
                )
            cables.append(self._by_port[at, port])
        return cables

    def _why_not(self, source: Node, target: Node, at: str, dlid: int) -> str:
        islands = self.topology.members_of_islands()
        apart = [n for n, members in enumerate(islands, start=1) if source in members or target in members]
        if len(apart) > 1:
            return (
                f"they are on islands {apart[0]} and {apart[1]} of {self.topology.name}, which no cable joins; inside "
                "a host the data can go over NVLink to a GPU whose HCA is on the other (PXN)"
            )
        return f"{at} has no port for LID {dlid}"
