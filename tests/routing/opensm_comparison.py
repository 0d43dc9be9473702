"""What to compare of our routes and OpenSM's."""

from __future__ import annotations

import re
from collections import Counter

from real_opensm import OpenSm

from fauxrdma.fabric.routing import Endpoint, Routes, SwitchGraph
from fauxrdma.fabric.routing.switch_graph import UNREACHED


def entries(graph: SwitchGraph, routes: Routes) -> dict[str, dict[str, int]]:
    return {
        switch: {graph.nodes[lid - 1].name: port for lid, port in table.items()}
        for switch, table in routes.tables.items()
    }


def hca_paths(
    graph: SwitchGraph, tables: dict[str, dict[str, int]], targets: list[Endpoint] | None = None
) -> dict[tuple[str, str], list[tuple[str, int]]]:
    """(switch, port) after (switch, port) from every switch with an HCA to every HCA of its island, or to `targets`."""
    peer = {(graph.switches[at], trunk.port): graph.switches[trunk.peer]
            for at, trunks in enumerate(graph.trunks) for trunk in trunks}  # fmt: skip
    paths = {}
    for start in {graph.switches[end.switch] for end in graph.endpoints}:
        for end in graph.endpoints if targets is None else targets:
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
        assert re.sub(r"(on switches:|: CN port).*", r"\1", message) in log  # we name nodes, OpenSM their GUIDs
