"""Our forwarding tables beside those of real OpenSM: see real_opensm.py. LIDs are the same on both sides."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_opensm import OpenSm, missing, run_opensm
from routing_fabrics import FABRICS

from fauxrdma.fabric.routing import Routes, SwitchGraph, compute_routes

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"OpenSM is the yardstick: {missing()}")


def entries(graph: SwitchGraph, routes: Routes) -> dict[str, dict[str, int]]:
    return {
        switch: {graph.nodes[lid - 1].name: port for lid, port in table.items()}
        for switch, table in routes.tables.items()
    }


def both(name: str, engine: str, folder: Path) -> tuple[SwitchGraph, Routes, OpenSm]:
    graph = SwitchGraph.of(FABRICS[name])
    return graph, compute_routes(graph, engine), run_opensm(FABRICS[name], engine, folder)


@pytest.mark.parametrize("engine", ["minhop", "updn"])
@pytest.mark.parametrize("name", FABRICS)
def test_every_entry_is_the_same(name: str, engine: str, tmp_path: Path) -> None:
    graph, routes, opensm = both(name, engine, tmp_path)
    assert routes.engine == opensm.used
    assert entries(graph, routes) == opensm.tables
    for message in routes.messages:
        assert message in opensm.log
