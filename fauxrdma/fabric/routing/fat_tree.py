"""Whether a fabric is a fat-tree, by OpenSM's rules (osm_ucast_ftree.c, no root file), and its shape if it is.

**Rank** 0 are the roots; the switches with HCAs have the highest and are the leaves. Cables between the same two
switches are a **group**. The tree is pure when all switches of a rank have as many groups up, all but the leaves as
many down, and groups are equally wide. The **index** orders the leaves: breadth first from the first leaf, a switch
gets its parent's index with one digit replaced by the smallest that is free.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fauxrdma.fabric.routing.switch_graph import Endpoint, SwitchGraph, Trunk, spread

__all__ = ["FatTree", "Group", "NotAFatTree"]

MIN_RANKS, MAX_RANKS = 2, 8

Index = tuple[int, ...]


class NotAFatTree(Exception):
    """Why a fabric is no fat-tree: `lines` in OpenSM's words, with names in place of GUIDs."""

    def __init__(self, *lines: str) -> None:
        super().__init__(*lines)
        self.lines = lines


@dataclass(slots=True)
class Group:
    """All cables from one switch to another, `trunks` by port. `id` numbers the groups of the fabric."""

    id: int
    peer: int
    trunks: list[Trunk]


class FatTree:
    """Shape of a pure fat-tree. `up[i]` and `down[i]` are the groups of switch i to higher and lower switches;
    `leaves` the leaves in index order; `hcas[i]` the HCAs of switch i by port. Raises NotAFatTree."""

    def __init__(self, graph: SwitchGraph) -> None:
        self.graph = graph
        self.hcas: list[list[Endpoint]] = [[] for _ in graph.switches]
        for end in sorted(graph.endpoints, key=lambda end: end.port):
            self.hcas[end.switch].append(end)
        self.rank = self._ranks()
        self.up: list[list[Group]] = []
        self.down: list[list[Group]] = []
        self.groups: list[Group] = []
        for at in range(len(graph.switches)):
            groups = self._groups_of(at)
            self.up.append([group for group in groups if self.rank[group.peer] < self.rank[at]])
            self.down.append([group for group in groups if self.rank[group.peer] > self.rank[at]])
        self.leaves = self._index()
        self._validate()

    def _ranks(self) -> npt.NDArray[np.int32]:
        switches, hcas = len(self.graph.switches), len(self.graph.endpoints)
        fall_back = "Falling back to default routing"
        if switches < 2:
            raise NotAFatTree(f"Fabric has {switches} switches - topology is not fat-tree.", fall_back)
        if hcas < 2:
            raise NotAFatTree(f"Fabric has {hcas} CAs - topology is not fat-tree.", fall_back)
        leaves = np.array([[bool(ends)] for ends in self.hcas])
        height = spread(self.graph.peers, leaves)[:, 0].astype(np.int32)
        highest = int(height.max())
        if highest == 0:
            raise NotAFatTree("construct_fabric: ERR AB2B: Found more than one root on fabric with maximum rank 0")
        if not MIN_RANKS <= highest + 1 <= MAX_RANKS:
            raise NotAFatTree(f"Fabric rank is {highest + 1} (should be between {MIN_RANKS} and {MAX_RANKS})")
        return highest - height

    def _groups_of(self, at: int) -> list[Group]:
        by_peer: dict[int, Group] = {}
        for trunk in self.graph.trunks[at]:
            if trunk.peer not in by_peer:
                by_peer[trunk.peer] = Group(len(self.groups), trunk.peer, [])
                self.groups.append(by_peer[trunk.peer])
            by_peer[trunk.peer].trunks.append(trunk)
        return list(by_peer.values())

    def _index(self) -> list[int]:
        first = next(at for at, ends in enumerate(self.hcas) if ends)
        leaf_rank = int(self.rank[first])
        index: dict[int, Index] = {first: (leaf_rank, *[0] * leaf_rank)}
        taken = set(index.values())
        todo = deque([first])
        while todo:
            at = todo.popleft()
            for groups, step, digit in ((self.down[at], 1, index[at][0] + 1), (self.up[at], -1, index[at][0])):
                for group in groups:
                    if group.peer not in index:
                        index[group.peer] = _free_index(index[at], step, digit, taken)
                        taken.add(index[group.peer])
                        todo.append(group.peer)
                groups.sort(key=lambda group: index[group.peer])
        return sorted((at for at, ends in enumerate(self.hcas) if ends and at in index), key=index.__getitem__)

    def _validate(self) -> None:
        reference: dict[int, int] = {}
        leaf_rank = int(self.rank.max())
        for at, rank in enumerate(self.rank.tolist()):
            model = reference.setdefault(rank, at)
            self._compare("AB09", "Different number of upward port groups", "groups",
                          model, len(self.up[model]), at, len(self.up[at]))  # fmt: skip
            if rank != leaf_rank:
                self._compare("AB0A", "Different number of downward port groups", "port groups",
                              model, len(self.down[model]), at, len(self.down[at]))  # fmt: skip
            for group in self.up[at]:
                self._compare("AB0B", "Different number of ports in an upward port group", "ports",
                              model, len(self.up[model][0].trunks), at, len(group.trunks))  # fmt: skip
            if rank != leaf_rank and self.down[at]:
                self._compare("AB0C", "Different number of ports in an downward port group", "ports",
                              model, len(self.down[model][0].trunks), at, len(self.down[at][0].trunks))  # fmt: skip

    def _compare(self, code: str, what: str, unit: str, model: int, wanted: int, at: int, found: int) -> None:
        if wanted != found:
            names, lids = self.graph.switches, self.graph.switch_lids
            raise NotAFatTree(
                f"fabric_validate_topology: ERR {code}: {what} on switches: {names[model]}, LID {lids[model]} - "
                f"{wanted} {unit}; {names[at]}, LID {lids[at]} - {found} {unit}",
                "fabric_validate_topology: ERR AB0D: Fabric topology hasn't been identified as FatTree",
                "Fabric topology is not a fat-tree",
            )


def _free_index(parent: Index, step: int, digit: int, taken: set[Index]) -> Index:
    for value in range(255):
        index = (parent[0] + step, *parent[1:digit], value, *parent[digit + 1 :])
        if index not in taken:
            return index
    raise NotAFatTree("Fabric topology is not a fat-tree")
