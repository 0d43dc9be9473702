"""A placement: the seats of all ranks of a job, and what follows from them for each rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fauxrdma.topology.graph import Topology
from fauxrdma.topology.rails import rails_of
from fauxrdma.topology.rank_places import GPU_VARIABLE, PLACES_VARIABLE, RankPlace, format_places

__all__ = ["Placement", "RingHops", "rails_of_places"]


@dataclass(frozen=True, slots=True)
class RingHops:
    """The hops of the ring in rank order (the last rank's to rank 0 with them): between ranks of one node, between
    nodes along one rail, and between nodes from one rail to another. `between_leaves`: how many of those between nodes
    have their HCAs on two leaves, so that they cross a spine."""

    inside: int
    along: int
    across: int
    between_leaves: int


@dataclass(frozen=True)
class Placement:
    """Rank r sits at `places[r]`; `name` is what the user calls it (``block``, ``random:7``, the path of a file).

    The numbers mean what torchrun means by them: a local rank counts the ranks of one node, in order of rank; a group
    is a node that has ranks, and groups count in order of their first rank.
    """

    name: str
    places: tuple[RankPlace, ...]

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return len(self.places)

    @property
    def nodes(self) -> list[int]:
        """The nodes that have ranks, in order of their first rank: the groups."""
        return list(dict.fromkeys(place.node for place in self.places))

    def ranks_on(self, node: int) -> list[int]:
        """The ranks of `node`, ascending: a rank's place in this list is its local rank."""
        return [rank for rank, place in enumerate(self.places) if place.node == node]

    def local_rank(self, rank: int) -> int:
        """LOCAL_RANK."""
        return self.ranks_on(self.places[rank].node).index(rank)

    def environment(self, rank: int) -> dict[str, str]:
        """What rank `rank` must be told of where it and the others sit: torchrun's variables and ours."""
        place = self.places[rank]
        groups = self.nodes
        return {
            "RANK": str(rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.local_rank(rank)),
            "LOCAL_WORLD_SIZE": str(len(self.ranks_on(place.node))),
            "GROUP_RANK": str(groups.index(place.node)),
            "GROUP_WORLD_SIZE": str(len(groups)),
            "FAUXRDMA_NODE": str(place.node),
            GPU_VARIABLE: str(place.gpu),
            "FAUXRDMA_HCA": f"hca{place.hca}",
            PLACES_VARIABLE: self.text,
        }

    @property
    def text(self) -> str:
        """All places on one line, as `parse_places` reads them."""
        return format_places(self.places)

    @property
    def active_gpus(self) -> int:
        """One more than the highest GPU in use on any node."""
        return max(place.gpu for place in self.places) + 1

    def gpus_to_pace(self, topology: Topology) -> int:
        """How many GPUs, counted from the first, need as many HCAs as the busiest node uses: as much as pacing has to
        know about a node."""
        busiest = max(len({place.hca for place in self.places if place.node == node}) for node in self.nodes)
        seen: set[int] = set()
        for gpu in range(topology.gpus_per_host):
            seen.add(topology.shape.hca_of_gpu(gpu))
            if len(seen) >= busiest:
                return gpu + 1
        return topology.gpus_per_host

    def ring_hops(self, topology: Topology) -> RingHops:
        """How the ring in rank order runs over the fabric."""
        rails = rails_of_places(topology, self.places)
        leaves = [topology.fabric_link(topology.nodes[place.hca_name]).dst for place in self.places]
        inside = along = across = between_leaves = 0
        for rank, place in enumerate(self.places):
            following = (rank + 1) % self.world_size
            if following == rank:
                continue
            if self.places[following].node == place.node:
                inside += 1
                continue
            if rails[following] == rails[rank]:
                along += 1
            else:
                across += 1
            between_leaves += leaves[following] != leaves[rank]
        return RingHops(inside, along, across, between_leaves)


def rails_of_places(topology: Topology, places: Sequence[RankPlace]) -> list[int]:
    """The rail (from 0) of each place: what the leaves of the HCAs say, and on a fabric without rails the HCA's index
    from 0, as the communicator has it."""
    rails = rails_of(topology)
    return [rails.get(place.hca_name, place.hca - 1) for place in places]
