"""updn: shortest paths that never go up again after they have gone down, so that no credit loop can close.

As OpenSM's osm_ucast_updn.c. **Roots** are found by counting: a switch is one when more than 90 % of all HCAs are
the same number of hops away from it, and no other distance has more than 5 %. **Ranks** are hops from the nearest root.
A cable leads up to the end of lower rank; between equal ranks to the one with the smaller GUID (here: number), except
that between two roots both ways are up. Ties are broken as in minhop.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fauxrdma.fabric.routing.minhop import BoolArray, assign_by_load
from fauxrdma.fabric.routing.routes import PortArray, Routes
from fauxrdma.fabric.routing.switch_graph import UNREACHED, HopArray, SwitchGraph, spread

__all__ = ["NO_ROOTS", "find_roots", "updn"]

NO_ROOTS = "updn_lid_matrices: disabling UPDN algorithm, no root nodes were found"


def updn(graph: SwitchGraph, previous: Routes | None = None) -> PortArray | None:
    """Forwarding tables as `minhop` gives them, or None when no switch is a root."""
    roots = find_roots(graph)
    if not roots:
        return None
    return assign_by_load(graph, _UpDownPorts(graph, roots).usable, previous)


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


class _UpDownPorts:
    """Legal next hops. Distances are those of a walk from the target outwards, which goes up, then down."""

    def __init__(self, graph: SwitchGraph, roots: list[int]) -> None:
        self._graph = graph
        peers = graph.peers
        count = len(graph.switches)
        start = np.zeros((count, 1), dtype=np.bool_)
        start[roots] = True
        rank = spread(peers, start)[:, 0].astype(np.int32)
        mine = np.arange(count)[:, None]
        # From the peer to this switch: up, unless the peer stands above.
        lower = (rank[peers] > rank[:, None]) | ((rank[peers] == rank[:, None]) & (peers > mine))
        both_roots = (rank[peers] == 0) & (rank[:, None] == 0)
        self._from_below: BoolArray = (peers >= 0) & (lower | both_roots)
        itself = np.eye(count, dtype=np.bool_)
        self._climbed = spread(np.where(self._from_below, peers, -1), itself)
        self._any = self._then_down(np.where(self._from_below, -1, peers), rank)

    def _then_down(self, from_above: npt.NDArray[np.intp], rank: npt.NDArray[np.int32]) -> HopArray:
        """Hops of the best walk that climbs and then descends, from the top down: what is above is done before."""
        hops = self._climbed.copy()
        for at in np.lexsort((np.arange(len(rank)), rank)):
            above = from_above[at][from_above[at] >= 0]
            if above.size:
                hops[at] = np.minimum(hops[at], np.minimum(hops[above].min(axis=0) + 1, UNREACHED))
        return hops

    def usable(self, target: int) -> BoolArray:
        """`[switch, port]`: whether the port starts a shortest legal way to switch `target`."""
        peers = self._graph.peers
        hops = self._any[:, target]
        beyond = np.where(self._from_below, self._climbed[peers, target], hops[peers])
        reached = (hops > 0) & (hops < UNREACHED)
        return np.asarray((peers >= 0) & (beyond == (hops - 1)[:, None]) & reached[:, None])
