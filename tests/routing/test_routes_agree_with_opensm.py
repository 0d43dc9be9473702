"""Our forwarding tables beside those of real OpenSM: see real_opensm.py. LIDs are the same on both sides."""

from __future__ import annotations

from pathlib import Path

import pytest
from opensm_comparison import agree_on_fall_back, entries, hca_paths, load
from real_opensm import OpenSm, missing, run_opensm
from routing_fabrics import FABRICS

from fauxrdma.fabric.routing import Routes, SwitchGraph, compute_routes
from fauxrdma.fabric.routing.sssp import EXACT_ENTRIES, sssp

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
def test_dfsssp_is_the_same_and_needs_no_more_lanes(name: str, tmp_path: Path) -> None:
    graph, routes, opensm = both(name, "dfsssp", tmp_path)
    agree_on_fall_back(routes, opensm)
    assert entries(graph, routes) == opensm.tables
    needed = max(int(line.split()[-1]) for line in opensm.log if "Virtual Lanes needed" in line)
    assert routes.lanes is not None
    assert routes.lanes.needed <= needed


@pytest.mark.parametrize("name", FABRICS)
def test_dfsssp_in_arrays_is_as_short_and_as_balanced(name: str) -> None:
    """What large fabrics get, beside what OpenSM has: they differ where everything is equal to both, and neither choice
    is the better one for what comes later. So the fullest cable may have a few paths more here or there."""
    for graph in SwitchGraph.of(FABRICS[name]).islands():
        in_arrays, exact = (entries(graph, Routes(graph, "sssp", sssp(graph, most))) for most in (0, EXACT_ENTRIES))
        ours, theirs = hca_paths(graph, in_arrays), hca_paths(graph, exact)
        assert {pair: len(path) for pair, path in ours.items()} == {pair: len(path) for pair, path in theirs.items()}
        assert max(load(graph, ours), default=0) <= 1.15 * max(load(graph, theirs), default=0) + 1
