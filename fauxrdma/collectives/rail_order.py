"""Which ranks of different nodes belong together because their HCAs meet on the same leaf: the order of ranks by rail.

Algorithms take `nodes`, the ranks of each node, and treat those at the same place of their nodes as neighbours. Whether
that keeps traffic on its rail depends on what is at these places.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Nodes", "align_rails", "common_rails"]

Nodes = Sequence[Sequence[int]]


def _by_rail(ranks: Sequence[int], rails: Sequence[int]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for rank in ranks:
        found.setdefault(rails[rank], []).append(rank)
    return found


def _shared(nodes: Nodes, rails: Sequence[int]) -> dict[int, int]:
    """How many ranks every node has on each rail that all nodes have."""
    tables = [_by_rail(ranks, rails) for ranks in nodes]
    return {rail: min(len(table.get(rail, ())) for table in tables) for rail in sorted(set(rails))}


def common_rails(nodes: Nodes, rails: Sequence[int]) -> int:
    """How many places of :func:`align_rails` are on one rail in all nodes. `rails`: the rail of each rank."""
    return sum(_shared(nodes, rails).values())


def align_rails(nodes: Nodes, rails: Sequence[int]) -> list[list[int]]:
    """The same nodes, their ranks reordered: first those on rails that all nodes have, rail by rail, so that the ranks
    at one place are on one rail; then the rest, by rail. `rails`: the rail of each rank."""
    shared = _shared(nodes, rails)
    ordered = []
    for ranks in nodes:
        table = _by_rail(ranks, rails)
        first = [rank for rail, many in shared.items() for rank in table.get(rail, [])[:many]]
        rest = [rank for rail in sorted(table) for rank in table[rail][shared[rail] :]]
        ordered.append(first + rest)
    return ordered
