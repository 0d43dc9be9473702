"""Routing engines: forwarding tables from a topology, as a subnet manager computes them.

`compute_routes(SwitchGraph.of(topology), engine, seed)` is the whole of it. Pure: no clock, and the same input gives
the same tables.
"""

from fauxrdma.fabric.routing.engines import ENGINES, compute_routes
from fauxrdma.fabric.routing.ethernet import FlowKey, Load
from fauxrdma.fabric.routing.routes import Routes, Table
from fauxrdma.fabric.routing.switch_graph import Endpoint, SwitchGraph, Trunk

__all__ = ["ENGINES", "Endpoint", "FlowKey", "Load", "Routes", "SwitchGraph", "Table", "Trunk", "compute_routes"]
