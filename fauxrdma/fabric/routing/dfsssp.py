"""dfsssp: shortest paths balanced by weights, made free of deadlock with virtual lanes (osm_ucast_dfsssp.c).

Destination by destination, the HCAs of the fullest switch first, each switch takes the shortest path with the least
weight; then every cable of it gets heavier by the number of HCAs (and management ports) that use it to get there. Ties
go to the neighbour that is itself the cheaper to get from, then to the lower-numbered one (OpenSM's to the one that its
heap happens to have on top).

Then lanes are assigned to pairs of HCAs: all begin on lane 0; while the dependencies on a lane have a circle, the pairs
that use its weakest dependency move to the next lane. Lanes that are left over share the load of the fullest.
Hoefler, Schneider, Lumsdaine: Optimized Routing for Large-Scale InfiniBand Networks; Domke, Hoefler, Nagel:
Deadlock-Free Oblivious Routing for Arbitrary Topologies.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fauxrdma.fabric.routing.dependencies import Walks, find_circle, used_by_tables
from fauxrdma.fabric.routing.lanes import Lanes
from fauxrdma.fabric.routing.minhop import by_switch_load
from fauxrdma.fabric.routing.switch_graph import NO_PORT, PortArray, SwitchGraph

__all__ = ["NotEnoughLanes", "assign_lanes", "sssp"]


class NotEnoughLanes(Exception):
    """A circle of dependencies is left on the last lane."""

    def __init__(self, lanes: int) -> None:
        super().__init__(
            f"dfsssp_remove_deadlocks: ERR AD25: Not enough VLs available (avail={lanes}, needed={lanes + 1}); "
            "Stopping dfsssp routing!"
        )


@dataclass(frozen=True, slots=True)
class _Layer:
    """The switches at one distance from the target, and their channels that lead nearer: `counts[i]` of them for switch
    i, from `starts[i]` on, sorted by the far end, which `order` counts from 0 for each switch."""

    switches: npt.NDArray[np.intp]
    starts: npt.NDArray[np.intp]
    counts: npt.NDArray[np.intp]
    channels: npt.NDArray[np.intp]
    peers: npt.NDArray[np.intp]
    order: npt.NDArray[np.intp]


_NEVER = np.iinfo(np.int64).max


def sssp(graph: SwitchGraph) -> PortArray:
    """Forwarding tables: `out[switch number, LID]`, balanced but not yet free of deadlock."""
    count, width = len(graph.switches), graph.width
    out: PortArray = np.full((count, len(graph.nodes) + 1), NO_PORT, dtype=np.int16, order="F")
    weight = np.zeros(count * width, dtype=np.int64)
    own = np.ones(count, dtype=np.int64)  # the management port
    np.add.at(own, [end.switch for end in graph.endpoints], 1)
    hcas = [(end.lid, end.switch, end.port) for end in by_switch_load(graph)]
    fullest_first = np.argsort(-own, kind="stable").tolist()
    last, layers = -1, list[_Layer]()
    for lid, target, direct in [*hcas, *((graph.switch_lids[at], at, 0) for at in fullest_first)]:
        if target != last:
            last, layers = target, _layers(graph, target)
        cost = np.zeros(count, dtype=np.int64)
        port = np.full(count, NO_PORT, dtype=np.int64)
        for layer in layers:
            through = cost[layer.peers] + weight[layer.channels]
            best = np.minimum.reduceat(through, layer.starts)
            tie = cost[layer.peers] * width + layer.order
            tie[through > np.repeat(best, layer.counts)] = _NEVER
            chosen = layer.starts + np.minimum.reduceat(tie, layer.starts) % width
            cost[layer.switches] = best
            port[layer.switches] = layer.channels[chosen] % width
        behind = own.copy()
        for layer in reversed(layers):
            taken = layer.switches * width + port[layer.switches]
            weight[taken] += behind[layer.switches]
            behind += np.bincount(graph.peers.ravel()[taken], weights=behind[layer.switches], minlength=count).astype(
                np.int64
            )
        out[:, lid] = port
        out[target, lid] = direct
    return out


def _layers(graph: SwitchGraph, target: int) -> list[_Layer]:
    at, port = np.nonzero(graph.shortest_ports(target))
    peers = graph.peers[at, port]
    hops = graph.hops[at, target]
    order = np.lexsort((graph.peer_ports[at, port], peers, at))
    found = []
    for distance in range(1, int(hops.max(initial=0)) + 1):
        there = order[hops[order] == distance]
        switches, starts, counts = np.unique(at[there], return_index=True, return_counts=True)
        index = np.arange(there.size) - np.repeat(starts, counts)
        found.append(_Layer(switches, starts, counts, at[there] * graph.width + port[there], peers[there], index))
    return found


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
