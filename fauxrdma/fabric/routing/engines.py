"""Choosing an engine by name, with its fall-backs."""

from __future__ import annotations

from fauxrdma.errors import ConfigError
from fauxrdma.fabric.routing.fat_tree import NotAFatTree
from fauxrdma.fabric.routing.ftree import ftree
from fauxrdma.fabric.routing.minhop import minhop
from fauxrdma.fabric.routing.routes import Routes
from fauxrdma.fabric.routing.switch_graph import SwitchGraph
from fauxrdma.fabric.routing.updn import NO_ROOTS, updn

__all__ = ["ENGINES", "compute_routes"]

ENGINES = ("minhop", "updn", "ftree")
"""The engines by name."""


def compute_routes(graph: SwitchGraph, engine: str = "minhop", seed: int = 0, previous: Routes | None = None) -> Routes:
    """The routes of a fabric. `previous`: the routes before a change; entries that are still as good stay as they are.

    Raises ConfigError for an engine that does not exist.
    """
    if engine not in ENGINES:
        raise ConfigError(f"unknown routing engine {engine!r}: it is one of {', '.join(ENGINES)}")
    messages: list[str] = []
    if engine == "updn":
        ports = updn(graph, previous)
        if ports is not None:
            return Routes(graph, "updn", ports)
        messages += [NO_ROOTS, "ucast_mgr_route: updn: cannot build lid matrices"]
    if engine == "ftree":
        try:
            return Routes(graph, "ftree", ftree(graph))
        except NotAFatTree as reason:
            messages += [*reason.lines, "ucast_mgr_route: ftree: cannot build lid matrices"]
    return Routes(graph, "minhop", minhop(graph, previous), asked=engine, messages=tuple(messages))
