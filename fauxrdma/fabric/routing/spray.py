"""Packet spray: the switches deal the packets of a flow out over all their equally short ways, one after another.

Every switch turns through its ports on its own, from one that the flow's hash gives, and moves on by one with each
packet of the flow that it sees. What a flow's packets do together repeats after a while: that is its *cycle*, the ways
of one packet after the other. A switch with n ports sends exactly every n-th packet it gets out of each, so that a
cycle loads all of them alike.
"""

from __future__ import annotations

from fauxrdma.fabric.routing.ethernet import FlowKey
from fauxrdma.fabric.routing.routes import Routes

__all__ = ["MAX_CYCLE", "spray_cycle"]

MAX_CYCLE = 4096
"""Packets. Longer cycles, which only numbers of parallel cables without common factors make, begin again here."""

Hops = tuple[tuple[int, int], ...]
"""A way as (switch number, output port), the last port the one to the HCA."""


def spray_cycle(routes: Routes, switch: int, flow: FlowKey) -> list[Hops]:
    """The ways that the packets of `flow` take in turn from `switch` on, the first packet's first; each as far as there
    are ports. Never empty."""
    turns: dict[int, int] = {}
    ports: dict[int, tuple[int, ...]] = {}
    cycle: list[Hops] = []
    while len(cycle) < MAX_CYCLE:
        cycle.append(_deal(routes, switch, flow, turns, ports))
        if all(turn % len(ports[at]) == 0 for at, turn in turns.items()):
            break
    return cycle


def _deal(routes: Routes, switch: int, flow: FlowKey, turns: dict[int, int], ports: dict[int, tuple[int, ...]]) -> Hops:
    """The way of the next packet; `turns` counts the packets that each switch has seen."""
    at = switch
    way: list[tuple[int, int]] = []
    while at >= 0:
        if at not in ports:
            found = routes.choices(at, flow.dlid)
            first = flow.digest(routes.seed, at) % len(found) if found else 0
            ports[at] = (*found[first:], *found[:first])
        if not ports[at]:
            break
        turn = turns.get(at, 0)
        turns[at] = turn + 1
        port = ports[at][turn % len(ports[at])]
        way.append((at, port))
        at = int(routes.graph.peers[at, port])
    return tuple(way)
