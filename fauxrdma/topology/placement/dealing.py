"""Dealing ranks to seats. Every node of the job gives the same number of GPUs, and every GPU gets one rank.

- ``block``: the first GPUs of the first node, then those of the next, as torchrun does.
- ``cyclic``: one rank to each node in turn, then the second GPU of each, as ``mpirun --map-by node`` does.
- ``rail-aligned``: GPUs on as many rails as there are, and ranks in an order in which the ring (rank r to r + 1, the
  last to rank 0) goes from node to node only along a rail and changes rails only inside a node.
- ``random``: any GPUs of each node, in any order, by seed.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

from fauxrdma.errors import ConfigError
from fauxrdma.topology.graph import Topology
from fauxrdma.topology.placement.placement import rails_of_places
from fauxrdma.topology.rank_places import RankPlace, place_of

__all__ = ["PLACEMENTS", "deal"]

PLACEMENTS = ("block", "cyclic", "rail-aligned", "random")
"""The ways to deal that need nothing but a fabric, nodes and a number of GPUs."""


def deal(topology: Topology, how: str, nodes: Sequence[int], gpus: int, seed: int = 0) -> tuple[RankPlace, ...]:
    """Seats by rank on `gpus` GPUs of each of `nodes`, which are used in that order. `seed` is for ``random``.

    Raises ConfigError for nodes or GPUs that are not there, a node that is named twice, and an unknown `how`.
    """
    _check(topology, nodes, gpus)
    if how == "block":
        seats = [(node, gpu) for node in nodes for gpu in range(gpus)]
    elif how == "cyclic":
        seats = [(node, gpu) for gpu in range(gpus) for node in nodes]
    elif how == "random":
        seats = _shuffled(topology, nodes, gpus, random.Random(seed))
    elif how == "rail-aligned":
        seats = _along_rails(nodes, _gpus_by_rail(topology, nodes[0], gpus))
    else:
        raise ConfigError(f"there is no placement {how!r}: choose {', '.join(PLACEMENTS)}")
    return tuple(place_of(topology, node, gpu) for node, gpu in seats)


def _check(topology: Topology, nodes: Sequence[int], gpus: int) -> None:
    if not nodes:
        raise ConfigError("a job needs at least one node")
    for node in nodes:
        if not 0 <= node < topology.hosts:
            raise ConfigError(
                f"{topology.name} has no node {node}: it was built with nodes 0..{topology.hosts - 1}; for node {node} "
                f"build at least {node + 1} (--nodes {node + 1})"
            )
    if len(set(nodes)) < len(nodes):
        twice = next(node for at, node in enumerate(nodes) if node in nodes[:at])
        raise ConfigError(f"node {twice} is named twice: name each node once")
    if not 1 <= gpus <= topology.gpus_per_host:
        raise ConfigError(
            f"{topology.name} has {topology.gpus_per_host} GPUs per node: the number of GPUs used must be between 1 "
            f"and {topology.gpus_per_host}, not {gpus}"
        )


def _shuffled(topology: Topology, nodes: Sequence[int], gpus: int, draw: random.Random) -> list[tuple[int, int]]:
    seats = [(node, gpu) for node in nodes for gpu in draw.sample(range(topology.gpus_per_host), gpus)]
    draw.shuffle(seats)
    return seats


def _gpus_by_rail(topology: Topology, node: int, gpus: int) -> list[list[int]]:
    """`gpus` GPUs of a node on as many rails as there are, rail by rail: all nodes are alike."""
    every = [place_of(topology, node, gpu) for gpu in range(topology.gpus_per_host)]
    on_rail: dict[int, list[int]] = {}
    for place, rail in zip(every, rails_of_places(topology, every), strict=True):
        on_rail.setdefault(rail, []).append(place.gpu)
    in_turn = [gpu for row in itertools.zip_longest(*on_rail.values()) for gpu in row if gpu is not None]
    chosen = set(in_turn[:gpus])
    return [kept for found in on_rail.values() if (kept := [gpu for gpu in found if gpu in chosen])]


def _along_rails(nodes: Sequence[int], rails: list[list[int]]) -> list[tuple[int, int]]:
    """A closed ring through GPUs `rails` (by rail) of all `nodes` that goes between nodes only along a rail."""
    every = [gpu for rail in rails for gpu in rail]
    odd = len(nodes) > 1 and len(nodes) % 2 == 1
    if len(every) == 2 and len(rails) == 2 and odd:
        return _braided(nodes, *every)
    # crossings[i]: the rail by which the ring goes on from node i. One rail with several GPUs is left by another GPU
    # than it is entered by; else a node must be left by another rail than it is entered by.
    top = len(rails) - 1
    crossings = [0 if at % 2 else top for at in range(len(nodes))]
    if odd:
        crossings[-2:] = [min(1, top) if top > 1 else 0, 0]
    seats = []
    for node, came_by, goes_by in zip(nodes, [0, *crossings], crossings, strict=False):
        first, last = rails[came_by][0], rails[goes_by][-1]
        between = [gpu for gpu in every if gpu not in (first, last)]
        seats += [(node, gpu) for gpu in dict.fromkeys([first, *between, last])]
    return seats


def _braided(nodes: Sequence[int], a: int, b: int) -> list[tuple[int, int]]:
    """The same for two GPUs on two rails and an odd number of nodes, where a ring that is in each node only once cannot
    close on the rail it began on: it comes by the last node but one twice."""
    *pairs, first, middle, last = nodes
    seats = [(node, gpu) for at, node in enumerate(pairs) for gpu in ((b, a) if at % 2 else (a, b))]
    return [*seats, (first, a), (first, b), (middle, b), (last, b), (last, a), (middle, a)]
