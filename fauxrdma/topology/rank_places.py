"""Where ranks sit: which node, GPU and HCA each rank of a job uses. The vocabulary of placements and algorithms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fauxrdma.topology.graph import Topology

__all__ = ["RankPlace", "block_places", "place_of", "ranks_by_node"]


@dataclass(frozen=True, slots=True)
class RankPlace:
    """The seat of one rank: GPU `gpu` (from 0) of node `node` (from 0), whose traffic goes over HCA `hca` (from 1)."""

    node: int
    gpu: int
    hca: int

    @property
    def hca_name(self) -> str:
        """The HCA's name in the graph, ``n0.hca1``."""
        return f"n{self.node}.hca{self.hca}"

    @property
    def gpu_name(self) -> str:
        """The GPU's name in the graph, ``n0.gpu0``."""
        return f"n{self.node}.gpu{self.gpu}"


def place_of(topology: Topology, node: int, gpu: int) -> RankPlace:
    """The place on GPU `gpu` of node `node`, over the HCA which that GPU uses. Raises ConfigError if there is none."""
    return RankPlace(node, gpu, topology.hca_of(topology.gpu(node, gpu)).index)


def block_places(topology: Topology, nodes: int, gpus: int) -> list[RankPlace]:
    """The usual placement, by rank: rank = node x gpus + gpu, as torchrun does."""
    return [place_of(topology, node, gpu) for node in range(nodes) for gpu in range(gpus)]


def ranks_by_node(places: Sequence[RankPlace]) -> list[list[int]]:
    """The ranks of each node that has any, nodes in order of number, ranks of a node in order of their GPU: what
    hierarchical plans take as `nodes`."""
    by_node: dict[int, list[int]] = {}
    for rank, place in enumerate(places):
        by_node.setdefault(place.node, []).append(rank)
    return [sorted(by_node[node], key=lambda rank: places[rank].gpu) for node in sorted(by_node)]
