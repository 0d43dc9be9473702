"""minhop: shortest paths, spread by the number of destinations on each port. OpenSM's default (osm_ucast_mgr.c).

For every destination a switch considers the ports that start a shortest path and takes the one to which it has assigned
the fewest HCA destinations so far, the lowest port number on a tie. Routes to switches are set the same way but not
counted. The HCAs of the switch with the most of them are first, each switch's in the order of its ports.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from fauxrdma.fabric.routing.routes import Routes
from fauxrdma.fabric.routing.switch_graph import NO_PORT, Endpoint, PortArray, SwitchGraph

__all__ = ["BoolArray", "assign_by_load", "by_switch_load", "minhop"]

BoolArray = npt.NDArray[np.bool_]
_NEVER = np.iinfo(np.int32).max


def minhop(graph: SwitchGraph, previous: Routes | None = None) -> PortArray:
    """Forwarding tables: `out[switch number, LID]` is the output port, 0 for the switch itself, NO_PORT if none."""
    return assign_by_load(graph, graph.shortest_ports, previous)


def assign_by_load(
    graph: SwitchGraph, usable_ports: Callable[[int], BoolArray], previous: Routes | None = None
) -> PortArray:
    """Tables in which each entry is the least loaded of the usable ports. `usable_ports(target)[switch, port]` says
    whether the port may be used on the way to switch `target`.

    A port that `previous` used stays in use while it is usable, as in a sweep of OpenSM that keeps existing tables
    (`osm_switch_recommend_path`).
    """
    count = len(graph.switches)
    everyone = np.arange(count)
    out: PortArray = np.full((count, len(graph.nodes) + 1), NO_PORT, dtype=np.int16, order="F")
    load = np.zeros((count, graph.width), dtype=np.int32)
    hcas = [(end.lid, end.switch, end.port) for end in by_switch_load(graph)]
    switches = [(lid, at, 0) for at, lid in enumerate(graph.switch_lids)]
    masks: dict[int, BoolArray] = {}
    for lid, target, direct in [*hcas, *switches]:
        usable = masks.get(target)
        if usable is None:
            usable = masks[target] = usable_ports(target)
        port = np.where(usable, load, _NEVER).argmin(axis=1)
        if previous is not None:
            before = previous.ports[:, lid].astype(np.intp)
            port = np.where((before > 0) & usable[everyone, before], before, port)
        found = usable[everyone, port]
        if direct:
            load[everyone[found], port[found]] += 1
        out[found, lid] = port[found]
        out[target, lid] = direct
    return out


def by_switch_load(graph: SwitchGraph) -> list[Endpoint]:
    """The HCAs in the order in which OpenSM routes to them: those of the switch with the most of them first."""
    on_switch: list[list[Endpoint]] = [[] for _ in graph.switches]
    for end in sorted(graph.endpoints, key=lambda end: end.port):
        on_switch[end.switch].append(end)
    return [end for ends in sorted(on_switch, key=len, reverse=True) for end in ends]
