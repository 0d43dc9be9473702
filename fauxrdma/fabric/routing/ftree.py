"""ftree: balanced routes in a fat-tree, as OpenSM's osm_ucast_ftree.c, which also says what a fat-tree is (`FatTree`).

Leaf by leaf, HCA by HCA: from the HCA's leaf **climb** to a root, each time by the group of cables that leads the
fewest destinations down so far (the lower-numbered switch on a tie), and in it by the least loaded cable. From every
switch on the way **descend** to all switches below that have no entry yet: each gets the cable of its group that leads
the fewest destinations up. HCAs that a leaf lacks to be as full as the fullest are climbed for as well, so that equal
numbers of nodes get equal routes.

All traffic between HCAs uses the switches of these trees. The others (they would only send what they originate
themselves) get the first port of a shortest way that climbs and then descends, which OpenSM balances too. Cables
between switches of one rank are not used: a fabric that needs them is refused, where OpenSM would use them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fauxrdma.fabric.routing.fat_tree import FatTree, Group, NotAFatTree
from fauxrdma.fabric.routing.switch_graph import NO_PORT, UNREACHED, PortArray, SwitchGraph
from fauxrdma.fabric.routing.up_down_ways import UpDownWays

__all__ = ["ftree"]


def ftree(graph: SwitchGraph) -> PortArray:
    """Forwarding tables: `out[switch number, LID]`. Raises NotAFatTree for a fabric that is none."""
    return _Router(FatTree(graph)).route()


@dataclass(frozen=True, slots=True)
class _Descent:
    """Everything below a switch: numbers of the switches, the groups they hang on, their distances. `branches` says
    which columns hang on which switch of the next rank."""

    rows: npt.NDArray[np.intp]
    branches: dict[int, slice]

    def without(self, peer: int) -> npt.NDArray[np.intp]:
        """The rows without the branch of switch `peer`, if there is one."""
        branch = self.branches.get(peer)
        if branch is None:
            return self.rows
        return np.concatenate((self.rows[:, : branch.start], self.rows[:, branch.stop :]), axis=1)


class _Router:
    def __init__(self, tree: FatTree) -> None:
        self._tree = tree
        graph = self._graph = tree.graph
        widest = max(len(group.trunks) for group in tree.groups)
        self._led_down = np.zeros((len(tree.groups), widest), dtype=np.int64)
        self._led_up = np.zeros((len(tree.groups), widest), dtype=np.int64)
        self._far_port = np.full((len(tree.groups), widest), NO_PORT, dtype=np.int16)
        for group in tree.groups:
            self._led_up[group.id, len(group.trunks) :] = self._led_down[group.id, len(group.trunks) :] = 1 << 60
            self._far_port[group.id, : len(group.trunks)] = [trunk.peer_port for trunk in group.trunks]
        self._group_led_down = [0] * len(tree.groups)
        self._group_led_up = [0] * len(tree.groups)
        self._descents: dict[int, _Descent | None] = {}
        siblings = tree.rank[graph.peers] == tree.rank[:, None]
        self._ways = UpDownWays(np.where(siblings, -1, graph.peers), tree.rank)
        self._check_all_reached()
        self._hops = np.empty(len(graph.switches), dtype=np.int16)
        self._column = np.empty(len(graph.switches), dtype=np.int16)

    def _check_all_reached(self) -> None:
        leaves = self._tree.leaves
        pairs = np.ix_(leaves, leaves)
        lost = (self._ways.hops[pairs] >= UNREACHED) & (self._graph.hops[pairs] < UNREACHED)
        if lost.any():
            one, other = (self._graph.switches[leaves[at]] for at in np.argwhere(lost)[0])
            raise NotAFatTree(f"Fabric topology is not a fat-tree: no way goes up and down from {one} to {other}")

    def route(self) -> PortArray:
        tree, graph = self._tree, self._graph
        out: PortArray = np.full((len(graph.switches), len(graph.nodes) + 1), NO_PORT, dtype=np.int16, order="F")
        fullest = max(len(tree.hcas[leaf]) for leaf in tree.leaves)
        for leaf in tree.leaves:
            usual = self._usual(leaf)
            shortest = self._ways.hops[:, leaf] + 1
            for end in tree.hcas[leaf]:
                self._lead_to(leaf, end.port)
                out[:, end.lid] = np.where(self._hops == shortest, self._column, usual)
            for _ in range(fullest - len(tree.hcas[leaf])):
                self._lead_to(leaf, NO_PORT)
        for at, lid in enumerate(graph.switch_lids):
            out[:, lid] = self._usual(at)
            out[at, lid] = 0
        return out

    def _usual(self, target: int) -> PortArray:
        usable = self._ways.usable_ports(target)
        return np.where(usable.any(axis=1), usable.argmax(axis=1), NO_PORT).astype(np.int16)

    def _lead_to(self, leaf: int, port: int) -> None:
        """Fill the column of one destination behind `port` of `leaf`."""
        self._hops.fill(UNREACHED)
        self._set(leaf, port, 1)
        self._climb(leaf)

    def _set(self, at: int, port: int, hops: int) -> None:
        self._column[at] = port
        self._hops[at] = hops

    def _climb(self, at: int) -> None:
        came_from = -1
        hops = 1
        while True:
            self._descend(at, came_from, hops)
            if self._tree.rank[at] == 0:
                return
            group, cable = self._take_least_led(at)
            if hops + 1 >= self._hops[group.peer]:
                return
            hops += 1
            self._set(group.peer, int(self._far_port[group.id, cable]), hops)
            came_from, at = at, group.peer

    def _take_least_led(self, at: int) -> tuple[Group, int]:
        """The group up that leads the fewest destinations down, and the cable of it, with one more on both."""
        group = min(self._tree.up[at], key=lambda group: (self._group_led_down[group.id], group.peer))
        cable = int(self._led_down[group.id].argmin())
        self._group_led_down[group.id] += 1
        self._led_down[group.id, cable] += 1
        return group, cable

    def _descend(self, at: int, skip: int, hops: int) -> None:
        """Give everything below `at`, but for what hangs on switch `skip`, its way up."""
        if at not in self._descents:
            self._descents[at] = self._survey(at)
        known = self._descents[at]
        rows = None if known is None else known.without(skip)
        if rows is None or (self._hops[rows[0]] < UNREACHED).any():
            self._descend_in_order(at, skip, hops)
            return
        below, groups, depth = rows
        cable = self._led_up[groups].argmin(axis=1)
        self._led_up[groups, cable] += 1
        self._column[below] = self._far_port[groups, cable]
        self._hops[below] = depth + hops

    def _survey(self, top: int) -> _Descent | None:
        """What is below, if there is one way down to everything; else the order in which groups are tried matters."""
        rows: list[tuple[int, int, int]] = []
        branches: dict[int, slice] = {}
        seen = {top}
        for branch in self._tree.down[top]:
            start = len(rows)
            layer, depth = [branch], 0
            while layer:
                depth += 1
                for group in layer:
                    if group.peer in seen:
                        return None
                    seen.add(group.peer)
                    rows.append((group.peer, group.id, depth))
                layer = [group for upper in layer for group in self._tree.down[upper.peer]]
            branches[branch.peer] = slice(start, len(rows))
        return _Descent(np.array(rows, dtype=np.intp).reshape(len(rows), 3).T, branches)

    def _descend_in_order(self, at: int, skip: int, hops: int) -> bool:
        """The same, group by group, the least used first. True if an HCA gets a way by it."""
        groups = self._tree.down[at]
        groups.sort(key=lambda group: self._group_led_up[group.id])  # stable: ties stay as they were
        created = bool(self._tree.hcas[at])
        for group in groups:
            if group.peer == skip or hops + 1 >= self._hops[group.peer]:
                continue
            cable = int(self._led_up[group.id].argmin())
            self._set(group.peer, int(self._far_port[group.id, cable]), hops + 1)
            if self._descend_in_order(group.peer, -1, hops + 1):
                self._led_up[group.id, cable] += 1
                self._group_led_up[group.id] += 1
                created = True
        return created
