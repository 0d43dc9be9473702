"""How a message gets from one rank to another: over which links of the fabric, and with what latency.

Between nodes it goes from the sender's memory over both ranks' HCAs as the forwarding tables say. Between two ranks of
one node there is a choice:

- ``hca``: out of one HCA and into the other, by the switches between them (or turned around inside a shared HCA);
- ``nvlink``: straight from GPU to GPU (`fabric.peer_way`), as a Communicator's ranks do unless told otherwise: over
  NVLink where the hosts have it, split evenly over the NVSwitches, else over PCIe.

A **hop** is a group of links that carry equal parts of the bytes: one link, or a GPU's lanes to all NVSwitches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fauxrdma.errors import ConfigError
from fauxrdma.fabric.peer_way import peer_way
from fauxrdma.fabric.queues.settings import QueueSettings
from fauxrdma.fabric.routing import FlowKey
from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.memory.location import gpu_memory
from fauxrdma.topology.graph import Topology
from fauxrdma.topology.rank_places import RankPlace
from fauxrdma.units import Rate

__all__ = ["HCA", "INTRA_NODE", "NVLINK", "RankPath", "RankPaths"]

HCA = "hca"
NVLINK = "nvlink"
INTRA_NODE = (HCA, NVLINK)
"""What ranks of one node may talk over."""


@dataclass(frozen=True, slots=True)
class RankPath:
    """The way from one rank to another. `hops` are groups of link ids; `rate` is the payload rate of the narrowest;
    `latency_ns` one-way for a small message; `over_hcas` whether it takes the HCAs. Where packets are sprayed there are
    several `ways`, which take equal parts, and `shares` says what part crosses each hop."""

    hops: tuple[tuple[int, ...], ...]
    latency_ns: int
    rate: Rate
    over_hcas: bool
    ways: tuple[tuple[int, ...], ...] = ()
    shares: tuple[float, ...] = ()


class RankPaths:
    """The paths between the ranks of a job. `places[r]` is where rank r sits on the topology of `manager`. `queues`:
    what plans are played through, None for links that are shared fairly.

    Raises ConfigError for an `intra_node` that is none of :data:`INTRA_NODE`, and for a place that does not exist.
    """

    def __init__(
        self,
        manager: SubnetManager,
        places: Sequence[RankPlace],
        intra_node: str = NVLINK,
        queues: QueueSettings | None = None,
    ) -> None:
        if intra_node not in INTRA_NODE:
            raise ConfigError(f"ranks of one node talk over {' or '.join(INTRA_NODE)}, not {intra_node!r}")
        self.manager = manager
        self.places = tuple(places)
        self.intra_node = intra_node
        self.queues = queues
        topology = manager.topology
        for place in self.places:
            topology.gpu(place.node, place.gpu)
            topology.hca(place.node, place.hca)
        self._lids = [manager.lid(place.hca_name) for place in self.places]
        self._ids = {link.name: link.id for link in topology.links}
        self._known: dict[tuple[int, int], RankPath] = {}

    @property
    def topology(self) -> Topology:
        """The fabric the ranks sit on."""
        return self.manager.topology

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return len(self.places)

    def over(self, hcas: Sequence[int]) -> RankPaths:
        """The paths of the same ranks where rank r uses HCA `hcas[r]` (index from 1) of its node."""
        places = [replace(place, hca=hca) for place, hca in zip(self.places, hcas, strict=True)]
        return RankPaths(self.manager, places, self.intra_node, self.queues)

    def hop_rate(self, hop: tuple[int, ...]) -> Rate:
        """The payload rate of a hop: that of all its links together."""
        return Rate(sum(self.manager.payload_rate(link).bits_per_s for link in hop))

    def lane(self, source: int, target: int) -> int:
        """The virtual lane between two ranks."""
        return self.manager.routes.sl(self._lids[source], self._lids[target])

    def path(self, source: int, target: int) -> RankPath:
        """The path between two ranks. Raises FabricUnhealthy when the fabric has none."""
        known = self._known.get((source, target))
        if known is None:
            known = self._find(source, target)
            if known.over_hcas and self.manager.routes.engine == "spray":
                known = self._sprayed(source, target)
            self._known[source, target] = known
        return known

    def _sprayed(self, source: int, target: int) -> RankPath:
        # Which way takes the first packet depends on the queue pair; over all packets the ways are even.
        memories = [gpu_memory(self.places[rank].gpu) for rank in (source, target)]
        flow = FlowKey(self._lids[source], self._lids[target], 0)
        path = self.manager.flow_path(flow, source=memories[0], target=memories[1])
        hops = tuple((link,) for link in path.links)
        shares = path.shares if path.ways else ()
        return RankPath(hops, path.latency_ns, path.rate, over_hcas=True, ways=path.ways, shares=shares)

    def _find(self, source: int, target: int) -> RankPath:
        here, there = self.places[source], self.places[target]
        if here.node == there.node and self.intra_node == NVLINK:
            return self._inside(here, there)
        path = self.manager.path(self._lids[source], self._lids[target], gpu_memory(here.gpu), gpu_memory(there.gpu))
        return RankPath(tuple((link,) for link in path.links), path.latency_ns, path.rate, over_hcas=True)

    def _inside(self, here: RankPlace, there: RankPlace) -> RankPath:
        if here.gpu == there.gpu:
            raise ConfigError(f"two ranks share {here.gpu_name}: give each rank a GPU of its own")
        way = peer_way(self.topology.shape, here.node, here.gpu, there.gpu)
        hops = tuple(tuple(self._ids[name] for name in hop) for hop in way.hops)
        return RankPath(hops, way.latency_ns, way.rate, over_hcas=False)
