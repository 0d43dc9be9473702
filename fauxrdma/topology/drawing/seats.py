"""Ranks drawn in plain text: a map of nodes and rails, and the ring in rank order.

::

             rail 0   rail 1
    node 0   r0 gpu0  r1 gpu1
    node 1   r3 gpu0  r2 gpu1

    ring     n0[r0 - r1] = n1[r2 - r3] = r0
"""

from __future__ import annotations

import textwrap

from fauxrdma.topology.graph import Topology
from fauxrdma.topology.placement import Placement, rails_of_places

__all__ = ["draw_ring", "draw_seats"]

_MOST_NODES = 40
_MOST_RANKS = 64


def draw_seats(topology: Topology, placement: Placement) -> str:
    """A row for each node that has ranks, a column for each rail that any is on. Ends without a newline."""
    rail_of = rails_of_places(topology, placement.places)
    rails = sorted(set(rail_of))
    nodes = sorted(placement.nodes)
    cells: dict[tuple[int, int], list[str]] = {}
    for rank, (place, rail) in enumerate(zip(placement.places, rail_of, strict=True)):
        cells.setdefault((place.node, rail), []).append(f"r{rank} gpu{place.gpu}")
    shown = nodes[:_MOST_NODES]
    rows = [["", *(f"rail {rail}" for rail in rails)]]
    rows += [[f"node {node}", *(", ".join(cells.get((node, rail), ["."])) for rail in rails)] for node in shown]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    widths[0] = max(widths[0], 7)
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    if len(nodes) > len(shown):
        lines.append(f"... and {len(nodes) - len(shown)} more nodes")
    return "\n".join(lines)


def draw_ring(topology: Topology, placement: Placement, width: int = 100) -> str:
    """The ring in rank order: ``-`` inside a node, ``=`` along a rail, ``~`` from one rail to another; ranks of one
    node in brackets. Ends without a newline."""
    rails = rails_of_places(topology, placement.places)
    places = placement.places
    groups: list[str] = []
    for rank, place in enumerate(places[:_MOST_RANKS]):
        before = places[rank - 1] if rank else None
        if before is not None and before.node == place.node:
            groups[-1] += f" - r{rank}"
        else:
            groups.append(f"n{place.node}[r{rank}")
        following = (rank + 1) % len(places)
        if places[following].node != place.node:
            groups[-1] += "] =" if rails[following] == rails[rank] else "] ~"
    if len(places) == 1:
        return f"n{places[0].node}[r0]"
    end = "- r0]" if places[-1].node == places[0].node else "r0"
    if len(places) > _MOST_RANKS:
        end = "..."
    return textwrap.fill(" ".join([*groups, end]), width, subsequent_indent="  ", break_long_words=False)
