"""Where ranks sit: which node, GPU and HCA each rank of a job uses, and how ranks are told of it. The vocabulary of
placements and algorithms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fauxrdma.errors import ConfigError
from fauxrdma.topology.graph import Topology

__all__ = [
    "GPU_VARIABLE",
    "PLACES_VARIABLE",
    "RankPlace",
    "block_places",
    "format_places",
    "parse_places",
    "place_of",
    "ranks_by_node",
]

GPU_VARIABLE = "FAUXRDMA_GPU"
"""The GPU of this rank, numbered within its node from 0."""
PLACES_VARIABLE = "FAUXRDMA_PLACES"
"""``node:gpu:hca`` of every rank of the job, in rank order, with spaces between."""


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


def format_places(places: Iterable[RankPlace]) -> str:
    """The places of all ranks as FAUXRDMA_PLACES has them."""
    return " ".join(f"{place.node}:{place.gpu}:{place.hca}" for place in places)


def parse_places(text: str) -> list[RankPlace]:
    """The places in FAUXRDMA_PLACES. Raises ConfigError for anything but node:gpu:hca of every rank."""
    places = []
    for rank, word in enumerate(text.split()):
        numbers = word.split(":")
        if len(numbers) != 3 or not all(number.isdecimal() for number in numbers) or numbers[2] == "0":
            raise ConfigError(
                f"{PLACES_VARIABLE}: the place of rank {rank} is {word!r}, which is not node:gpu:hca (node and GPU "
                "from 0, HCA from 1)"
            )
        places.append(RankPlace(*map(int, numbers)))
    return places
