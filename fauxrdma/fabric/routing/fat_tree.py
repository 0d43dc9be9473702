"""Whether a fabric is a fat-tree, by OpenSM's rules (osm_ucast_ftree.c), and its shape if it is.

**Rank** is hops from the nearest root. Without roots given, the roots are the switches that are farthest from all HCAs.
The switches with HCAs must all have one rank, the leaf rank, which without roots given is the highest. (So where a
whole branch has no HCAs, its lowest switches are the roots, and the tree hangs from them.)

Cables between the same two switches are a **group**: up, down, or beside, between switches of one rank. Without roots
given the tree must be pure: all switches of a rank have as many groups up, all but the leaves as many down, and groups
are equally wide. Groups beside are not compared.

The **index** orders switches: breadth first from the first leaf, over groups up and down, a switch gets its parent's
index with one digit replaced by the smallest that is free. Switches that are only beside others get none and come last.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fauxrdma.fabric.routing.switch_graph import UNREACHED, Endpoint, SwitchGraph, Trunk, spread

__all__ = ["FatTree", "Group", "NotAFatTree"]

MIN_RANKS, MAX_RANKS = 2, 8

_NOT_INDEXED = 255

Index = tuple[int, ...]


class NotAFatTree(Exception):
    """Why a fabric is no fat-tree: `lines` in OpenSM's words, with names in place of GUIDs."""

    def __init__(self, *lines: str) -> None:
        super().__init__(*lines)
        self.lines = lines


@dataclass(slots=True)
class Group:
    """All cables from one switch to another, `trunks` by port, which end in its `far_ports`. `place` is the other
    switch's place by index.

    Routers count in it: destinations that it leads down (from the far end to this one) and up, in all and by cable.
    """

    peer: int
    trunks: list[Trunk]
    far_ports: list[int] = field(default_factory=list)
    place: int = 0
    led_down: int = 0
    led_up: int = 0
    cable_led_down: list[int] = field(default_factory=list)
    cable_led_up: list[int] = field(default_factory=list)


class FatTree:
    """Shape of a fat-tree. `up[i]`, `down[i]` and `beside[i]` are the groups of switch i to switches of lower, higher
    and equal rank; `leaves` the switches of leaf rank by index, from the first to the last that has HCAs; `hcas[i]` the
    HCAs of switch i by port. Switches that no HCA reaches have rank -1 and no part in it.

    Raises NotAFatTree."""

    def __init__(self, graph: SwitchGraph, roots: Sequence[int] | None = None) -> None:
        """`roots`: numbers of the switches of rank 0; None: find them."""
        self.graph = graph
        self.hcas: list[list[Endpoint]] = [[] for _ in graph.switches]
        for end in sorted(graph.endpoints, key=lambda end: end.port):
            self.hcas[end.switch].append(end)
        self.rank = self._ranks(roots)
        self.leaf_rank = self._leaf_rank(roots is not None)
        self.groups: list[Group] = []
        self.up: list[list[Group]] = []
        self.down: list[list[Group]] = []
        self.beside: list[list[Group]] = []
        for at, rank in enumerate(self.rank.tolist()):
            groups = self._groups_of(at)
            self.up.append([group for group in groups if self.rank[group.peer] < rank])
            self.down.append([group for group in groups if self.rank[group.peer] > rank])
            self.beside.append([group for group in groups if self.rank[group.peer] == rank])
        self.leaves = self._leaves(self._index())
        if roots is None:
            self._validate()

    def _ranks(self, roots: Sequence[int] | None) -> npt.NDArray[np.int32]:
        fall_back = "Falling back to default routing"
        height = self._hops_from([at for at, ends in enumerate(self.hcas) if ends])
        switches, hcas = int((height >= 0).sum()), len(self.graph.endpoints)
        if switches < 2:
            raise NotAFatTree(f"Fabric has {switches} switches - topology is not fat-tree.", fall_back)
        if hcas < 2:
            raise NotAFatTree(f"Fabric has {hcas} CAs - topology is not fat-tree.", fall_back)
        top = np.flatnonzero(height == height.max()).tolist() if roots is None else list(roots)
        rank = np.where(height >= 0, self._hops_from(top), -1)
        if rank.max() == 0:
            raise NotAFatTree("construct_fabric: ERR AB2B: Found more than one root on fabric with maximum rank 0")
        return rank

    def _hops_from(self, nearest: list[int]) -> npt.NDArray[np.int32]:
        """Hops from the nearest of some switches, -1 where none is reached."""
        start = np.zeros((len(self.graph.switches), 1), dtype=np.bool_)
        start[nearest] = True
        hops = spread(self.graph.peers, start)[:, 0].astype(np.int32)
        return np.where(hops < UNREACHED, hops, -1)

    def _leaf_rank(self, rooted: bool) -> int:
        ends = self.graph.endpoints
        leaf_rank = int(self.rank[ends[0].switch] if rooted else self.rank.max())
        if not MIN_RANKS <= leaf_rank + 1 <= MAX_RANKS:
            raise NotAFatTree(f"Fabric rank is {leaf_rank + 1} (should be between {MIN_RANKS} and {MAX_RANKS})")
        for end in ends:
            rank = int(self.rank[end.switch])
            if rank != leaf_rank:
                raise NotAFatTree(
                    f"fabric_mark_leaf_switches: ERR AB26: CN port {end.name} is connected to switch "
                    f"{self.graph.switches[end.switch]} with rank {rank}, while FatTree leaf rank is {leaf_rank}",
                    "Fabric topology is not a fat-tree",
                )
        return leaf_rank

    def _groups_of(self, at: int) -> list[Group]:
        by_peer: dict[int, Group] = {}
        for trunk in self.graph.trunks[at]:
            if trunk.peer not in by_peer:
                by_peer[trunk.peer] = Group(trunk.peer, [])
                self.groups.append(by_peer[trunk.peer])
            by_peer[trunk.peer].trunks.append(trunk)
        for group in by_peer.values():
            group.far_ports = [trunk.peer_port for trunk in group.trunks]
            group.cable_led_down = [0] * len(group.trunks)
            group.cable_led_up = [0] * len(group.trunks)
        return list(by_peer.values())

    def _index(self) -> list[int]:
        """All switches by index; sorts the groups that the search comes by, and sets `place` of all."""
        first = next(at for at, ends in enumerate(self.hcas) if ends)
        index: dict[int, Index] = {first: (self.leaf_rank, *[0] * self.leaf_rank)}
        taken = set(index.values())
        todo = deque([first])
        while todo:
            at = todo.popleft()
            down = self.down[at] if self.rank[at] < self.leaf_rank else []
            for groups, step, digit in ((down, 1, index[at][0] + 1), (self.up[at], -1, index[at][0])):
                for group in groups:
                    if group.peer not in index:
                        index[group.peer] = _free_index(index[at], step, digit, taken)
                        taken.add(index[group.peer])
                        todo.append(group.peer)
                groups.sort(key=lambda group: index[group.peer])
        places = {at: place for place, at in enumerate(sorted(index, key=index.__getitem__))}
        for group in self.groups:
            group.place = places.get(group.peer, len(places))
        return sorted(range(len(self.rank)), key=lambda at: places.get(at, len(places)))

    def _leaves(self, by_index: list[int]) -> list[int]:
        row = [at for at in by_index if self.rank[at] == self.leaf_rank]
        real = [place for place, at in enumerate(row) if self.hcas[at]]
        if len(real) < 2:
            raise NotAFatTree(
                "Failed to find leaf switches - topology is not fat-tree", "Fabric topology is not a fat-tree"
            )
        return row[real[0] : real[-1] + 1]

    def _validate(self) -> None:
        reference: dict[int, int] = {}
        for at, rank in enumerate(self.rank.tolist()):
            if rank < 0:
                continue
            model = reference.setdefault(rank, at)
            self._compare("AB09", "Different number of upward port groups", "groups",
                          model, len(self.up[model]), at, len(self.up[at]))  # fmt: skip
            if rank != self.leaf_rank:
                self._compare("AB0A", "Different number of downward port groups", "port groups",
                              model, len(self.down[model]), at, len(self.down[at]))  # fmt: skip
            for group in self.up[at]:
                self._compare("AB0B", "Different number of ports in an upward port group", "ports",
                              model, len(self.up[model][0].trunks), at, len(group.trunks))  # fmt: skip
            if rank != self.leaf_rank and self.down[at]:
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
    for value in range(_NOT_INDEXED):
        index = (parent[0] + step, *parent[1:digit], value, *parent[digit + 1 :])
        if index not in taken:
            return index
    raise NotAFatTree("Fabric topology is not a fat-tree")
