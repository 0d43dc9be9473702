"""ftree beside real OpenSM on trees drawn by lot (random_trees.py), with and without roots given."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from opensm_comparison import agree_on_fall_back, entries, hca_paths
from random_trees import KINDS, random_tree
from real_opensm import missing, root_file, run_opensm

from fauxrdma.fabric.routing import SwitchGraph, compute_routes

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"OpenSM is the yardstick: {missing()}")

SEEDS = range(int(os.environ.get("FAUXRDMA_TREES", "3")))
"""More take longer: each is a run of OpenSM."""


@pytest.mark.parametrize(
    ("kind", "engine"),
    [
        (kind, engine)
        for kind in KINDS
        for engine in ("ftree", "dfsssp", "updn", "minhop")
        if (kind, engine) != ("beside-leaves", "ftree")
    ],
)
def test_every_entry_is_the_same(kind: str, engine: str, tmp_path: Path) -> None:
    for seed in SEEDS if engine == "ftree" else SEEDS[:1]:
        topology = random_tree(seed, kind)
        graph = SwitchGraph.of(topology)
        routes = compute_routes(graph, engine)
        folder = tmp_path / str(seed)
        folder.mkdir()
        opensm = run_opensm(topology, engine, folder)
        agree_on_fall_back(routes, opensm)
        assert entries(graph, routes) == opensm.tables, topology.name


@pytest.mark.parametrize("seed", SEEDS)
def test_cables_between_leaves(seed: int, tmp_path: Path) -> None:
    """OpenSM forgets HCAs there, others in each run (ftree.py says why), and the order of the rest is by chance: the
    engine and the fall-back are the same, ways to what it does not forget as long, and ours reach all."""
    topology = random_tree(seed, "beside-leaves")
    graph = SwitchGraph.of(topology)
    routes = compute_routes(graph, "ftree")
    opensm = run_opensm(topology, "ftree", tmp_path)
    agree_on_fall_back(routes, opensm)
    mine = entries(graph, routes)
    names = {node.name for node in graph.nodes}
    known = {switch: set(table) for switch, table in opensm.tables.items()}
    forgotten = {name for name in names if not any(name in table for table in known.values())}
    assert not {name for name in forgotten if "hca" not in name}
    ours = hca_paths(graph, mine)
    theirs = hca_paths(graph, opensm.tables, [end for end in graph.endpoints if end.name not in forgotten])
    assert len(ours) == len({end.switch for end in graph.endpoints}) * len(graph.endpoints)
    assert {pair: len(path) for pair, path in theirs.items()} == {pair: len(ours[pair]) for pair in theirs}


@pytest.mark.parametrize("engine", ["updn", "ftree"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "beside-leaves"])
def test_roots_that_are_given(kind: str, engine: str, tmp_path: Path) -> None:
    """The switches at the top, all or but one, as `opensm -a FILE` has them: a tree need not be pure then."""
    for seed in SEEDS[:2]:
        topology = random_tree(seed, kind)
        graph = SwitchGraph.of(topology)
        top = max(topology.nodes[name].tier or 0 for name in graph.switches)
        roots = [name for name in graph.switches if topology.nodes[name].tier == top]
        for chosen in (roots, roots[1:] or roots):
            routes = compute_routes(graph, f"{engine}:roots={','.join(chosen)}")
            folder = tmp_path / f"{seed}-{len(chosen)}"
            folder.mkdir(exist_ok=True)
            opensm = run_opensm(topology, engine, folder, "-a", root_file(graph, chosen, folder))
            agree_on_fall_back(routes, opensm)
            assert entries(graph, routes) == opensm.tables, (topology.name, chosen)
