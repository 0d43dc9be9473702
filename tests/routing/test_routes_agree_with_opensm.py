"""Our forwarding tables beside those of real OpenSM: see real_opensm.py. LIDs are the same on both sides."""

from __future__ import annotations

from pathlib import Path

import pytest
from opensm_comparison import agree_on_fall_back, entries, hca_paths, load
from real_opensm import OpenSm, missing, run_opensm
from routing_fabrics import FABRICS

from fauxrdma.fabric.routing import Routes, SwitchGraph, compute_routes

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"OpenSM is the yardstick: {missing()}")


def both(name: str, engine: str, folder: Path) -> tuple[SwitchGraph, Routes, OpenSm]:
    graph = SwitchGraph.of(FABRICS[name])
    return graph, compute_routes(graph, engine), run_opensm(FABRICS[name], engine, folder)


@pytest.mark.parametrize("engine", ["minhop", "updn", "ftree"])
@pytest.mark.parametrize("name", FABRICS)
def test_every_entry_is_the_same(name: str, engine: str, tmp_path: Path) -> None:
    graph, routes, opensm = both(name, engine, tmp_path)
    agree_on_fall_back(routes, opensm)
    assert entries(graph, routes) == opensm.tables


@pytest.mark.parametrize("name", FABRICS)
def test_dfsssp_is_as_short_as_balanced_and_needs_no_more_lanes(name: str, tmp_path: Path) -> None:
    graph, routes, opensm = both(name, "dfsssp", tmp_path)
    agree_on_fall_back(routes, opensm)
    mine = entries(graph, routes)
    assert {name: table.keys() for name, table in mine.items()} == {
        name: table.keys() for name, table in opensm.tables.items()
    }
    ours, theirs = hca_paths(graph, mine), hca_paths(graph, opensm.tables)
    assert {pair: len(path) for pair, path in ours.items()} == {pair: len(path) for pair, path in theirs.items()}
    # Where everything is equal OpenSM takes what its heap has on top, and neither choice is the better one for what
    # comes later: the fullest cable may have a few paths more here or there.
    assert max(load(graph, ours), default=0) <= 1.15 * max(load(graph, theirs), default=0) + 1
    needed = max(int(line.split()[-1]) for line in opensm.log if "Virtual Lanes needed" in line)
    assert routes.lanes is not None
    assert routes.lanes.needed <= needed
