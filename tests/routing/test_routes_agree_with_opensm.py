"""Our forwarding tables beside those of real OpenSM: see real_opensm.py. LIDs are the same on both sides."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from real_opensm import OpenSm, missing, run_opensm
from routing_fabrics import FABRICS

from fauxrdma.fabric.routing import Routes, SwitchGraph, compute_routes
from fauxrdma.fabric.routing.switch_graph import UNREACHED

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"OpenSM is the yardstick: {missing()}")


def entries(graph: SwitchGraph, routes: Routes) -> dict[str, dict[str, int]]:
    return {
        switch: {graph.nodes[lid - 1].name: port for lid, port in table.items()}
        for switch, table in routes.tables.items()
    }


def both(name: str, engine: str, folder: Path) -> tuple[SwitchGraph, Routes, OpenSm]:
    graph = SwitchGraph.of(FABRICS[name])
    return graph, compute_routes(graph, engine), run_opensm(FABRICS[name], engine, folder)


def hca_paths(graph: SwitchGraph, tables: dict[str, dict[str, int]]) -> dict[tuple[str, str], list[tuple[str, int]]]:
    """(switch, port) after (switch, port) from every switch with an HCA to every HCA of its island."""
    peer = {(graph.switches[at], trunk.port): graph.switches[trunk.peer]
            for at, trunks in enumerate(graph.trunks) for trunk in trunks}  # fmt: skip
    paths = {}
    for start in {graph.switches[end.switch] for end in graph.endpoints}:
        for end in graph.endpoints:
            if graph.hops[graph.number[start], end.switch] == UNREACHED:
                continue
            path = []
            at: str | None = start
            while at is not None and len(path) <= len(tables):
                path.append((at, tables[at].get(end.name, -1)))
                at = peer.get(path[-1])
            assert path[-1] == (graph.switches[end.switch], end.port)
            paths[start, end.name] = path
    return paths


def load(graph: SwitchGraph, paths: dict[tuple[str, str], list[tuple[str, int]]]) -> list[int]:
    """HCA to HCA paths over each cable between switches that has any, in one direction."""
    sources = Counter(graph.switches[end.switch] for end in graph.endpoints)
    over: Counter[tuple[str, int]] = Counter()
    for (start, _), path in paths.items():
        for hop in path[:-1]:
            over[hop] += sources[start]
    return sorted(over.values())


def agree_on_fall_back(routes: Routes, opensm: OpenSm) -> None:
    assert routes.engine == opensm.used
    log = "\n".join(opensm.log)
    for message in routes.messages:
        assert re.sub(r": leaf1, LID.*", "", message) in log  # we name switches, OpenSM their GUIDs


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
