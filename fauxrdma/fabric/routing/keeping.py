"""After links have failed: which entries of the tables in force went over them, and new ones for these alone.

An engine that balances a whole fabric at once would answer every failure with other routes everywhere. Instead, what
does not go over a dead link stays, and what does takes the fresh entry. That cannot make a loop: a switch with a fresh
entry sends to one with a fresh entry, and so on along the fresh way, or to one whose old way is whole.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fauxrdma.fabric.routing.dependencies import find_circle, used_by_tables
from fauxrdma.fabric.routing.routes import Routes
from fauxrdma.fabric.routing.switch_graph import SwitchGraph

__all__ = ["crossing", "keep_whole_ways"]

Ports = npt.NDArray[np.int16]


def crossing(before: SwitchGraph, ports: Ports, now: SwitchGraph) -> npt.NDArray[np.bool_]:
    """`[switch number, LID]`: whether the way there by the tables `ports`, made for the graph `before`, uses a cable
    that the graph `now` has no more. Both graphs are of the same topology."""
    rows = np.arange(len(before.switches))[:, None]
    out = np.where(ports > 0, ports, 0).astype(np.intp)
    peers = np.where(ports > 0, before.peers[rows, out], -1)
    crosses = (peers >= 0) & (now.peers[rows, out] < 0)
    reached = {end.lid for end in now.endpoints}
    lost = [end.lid for end in before.endpoints if end.lid not in reached]
    crosses[:, lost] = ports[:, lost] >= 0
    following = np.where(peers >= 0, peers, 0)
    columns = np.arange(ports.shape[1])[None, :]
    while True:
        further = crosses | (crosses[following, columns] & (peers >= 0))
        if (further == crosses).all():
            return crosses
        crosses = further


def keep_whole_ways(graph: SwitchGraph, fresh: Ports, previous: Routes | None, *, lanes_free_it: bool = False) -> Ports:
    """Tables for `graph`: those of `previous` (if any) where the way is whole, else those of `fresh`, an engine's for
    `graph`. All fresh ones if only the mixture has a credit loop, unless virtual lanes will free it of deadlock."""
    if previous is None:
        return fresh
    mixed: Ports = np.where(crossing(previous.graph, previous.ports, graph), fresh, previous.ports).astype(np.int16)
    if not lanes_free_it and _has_loop(graph, mixed) and not _has_loop(graph, fresh):
        return fresh
    return mixed


def _has_loop(graph: SwitchGraph, ports: Ports) -> bool:
    return bool(find_circle(graph, used_by_tables(graph, ports)))
