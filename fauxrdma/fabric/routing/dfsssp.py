"""dfsssp: shortest paths balanced by weights (sssp.py), made free of deadlock with virtual lanes (osm_ucast_dfsssp.c).

Lanes are assigned to pairs of HCAs: all begin on lane 0; while the dependencies on a lane have a circle, the pairs
that use its weakest dependency move to the next lane. Lanes that are left over share the load of the fullest.
Hoefler, Schneider, Lumsdaine: Optimized Routing for Large-Scale InfiniBand Networks; Domke, Hoefler, Nagel:
Deadlock-Free Oblivious Routing for Arbitrary Topologies.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fauxrdma.fabric.routing.dependencies import Walks, find_circle, used_by_tables
from fauxrdma.fabric.routing.lanes import Lanes
from fauxrdma.fabric.routing.switch_graph import PortArray, SwitchGraph

__all__ = ["NotEnoughLanes", "assign_lanes"]


class NotEnoughLanes(Exception):
    """A circle of dependencies is left on the last lane."""

    def __init__(self, lanes: int) -> None:
        super().__init__(
            f"dfsssp_remove_deadlocks: ERR AD25: Not enough VLs available (avail={lanes}, needed={lanes + 1}); "
            "Stopping dfsssp routing!"
        )


def assign_lanes(graph: SwitchGraph, ports: PortArray, available: int) -> Lanes:
    """Lanes that keep the tables free of deadlock. Raises NotEnoughLanes if `available` do not suffice."""
    hcas_at = np.bincount([end.switch for end in graph.endpoints], minlength=len(graph.switches))
    sources = np.flatnonzero(hcas_at)
    lids = np.array([end.lid for end in graph.endpoints], dtype=np.intp)
    pairs = np.repeat(hcas_at[sources], len(lids))
    lane = np.zeros(pairs.size, dtype=np.uint8)
    if find_circle(graph, used_by_tables(graph, ports)):
        _break_circles(Walks(graph, ports, sources, lids), pairs, lane, available)
    load = np.bincount(lane, weights=pairs).astype(np.float64)
    return Lanes(graph, sources, lids, lane.reshape(len(sources), -1), load, available)


def _break_circles(walks: Walks, pairs: npt.NDArray[np.intp], lane: npt.NDArray[np.uint8], available: int) -> None:
    """Move pairs from lane to lane until none has a circle. `pairs`: how many of HCAs each walk stands for."""
    for number in range(available):
        while circle := find_circle(walks.graph, walks.used(lane == number)):
            if number + 1 == available:
                raise NotEnoughLanes(available)
            users = [walks.users(dependency) & (lane == number) for dependency in circle]
            lane[min(users, key=lambda chosen: int(pairs[chosen].sum()))] = number + 1
