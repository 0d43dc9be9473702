"""ftree: balanced routes in a fat-tree, as OpenSM's osm_ucast_ftree.c, which also says what a fat-tree is (`FatTree`).

For one destination, from its leaf: **descend** gives everything below a switch its way up to it, group by group, the
least used first, and then what stands beside it; **climb** does so for a switch, then goes on to the switch above that
its least used group leads to (the main way), then to all others above and beside that have no way yet or a longer one.
A group counts a destination down when the main way uses it, and up when an HCA gets a way by it; on a tie the switch
that comes first by index is used first. HCAs that a leaf lacks to be as full as the fullest are climbed for as well, so
that equal numbers of nodes get equal routes.

The tables are those of OpenSM, entry by entry, but for one case. Where cables join leaves, OpenSM leaves some HCAs, not
always the same, without any route: by its source because it sorts a leaf's cables to its HCAs while it goes through
them, by memory that belongs to no switch. Here all of them are routed, in the order of their ports.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fauxrdma.fabric.routing.fat_tree import FatTree, Group
from fauxrdma.fabric.routing.switch_graph import NO_PORT, PortArray, SwitchGraph

__all__ = ["ftree"]

_FAR = 255
"""OpenSM counts hops in a byte, and takes the highest number for none."""


def ftree(graph: SwitchGraph, roots: Sequence[int] | None = None) -> PortArray:
    """Forwarding tables: `out[switch number, LID]`. `roots`: numbers of the switches at the top; None: find them.
    Raises NotAFatTree for a fabric that is none."""
    return _Router(FatTree(graph, roots)).route()


class _Router:
    def __init__(self, tree: FatTree) -> None:
        self._tree = tree
        self._rank: list[int] = tree.rank.tolist()
        self._up, self._down, self._beside = tree.up, tree.down, tree.beside
        self._populated = [bool(ends) for ends in tree.hcas]
        self._at_bottom = [not down and not beside for down, beside in zip(tree.down, tree.beside, strict=True)]
        self._sorted = [True] * len(self._rank)
        # Sets of switches are bits of an integer: most visits find nothing left to do below, and must find it fast.
        self._bit = [1 << at for at in range(len(self._rank))]
        self._below = [sum(self._bit[group.peer] for group in groups) for groups in tree.down]
        self._everyone = sum(self._bit)
        self._start(0, NO_PORT, 0)

    def route(self) -> PortArray:
        """The columns of all LIDs: HCAs by leaf and port, then switches."""
        tree, graph = self._tree, self._tree.graph
        out: PortArray = np.full((len(graph.switches), len(graph.nodes) + 1), NO_PORT, dtype=np.int16, order="F")
        fullest = max(len(tree.hcas[leaf]) for leaf in tree.leaves)
        for leaf in tree.leaves:
            for end in tree.hcas[leaf]:
                self._start(leaf, end.port, 1)
                self._climb(leaf, -1, 1, main=True)
                out[:, end.lid] = self._port
            for _ in range(fullest - len(tree.hcas[leaf])):
                self._start(leaf, NO_PORT, 1)
                self._climb(leaf, -1, 1, main=True)
        for at, lid in enumerate(graph.switch_lids):
            self._start(at, 0, 0)
            if self._rank[at] >= 0:
                self._climb(at, -1, 0, main=False)
            out[:, lid] = self._port
        return out

    def _start(self, at: int, port: int, hops: int) -> None:
        """Begin a destination: at first only switch `at` has a way, over `port` (NO_PORT for a missing HCA)."""
        self._hops = [_FAR] * len(self._rank)
        self._port = [NO_PORT] * len(self._rank)
        self._hops[at], self._port[at] = hops, port
        self._real = port != NO_PORT
        self._lost = self._everyone ^ self._bit[at]
        self._farthest = [0] * (max(self._rank) + 2)
        self._farthest[self._rank[at]] = hops

    def _set(self, group: Group, cable: int, hops: int) -> None:
        peer = group.peer
        if self._hops[peer] == _FAR:
            self._lost ^= self._bit[peer]
        self._hops[peer], self._port[peer] = hops, group.far_ports[cable]
        rank = self._rank[peer]
        if hops > self._farthest[rank]:
            self._farthest[rank] = hops

    def _climb(self, at: int, came_from: int, hops: int, *, main: bool) -> bool:
        """True if an HCA gets a way by it."""
        created = self._descend(at, came_from, hops)
        if self._rank[at] == 0:
            return created
        hops += 1
        up, beside = self._up[at], self._beside[at]
        up.sort(key=_least_led_down)
        if main:
            cable = _least(up[0].cable_led_down)
            up[0].led_down += 1
            up[0].cable_led_down[cable] += 1
            if hops < self._hops[up[0].peer]:
                self._set(up[0], cable, hops)
            created |= self._climb(up[0].peer, at, hops, main=True)
        created |= self._climb_aside(up[main:], at, hops)
        if beside:
            beside.sort(key=_least_led_down)
        for group in beside:
            if hops < self._hops[group.peer]:
                cable = _least(group.cable_led_down)
                self._set(group, cable, hops)
                if self._climb(group.peer, at, hops, main=False):
                    created = True
                    up[0].led_down += 1  # sic: OpenSM counts the cable beside, but the group up
                    group.cable_led_down[cable] += 1
        return created

    def _climb_aside(self, groups: list[Group], at: int, hops: int) -> bool:
        """Over all groups up but the main way's. Most lead to roots that have nothing left to do: this is where the
        time goes, so those are not climbed."""
        created = False
        known, rank, below, beside = self._hops, self._rank, self._below, self._beside
        for group in groups:
            peer = group.peer
            if hops < known[peer]:
                counts = group.cable_led_down
                self._set(group, _least(counts) if len(counts) > 1 else 0, hops)
                if rank[peer] or beside[peer] or below[peer] & self._lost or hops + 1 < self._farthest[1]:
                    created |= self._climb(peer, at, hops, main=False)
        return created

    def _descend(self, at: int, came_from: int, hops: int) -> bool:
        """Give everything below and beside `at`, but for `came_from`, its way. True if an HCA gets one."""
        down, beside = self._down[at], self._beside[at]
        created = self._populated[at]
        if not down and not created:
            return False
        hops += 1
        if self._below[at] & self._lost or hops < self._farthest[self._rank[at] + 1]:
            if not self._sorted[at]:
                down.sort(key=_least_led_up)
                self._sorted[at] = True
            created |= self._lead_up(down, at, came_from, hops)
        if beside and self._real:
            beside.sort(key=_least_led_up)
            created |= self._lead_up(beside, at, came_from, hops)
        return created

    def _lead_up(self, groups: list[Group], at: int, came_from: int, hops: int) -> bool:
        """Give the far ends of `groups`, and everything below them, the way to `at` unless theirs is as short."""
        created = False
        known = self._hops
        for group in groups:
            if hops < known[group.peer] and group.peer != came_from:
                counts = group.cable_led_up
                cable = _least(counts) if len(counts) > 1 else 0
                self._set(group, cable, hops)
                peer = group.peer
                if self._populated[peer] if self._at_bottom[peer] else self._descend(peer, -1, hops):
                    counts[cable] += 1
                    group.led_up += 1
                    self._sorted[at] = False
                    created = True
        return created


def _least(counts: Sequence[int]) -> int:
    return min(range(len(counts)), key=counts.__getitem__)


def _least_led_down(group: Group) -> tuple[int, int]:
    return group.led_down, group.place


def _least_led_up(group: Group) -> tuple[int, int]:
    return group.led_up, group.place
