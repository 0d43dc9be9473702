"""Multicast trees beside those of real OpenSM, whose group HCAs have joined by the subnet administrator."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from opensm_multicast import run_multicast
from random_trees import random_tree
from real_opensm import missing, root_file
from routing_fabrics import FABRICS, ring

from fauxrdma.fabric.multicast_tree import MulticastTree
from fauxrdma.fabric.subnet import SubnetManager

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"OpenSM is the yardstick: {missing()}")

TREES = {
    "three-tier": FABRICS["three-tier"],
    "ring8": FABRICS["ring8"],
    "seed-rail8-5": FABRICS["seed-rail8-5"],
    "beside-spines": random_tree(1, "beside-spines"),
    "cable-missing": random_tree(2, "cable-missing"),
    "deeper": random_tree(3, "deeper"),
}


@pytest.mark.parametrize(("name", "engine"), [*((name, "minhop") for name in TREES), ("three-tier", "ftree")])
def test_every_switch_sends_the_group_out_of_the_same_ports(name: str, engine: str, tmp_path: Path) -> None:
    manager = SubnetManager(TREES[name], engine=engine)
    lids = [end.lid for end in manager.routes.graph.endpoints]
    members = sorted(random.Random(name).sample(lids, 5))
    assert MulticastTree(manager, members).masks == run_multicast(TREES[name], engine, members, tmp_path)


@pytest.mark.parametrize(
    ("switches", "root", "on"),
    [(8, 1, (4, 5, 6)), (8, 1, (4, 6)), (8, 1, (4, 5, 6, 7)), (5, 2, (1, 4, 5))],
)
def test_a_tree_goes_where_updn_forbids(switches: int, root: int, on: tuple[int, ...], tmp_path: Path) -> None:
    """Across the bottom of a ring, which updn's unicast routes avoid by the root: OpenSM grows its trees over shortest
    ways whatever the engine, and so do we."""
    topology = ring(switches)
    manager = SubnetManager(topology, engine=f"updn:roots=leaf{root}")
    members = [manager.lid(f"n{leaf - 1}.hca1") for leaf in on]
    tree = MulticastTree(manager, members)
    theirs = run_multicast(
        topology, "updn", members, tmp_path, "-a", root_file(manager.routes.graph, [f"leaf{root}"], tmp_path)
    )
    assert tree.masks == theirs
    hops = manager.routes.graph.hops
    assert any(
        manager.path(slid, dlid).switches > hops[here - 1, there - 1] + 1
        for slid, here in zip(members, on, strict=True)
        for dlid, there in zip(members, on, strict=True)
        if slid != dlid
    )


@pytest.mark.parametrize("engine", ["updn", "ftree"])
@pytest.mark.parametrize("kind", ["beside-leaves", "beside-spines", "cable-missing", "spine-missing", "deeper"])
def test_trees_of_engines_whose_roots_are_given(kind: str, engine: str, tmp_path: Path) -> None:
    """All switches at the top but one, so that unicast ways avoid that one, and trees need not."""
    topology = random_tree(6, kind)
    top = max(node.tier or 0 for node in topology.switches())
    roots = [node.name for node in topology.switches() if node.tier == top]
    roots = roots[1:] or roots
    manager = SubnetManager(topology, engine=f"{engine}:roots={','.join(roots)}")
    lids = [end.lid for end in manager.routes.graph.endpoints]
    members = sorted(random.Random(kind).sample(lids, min(4, len(lids))))
    roots_given = root_file(manager.routes.graph, roots, tmp_path)
    assert MulticastTree(manager, members).masks == run_multicast(
        topology, engine, members, tmp_path, "-a", roots_given
    )
