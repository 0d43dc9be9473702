"""Choosing an engine by name, with its fall-backs."""

from __future__ import annotations

from fauxrdma.errors import ConfigError
from fauxrdma.fabric.routing.minhop import minhop
from fauxrdma.fabric.routing.routes import Routes
from fauxrdma.fabric.routing.switch_graph import SwitchGraph

__all__ = ["ENGINES", "compute_routes"]

ENGINES = ("minhop",)
"""The engines by name."""


def compute_routes(graph: SwitchGraph, engine: str = "minhop", seed: int = 0, previous: Routes | None = None) -> Routes:
    """The routes of a fabric. `previous`: the routes before a change; entries that are still as good stay as they are.

    Raises ConfigError for an engine that does not exist.
    """
    if engine not in ENGINES:
        raise ConfigError(f"unknown routing engine {engine!r}: it is one of {', '.join(ENGINES)}")
    return Routes(graph, "minhop", minhop(graph, previous), asked=engine)
