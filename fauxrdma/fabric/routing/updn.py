"""updn: shortest paths that never go up again after they have gone down, so that no credit loop can close.

As OpenSM's osm_ucast_updn.c. **Roots** that are not given are found by counting: a switch is one when more than 90 % of
all HCAs are the same number of hops away from it, and no other distance has more than 5 %. **Ranks** are hops from the
nearest root. A cable leads up to the end of lower rank; between equal ranks to the one with the smaller GUID (here:
number), except that between two roots both ways are up. Ties are broken as in minhop.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fauxrdma.fabric.routing.minhop import assign_by_load
from fauxrdma.fabric.routing.routes import Routes
from fauxrdma.fabric.routing.switch_graph import UNREACHED, PortArray, SwitchGraph, spread
from fauxrdma.fabric.routing.up_down_ways import UpDownWays

__all__ = ["NO_ROOTS", "find_roots", "updn"]

NO_ROOTS = "updn_lid_matrices: disabling UPDN algorithm, no root nodes were found"


def updn(graph: SwitchGraph, previous: Routes | None = None, roots: Sequence[int] | None = None) -> PortArray | None:
    """Forwarding tables as `minhop` gives them, or None when no switch is a root. `roots`: their numbers; None: find
    them."""
    top = find_roots(graph) if roots is None else list(roots)
    if not top:
        return None
    start = np.zeros((len(graph.switches), 1), dtype=np.bool_)
    start[top] = True
    rank = spread(graph.peers, start)[:, 0].astype(np.int32)
    return assign_by_load(graph, UpDownWays(graph.peers, rank).usable_ports, previous)


def find_roots(graph: SwitchGraph) -> list[int]:
    """Numbers of the switches that stand at the top, going by how far the HCAs are away."""
    on_switch = np.bincount([end.switch for end in graph.endpoints], minlength=len(graph.switches))
    total = on_switch.sum()
    roots = []
    for at, hops in enumerate(graph.hops):
        reached = hops < UNREACHED
        at_distance = np.bincount(hops[reached], weights=on_switch[reached])
        if (at_distance > 0.9 * total).sum() == 1 and (at_distance > 0.05 * total).sum() == 1:
            roots.append(at)
    return roots
