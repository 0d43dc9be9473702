"""Channel dependencies: which cable a packet may hold while it waits for which other. A circle of them can deadlock.

A channel is one direction of a cable between switches, numbered `switch * width + port` after its sender. Channels from
and to HCAs cannot be part of a circle and are left out. A circle is necessary for a deadlock, not sufficient (Dally and
Seitz 1987); that there is none is a proof of freedom from deadlock.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fauxrdma.fabric.routing.switch_graph import PortArray, SwitchGraph

__all__ = ["IntArray", "Walks", "find_circle", "links_of", "used_by_any_shortest", "used_by_tables"]

IntArray = npt.NDArray[np.int64]

_CHUNK = 512
"""Destinations at a time, so that the work fits the processor's cache."""


class Walks:
    """The ways from every switch in `sources` to every LID in `lids`, by the tables.

    `dependencies[k]` has, for each pair of a source and a destination (row-major), the number of the dependency between
    the k-th and the next channel, -1 if the way ends before: `channel * width + port` of the next.
    """

    def __init__(
        self, graph: SwitchGraph, ports: PortArray, sources: npt.NDArray[np.intp], lids: npt.NDArray[np.intp]
    ) -> None:
        self.graph = graph
        self.dependencies: list[IntArray] = []
        at = np.repeat(sources, len(lids)).astype(np.int64)
        lids = np.tile(lids, len(sources))
        count = at.size
        pairs = np.arange(count)
        channel = np.full(count, -1, dtype=np.int64)
        for _ in range(len(graph.switches)):
            port = ports[at, lids].astype(np.int64)
            on = port > 0
            on &= graph.peers[at, port] >= 0
            at, port, pairs, lids, channel = at[on], port[on], pairs[on], lids[on], channel[on]
            if not pairs.size:
                break
            if self.dependencies or (channel >= 0).any():
                step = np.full(count, -1, dtype=np.int64)
                step[pairs] = channel * graph.width + port
                self.dependencies.append(step)
            channel = at * graph.width + port
            at = graph.peers[at, port].astype(np.int64)

    def users(self, dependency: int) -> npt.NDArray[np.bool_]:
        """Which ways have a dependency."""
        found = np.zeros(len(self.dependencies[0]), dtype=np.bool_)
        for step in self.dependencies:
            found |= step == dependency
        return found

    def used(self, chosen: npt.NDArray[np.bool_]) -> IntArray:
        """The distinct dependencies of the chosen pairs."""
        width = self.graph.width
        there = np.zeros(len(self.graph.switches) * width * width, dtype=np.bool_)
        for step in self.dependencies:
            codes = step[chosen]
            there[codes[codes >= 0]] = True
        return np.flatnonzero(there)


def used_by_tables(graph: SwitchGraph, ports: PortArray) -> IntArray:
    """The distinct dependencies of all traffic between HCAs, numbered as in `Walks`."""
    width, peers = graph.width, graph.peers.ravel()
    there = np.zeros(len(graph.switches) * width * width, dtype=np.bool_)
    sources = sorted({end.switch for end in graph.endpoints})
    for begin in range(0, len(graph.endpoints), _CHUNK):
        lids = [end.lid for end in graph.endpoints[begin : begin + _CHUNK]]
        table = np.ascontiguousarray(ports[:, lids]).astype(np.int64)
        seen = np.zeros(table.shape, dtype=np.bool_)
        seen[sources] = True
        front = seen.copy()
        while front.any():
            at, column = np.nonzero(front)
            port = table[at, column]
            channel = at * width + np.maximum(port, 0)
            following = peers[channel]
            on = (port > 0) & (following >= 0)
            channel, column, following = channel[on], column[on], following[on]
            onward = table[following, column]
            there[(channel * width + onward)[onward > 0]] = True
            front = np.zeros_like(seen)
            front[following, column] = True
            front &= ~seen
            seen |= front
    # What leads to an HCA cannot be part of a circle.
    codes = np.flatnonzero(there)
    last = peers[codes // width] * width + codes % width
    return np.asarray(codes[peers[last] >= 0])


def used_by_any_shortest(graph: SwitchGraph) -> IntArray:
    """The distinct dependencies when packets between HCAs may take any shortest path, numbered as in `Walks`."""
    there = np.zeros((len(graph.switches), graph.width, graph.width), dtype=np.bool_)
    sources = np.zeros(len(graph.switches), dtype=np.bool_)
    sources[[end.switch for end in graph.endpoints]] = True
    for target in {end.switch for end in graph.endpoints}:
        usable = graph.shortest_ports(target)
        front = sources.copy()
        visited = front.copy()
        while front.any():  # only what traffic from an HCA can reach counts
            at, port = np.nonzero(usable & front[:, None])
            following = graph.peers[at, port]
            there[at, port] |= usable[following]
            front = np.zeros_like(front)
            front[following] = True
            front &= ~visited
            visited |= front
    return np.flatnonzero(there)


def find_circle(graph: SwitchGraph, used: IntArray) -> list[int]:
    """Dependencies out of `used` that form a circle, each beginning where the one before ends; empty if none does."""
    width = graph.width
    first = used // width
    second = graph.peers.ravel()[first] * width + used % width
    remaining = np.arange(len(used))
    while True:  # take away what nothing leads to, until nothing is left or only what circles lead to
        led_to = np.zeros(len(graph.switches) * width, dtype=np.bool_)
        led_to[second[remaining]] = True
        kept = remaining[led_to[first[remaining]]]
        if len(kept) == len(remaining):
            break
        remaining = kept
    if not remaining.size:
        return []
    before = dict(zip(second[remaining].tolist(), remaining.tolist(), strict=True))
    return _walk_back(int(second[remaining[0]]), before, first, used)


def _walk_back(start: int, before: dict[int, int], first: IntArray, used: IntArray) -> list[int]:
    seen: dict[int, int] = {}
    trail: list[int] = []
    at = start
    while at not in seen:
        seen[at] = len(trail)
        trail.append(before[at])
        at = int(first[before[at]])
    return [int(used[edge]) for edge in reversed(trail[seen[at] :])]


def links_of(graph: SwitchGraph, circle: Sequence[int]) -> list[int]:
    """Ids of the links in a circle of dependencies, in order."""
    by_channel = {
        at * graph.width + trunk.port: trunk.link for at, trunks in enumerate(graph.trunks) for trunk in trunks
    }
    return [by_channel[dependency // graph.width] for dependency in circle]
