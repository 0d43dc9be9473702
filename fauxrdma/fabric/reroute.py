"""New forwarding tables after links have died: what went over them is led around them, everything else stays.

For each destination the entries of all switches form a tree towards it. The switches *affected* are those whose way
along that tree crosses a dead link. Only their entries may change, and each keeps its own if that still begins a
shortest path (its way changes further on). Others take the port with the fewest HCA destinations, the lowest-numbered
one on a tie, as minhop does. Where no way is left the entry goes.

Every hop of an affected switch brings the destination nearer, and one that is not affected keeps its way, so no loop
can arise. OpenSM itself computes all tables anew in every heavy sweep (osm_ucast_mgr.c), which moves routes that have
nothing to do with the failure; its unicast cache (option -A, osm_ucast_cache.c) avoids that for leaves and hosts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, MutableMapping, Set

from fauxrdma.topology.graph import Link, NodeKind, Topology

__all__ = ["Tables", "affected_entries", "changed_entries", "lead_around"]

Tables = Mapping[str, MutableMapping[int, int]]
"""Switch name to destination LID to output port (0: the switch itself)."""


def lead_around(tables: Tables, topology: Topology, dead: Set[int]) -> Tables:
    """Tables without the links `dead` (ids, both directions), which differ from `tables` in as little as can be."""
    ports = {(link.src, link.src_port): link for link in topology.links}
    trunks = _live_trunks(topology, dead)
    lids = sorted({lid for table in tables.values() for lid in table})
    counts = _destinations(tables, ports, topology)
    new = {name: dict(table) for name, table in tables.items()}
    for lid in lids:
        affected = affected_entries(tables, ports, dead, lid)
        if not affected:
            continue
        target = _deliverer(tables, ports, topology, dead, lid)
        hops = {} if target is None else _hops_to(target, trunks)
        for name in sorted(affected, key=lambda name: (hops.get(name, 0), name)):
            old = tables[name][lid]
            if name not in hops:
                del new[name][lid]
                continue
            nearer = [port for port, peer in trunks[name] if hops.get(peer) == hops[name] - 1]
            if old in nearer:
                continue
            port = min(nearer, key=lambda port: (counts.get((name, port), 0), port))
            new[name][lid] = port
            counts[name, port] = counts.get((name, port), 0) + 1
    return new


def affected_entries(tables: Tables, ports: dict[tuple[str, int], Link], dead: Set[int], lid: int) -> set[str]:
    """The switches whose way to `lid` crosses a link of `dead`. `ports` maps (switch, port) to the link that leaves."""
    crosses: dict[str, bool] = {}
    for start in tables:
        trail = []
        at = start
        while at not in crosses:
            trail.append(at)
            crosses[at] = False  # also ends the walk in tables that have a loop
            port = tables[at].get(lid) if at in tables else None
            if not port:  # arrived, or no way
                break
            link = ports[at, port]
            if link.id in dead:
                crosses[at] = True
                break
            at = link.dst
        for name in trail:
            crosses[name] = crosses[at]
    return {name for name, crossing in crosses.items() if crossing}


def changed_entries(old: Tables, new: Tables) -> set[tuple[str, int]]:
    """(switch, LID) of every entry that is not the same in both, those that came or went included."""
    return {
        (name, lid)
        for name in old.keys() | new.keys()
        for lid in old.get(name, {}).keys() | new.get(name, {}).keys()
        if old.get(name, {}).get(lid) != new.get(name, {}).get(lid)
    }


def _deliverer(
    tables: Tables, ports: dict[tuple[str, int], Link], topology: Topology, dead: Set[int], lid: int
) -> str | None:
    """The switch that has `lid`, or the HCA with `lid` on a live cable; None when that cable is dead."""
    for name, table in tables.items():
        port = table.get(lid)
        if port == 0:
            return name
        if port is not None:
            link = ports[name, port]
            if topology.nodes[link.dst].kind is not NodeKind.SWITCH:
                return None if link.id in dead else name
    return None


def _destinations(tables: Tables, ports: dict[tuple[str, int], Link], topology: Topology) -> dict[tuple[str, int], int]:
    """How many HCA destinations each trunk port of each switch has been assigned."""
    hca_lids = {
        lid
        for name, table in tables.items()
        for lid, port in table.items()
        if port and topology.nodes[ports[name, port].dst].kind is not NodeKind.SWITCH
    }
    counts: dict[tuple[str, int], int] = {}
    for name, table in tables.items():
        for lid, port in table.items():
            if lid in hca_lids:
                counts[name, port] = counts.get((name, port), 0) + 1
    return counts


def _live_trunks(topology: Topology, dead: Set[int]) -> dict[str, list[tuple[int, str]]]:
    """By switch: (port, switch on the other end) of every live cable to another switch, by port."""
    return {
        switch.name: sorted(
            (link.src_port, link.dst)
            for link in topology.links_from(switch.name)
            if link.id not in dead and topology.nodes[link.dst].kind is NodeKind.SWITCH
        )
        for switch in topology.switches()
    }


def _hops_to(target: str, trunks: dict[str, list[tuple[int, str]]]) -> dict[str, int]:
    hops = {target: 0}
    todo = deque([target])
    while todo:
        at = todo.popleft()
        for _, peer in trunks[at]:
            if peer not in hops:
                hops[peer] = hops[at] + 1
                todo.append(peer)
    return hops
