"""Shortest paths balanced by weights: the tables of dfsssp (osm_ucast_dfsssp.c).

Destination by destination, the HCAs of the fullest switch first, each switch takes the shortest path with the least
weight; then every cable of it gets heavier by the number of HCAs (and management ports) that use it to get there.

Where paths weigh the same, the one over the switch that was reached first is taken, and which of two equally near
switches is reached first depends on the heap of OpenSM's search. Up to `EXACT_ENTRIES` entries the tables follow that
heap (heap_search.py) and are OpenSM's, entry by entry. That takes some microseconds for each entry; larger tables are
computed layer by layer in arrays, ties going to the nearer switch, then to the lower-numbered one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fauxrdma.fabric.routing.heap_search import Links, search
from fauxrdma.fabric.routing.minhop import by_switch_load
from fauxrdma.fabric.routing.switch_graph import NO_PORT, PortArray, SwitchGraph

__all__ = ["EXACT_ENTRIES", "sssp"]

EXACT_ENTRIES = 1_000_000
"""Switches times LIDs up to which ties are OpenSM's: two to three seconds. A thousand hosts of one HCA are below it."""

_NEVER = np.iinfo(np.int64).max


def sssp(graph: SwitchGraph, exact_entries: int = EXACT_ENTRIES) -> PortArray:
    """Forwarding tables: `out[switch number, LID]`, balanced but not yet free of deadlock. `exact_entries`: the most
    entries for which ties are decided as OpenSM does."""
    out: PortArray = np.full((len(graph.switches), len(graph.nodes) + 1), NO_PORT, dtype=np.int16, order="F")
    own = np.ones(len(graph.switches), dtype=np.int64)  # the management port
    np.add.at(own, [end.switch for end in graph.endpoints], 1)
    hcas = [(end.lid, end.switch, end.port) for end in by_switch_load(graph)]
    fullest_first = np.argsort(-own, kind="stable").tolist()
    ways: _Ways = _HeapWays(graph, own) if out.size <= exact_entries else _LayerWays(graph, own)
    for lid, target, direct in [*hcas, *((graph.switch_lids[at], at, 0) for at in fullest_first)]:
        out[:, lid] = ways.towards(target, from_hca=direct > 0)
        out[target, lid] = direct
    return out


class _Ways(ABC):
    """Finds ways and makes them heavier."""

    @abstractmethod
    def towards(self, target: int, *, from_hca: bool) -> npt.ArrayLike:
        """For each switch the port towards switch `target`, NO_PORT if none; `from_hca`: for an HCA on that switch."""


class _HeapWays(_Ways):
    """As OpenSM finds them. Channels are numbered after the switch that sends towards the target: `switch * width +
    port`; the last channel is an HCA's cable, the last vertex the HCA."""

    def __init__(self, graph: SwitchGraph, own: npt.NDArray[np.int64]) -> None:
        count, self._width = len(graph.switches), graph.width
        self._peers: list[int] = graph.peers.ravel().tolist()
        self._own: list[int] = own.tolist()
        self._links: Links = [
            [(trunk.peer, trunk.peer * graph.width + trunk.peer_port) for trunk in trunks] for trunks in graph.trunks
        ]
        # Weight at first: more than any path can become, so that the fewest hops always weigh least.
        self._weight = [int(own.sum()) ** 2] * (count * graph.width) + [1]

    def towards(self, target: int, *, from_hca: bool) -> npt.ArrayLike:
        count = len(self._own)
        cable = count * self._width
        links = [*self._links, [(target, cable)]] if from_hca else self._links
        reached_by, order = search(links, self._weight, count if from_hca else target)
        behind = self._own.copy()
        ports = [NO_PORT] * count
        for at in reversed(order):
            channel = reached_by[at]
            if 0 <= channel < cable:
                ports[at] = channel % self._width
                self._weight[channel] += behind[at]
                behind[self._peers[channel]] += behind[at]
        return ports


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


class _LayerWays(_Ways):
    """All switches of one distance at once."""

    def __init__(self, graph: SwitchGraph, own: npt.NDArray[np.int64]) -> None:
        self._graph = graph
        self._own = own
        self._weight = np.zeros(len(graph.switches) * graph.width, dtype=np.int64)
        self._target, self._layers = -1, list[_Layer]()

    def towards(self, target: int, *, from_hca: bool) -> npt.ArrayLike:
        if target != self._target:
            self._target, self._layers = target, _layers(self._graph, target)
        count, width, weight = len(self._own), self._graph.width, self._weight
        cost = np.zeros(count, dtype=np.int64)
        port = np.full(count, NO_PORT, dtype=np.int64)
        for layer in self._layers:
            through = cost[layer.peers] + weight[layer.channels]
            best = np.minimum.reduceat(through, layer.starts)
            tie = cost[layer.peers] * width + layer.order
            tie[through > np.repeat(best, layer.counts)] = _NEVER
            chosen = layer.starts + np.minimum.reduceat(tie, layer.starts) % width
            cost[layer.switches] = best
            port[layer.switches] = layer.channels[chosen] % width
        behind = self._own.copy()
        for layer in reversed(self._layers):
            taken = layer.switches * width + port[layer.switches]
            weight[taken] += behind[layer.switches]
            behind += np.bincount(
                self._graph.peers.ravel()[taken], weights=behind[layer.switches], minlength=count
            ).astype(np.int64)
        return port


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
