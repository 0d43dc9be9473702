"""Choosing an engine by name, with its fall-backs."""

from __future__ import annotations

import numpy as np

from fauxrdma.fabric.routing.dfsssp import NotEnoughLanes, assign_lanes
from fauxrdma.fabric.routing.ethernet import ETHERNET_ENGINES
from fauxrdma.fabric.routing.fat_tree import NotAFatTree
from fauxrdma.fabric.routing.ftree import ftree
from fauxrdma.fabric.routing.keeping import keep_whole_ways
from fauxrdma.fabric.routing.lanes import DATA_LANES, IslandLanes
from fauxrdma.fabric.routing.minhop import minhop
from fauxrdma.fabric.routing.routes import Routes
from fauxrdma.fabric.routing.sssp import sssp
from fauxrdma.fabric.routing.switch_graph import NO_PORT, SwitchGraph
from fauxrdma.fabric.routing.updn import NO_ROOTS, updn
from fauxrdma.topology.routing_choice import ENGINE_NAMES, RoutingChoice, parse_routing

__all__ = ["ENGINES", "compute_routes"]

ENGINES = ENGINE_NAMES
"""The engines by name: OpenSM's, then those of Ethernet switches."""


def compute_routes(
    graph: SwitchGraph,
    engine: str = "minhop",
    seed: int = 0,
    previous: Routes | None = None,
    data_lanes: int = DATA_LANES,
) -> Routes:
    """The routes of a fabric; minhop's, with messages that say why, where the wanted engine cannot serve it.

    `engine`: as `parse_routing` reads it, which raises ConfigError; on an island without any of the roots the engine
    finds its own.
    `previous`: the routes before links failed; entries that are still as good stay as they are (of ftree and dfsssp:
    those whose way is whole). `data_lanes`: how many each port has, for dfsssp. Islands are routed one by one, as by
    subnet managers of their own.
    """
    choice = parse_routing(engine)
    choice.check_roots(graph.switches)
    if choice.engine in ETHERNET_ENGINES:
        return Routes(graph, choice.engine, minhop(graph, previous), seed=seed)
    islands = graph.islands()
    if len(islands) == 1:
        return _route(graph, choice, previous, data_lanes)
    before = previous.parts if previous is not None else (None,) * len(islands)
    parts = [_route(island, choice, old, data_lanes) for island, old in zip(islands, before, strict=True)]
    return _joined(graph, choice.engine, parts)


def _joined(graph: SwitchGraph, asked: str, parts: list[Routes]) -> Routes:
    """The routes of islands as those of the whole fabric."""
    ports = np.full((len(graph.switches), len(graph.nodes) + 1), NO_PORT, dtype=np.int16)
    for part in parts:
        ports[[graph.number[name] for name in part.graph.switches]] = part.ports
    engines = list(dict.fromkeys(part.engine for part in parts))
    messages = tuple(dict.fromkeys(message for part in parts for message in part.messages))
    lanes = IslandLanes([part.lanes for part in parts]) if any(part.lanes is not None for part in parts) else None
    return Routes(graph, " and ".join(engines), ports, asked=asked, messages=messages, lanes=lanes, parts=tuple(parts))


def _route(graph: SwitchGraph, choice: RoutingChoice, previous: Routes | None, data_lanes: int) -> Routes:
    """The routes of one island."""
    failed: tuple[str, ...] = ()
    engine = choice.engine
    roots = [graph.number[name] for name in choice.roots_among(graph.switches)] or None
    if engine == "updn":
        ports = updn(graph, previous, roots)
        if ports is not None:
            return Routes(graph, "updn", ports)
        failed = (NO_ROOTS, "ucast_mgr_route: updn: cannot build lid matrices")
    elif engine == "ftree":
        try:
            return Routes(graph, "ftree", keep_whole_ways(graph, ftree(graph, roots), previous))
        except NotAFatTree as reason:
            failed = (*reason.lines, "ucast_mgr_route: ftree: cannot build lid matrices")
    elif engine == "dfsssp":
        ports = keep_whole_ways(graph, sssp(graph), previous, lanes_free_it=True)
        try:
            return Routes(graph, "dfsssp", ports, lanes=assign_lanes(graph, ports, data_lanes))
        except NotEnoughLanes as reason:
            failed = (str(reason), "ucast_mgr_route: dfsssp: cannot build fwd tables")
    # After a fall-back, what another engine routed stays where it can.
    ports = keep_whole_ways(graph, minhop(graph, previous), previous)
    return Routes(graph, "minhop", ports, asked=engine, messages=failed)
