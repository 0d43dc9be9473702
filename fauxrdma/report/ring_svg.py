"""The ring in rank order, drawn as arcs below the GPUs of a fabric's picture."""

from __future__ import annotations

from html import escape

from fauxrdma.report.layout import Layout
from fauxrdma.topology.graph import Topology
from fauxrdma.topology.placement import Placement, rails_of_places

__all__ = ["RING_DEPTH", "RING_STYLE", "ring_arcs"]

RING_DEPTH = 74.0
"""What the arcs need below the hosts, in SVG user units."""
_MOST_RANKS = 64
_LEAST_DROP, _DROP_PER_UNIT = 34.0, 0.09

RING_STYLE = """
.topo g.hop path { stroke-width:1.6; } .topo g.hop:hover path:not(.hit) { stroke-width:4; }
.topo .inside path { stroke:var(--edge); } .topo .along path { stroke:var(--l2); }
.topo .across path { stroke:var(--l5); stroke-dasharray:5 3; } .topo g.hop path.hit { stroke:transparent; }
""".strip()


def ring_arcs(topology: Topology, layout: Layout, placement: Placement) -> list[str]:
    """SVG elements, one for each hop between GPUs that are drawn: grey inside a node, green along a rail, red and
    dashed from rail to rail. Empty for a single rank, and for more than can be told apart."""
    count = placement.world_size
    if not 2 <= count <= _MOST_RANKS:
        return []
    rails = rails_of_places(topology, placement.places)
    floor = max(box.bottom for box in layout.hosts.values()) + RING_DEPTH
    arcs = []
    for rank, place in enumerate(placement.places):
        to = (rank + 1) % count
        target = placement.places[to]
        if place.gpu_name not in layout.boxes or target.gpu_name not in layout.boxes:
            continue
        here, there = layout.boxes[place.gpu_name], layout.boxes[target.gpu_name]
        if place.node == target.node:
            kind, how = "inside", f"inside node {place.node}"
        elif rails[rank] == rails[to]:
            kind, how = "along", f"along rail {rails[rank]}"
        else:
            kind, how = "across", f"from rail {rails[rank]} to rail {rails[to]}"
        drop = _LEAST_DROP + _DROP_PER_UNIT * abs(here.x - there.x)
        # A cubic curve comes three quarters of the way down to its control points.
        y = here.bottom + min(drop, floor - here.bottom) / 0.75
        down, up = f"{here.x:.1f} {y:.1f}", f"{there.x:.1f} {y:.1f}"
        path = f"M{here.x:.1f} {here.bottom:.1f} C{down} {up} {there.x:.1f} {there.bottom:.1f}"
        arcs.append(
            f'<g class="hop {kind}"><path d="{path}"/><path class="hit" d="{path}"/>'
            f"<title>{escape(f'rank {rank} to rank {to}: {how}')}</title></g>"
        )
    return arcs
