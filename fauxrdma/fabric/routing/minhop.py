"""minhop: shortest paths, spread by the number of destinations on each port (OpenSM's default, osm_ucast_mgr.c).

For every destination a switch considers the ports that start a shortest path and takes the one to which it has assigned
the fewest HCA destinations so far, the lowest port number on a tie. Routes to switches are set the same way but not
counted. Destinations are processed in LID order.
"""

from __future__ import annotations

import numpy as np

from fauxrdma.fabric.routing.routes import NO_PORT, PortArray, Routes
from fauxrdma.fabric.routing.switch_graph import UNREACHED, SwitchGraph

__all__ = ["minhop"]

_NEVER = np.iinfo(np.int32).max


def minhop(graph: SwitchGraph, previous: Routes | None = None) -> PortArray:
    """Forwarding tables: `out[switch number, LID]` is the output port, 0 for the switch itself, NO_PORT if none.

    A port that `previous` used stays in use while it starts a shortest path, as in OpenSM (`osm_switch_recommend_path`
    with existing tables).
    """
    count = len(graph.switches)
    everyone = np.arange(count)
    out: PortArray = np.full((count, len(graph.nodes) + 1), NO_PORT, dtype=np.int16)
    load = np.zeros((count, graph.width), dtype=np.int32)
    destinations = [(end.lid, end.switch, end.port) for end in graph.endpoints]
    last_hca = len(graph.nodes) - count
    destinations += [(lid, at, 0) for at, lid in enumerate(graph.switch_lids)]
    shortest: dict[int, np.ndarray[tuple[int, int], np.dtype[np.bool_]]] = {}
    for lid, target, direct in destinations:
        usable = shortest.get(target)
        if usable is None:
            usable = shortest[target] = _shortest_ports(graph, target)
        port = np.where(usable, load, _NEVER).argmin(axis=1)
        if previous is not None:
            before = previous.ports[:, lid].astype(np.intp)
            port = np.where((before > 0) & usable[everyone, before], before, port)
        found = usable[everyone, port]
        if lid <= last_hca:
            load[everyone[found], port[found]] += 1
        out[found, lid] = port[found]
        out[target, lid] = direct
    return out


def _shortest_ports(graph: SwitchGraph, target: int) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    """`[switch, port]`: whether the port starts a shortest path to switch `target`."""
    hops = graph.hops[:, target]
    reached = (hops > 0) & (hops < UNREACHED)
    mask = (graph.peers >= 0) & (hops[graph.peers] == (hops - 1)[:, None]) & reached[:, None]
    return np.asarray(mask)
