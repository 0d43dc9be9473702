"""How evenly routes are spread over a fabric's cables: one flow from every HCA to every other, by the engine in use.

Tables say which way a route goes. On Ethernet the engine chooses by flow: **ecmp** by the hash of each; **spray**
splits each flow evenly at every switch, so that cables carry parts of routes; **adaptive** gives each the least loaded
way, here one flow after the other by LID, none of which ends.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fauxrdma.fabric.routing import FlowKey
from fauxrdma.fabric.routing.ethernet import pick_port
from fauxrdma.fabric.routing.switch_graph import UNREACHED, SwitchGraph
from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.topology.graph import TIER_NAMES

__all__ = ["MAX_FLOWS", "Balance", "balance"]

MAX_FLOWS = 200_000
"""Of a fabric with more pairs of HCAs only this many are hashed, evenly picked."""

_Load = npt.NDArray[np.float64]
"""Routes by `[switch number, output port]`."""


@dataclass(frozen=True, slots=True)
class Balance:
    """How many routes between HCAs cross each cable: by kind of cable (``leaf->spine``), the number of directed cables
    and the least, mean and most routes over one; and how many routes cross how many switches. `counted` says what was
    counted as a route."""

    routes: int
    by_kind: dict[str, tuple[int, float, float, float]]
    by_switches: dict[int, int]
    counted: str


def balance(manager: SubnetManager, label: int = 0) -> Balance:
    """Count the routes between all HCAs; on Ethernet of flows with `label` (a queue pair number)."""
    engine = manager.routes.engine
    if engine == "spray":
        load, by_switches = _sprayed(manager.routes.graph)
        counted = "the packets of every flow are dealt evenly over all shortest ways: counts are in parts of routes"
    elif manager.routes.any_shortest:
        load, by_switches, counted = _by_flow(manager, label)
    else:
        load, by_switches = _by_tables(manager)
        counted = "what the forwarding tables say from every HCA to every other"
    crossing = {number: by_switches[number] for number in sorted(by_switches) if by_switches[number]}
    return Balance(sum(crossing.values()), _by_kind(manager, load), crossing, counted)


def _by_tables(manager: SubnetManager) -> tuple[_Load, Counter[int]]:
    """All routes at once, a hop at a time."""
    graph, ports = manager.routes.graph, manager.routes.ports
    lids = np.array([end.lid for end in graph.endpoints], dtype=np.intp)
    attached = _attached(graph)
    load = np.zeros((len(graph.switches), graph.width))
    starts = np.flatnonzero(attached)
    at: npt.NDArray[np.intp] = np.repeat(starts, len(lids))
    to = np.tile(lids, len(starts))
    own = np.repeat(np.array([end.switch for end in graph.endpoints])[None, :], len(starts), axis=0).ravel() == at
    weight = attached[at] - own  # an HCA sends nothing to itself
    by_switches: Counter[int] = Counter()
    for crossed in range(1, len(graph.switches) + 1):
        port = ports[at, to].astype(np.intp)
        on = port > 0
        at, to, weight, port = at[on], to[on], weight[on], port[on]
        np.add.at(load, (at, port), weight)
        peer = graph.peers[at, port]
        by_switches[crossed] += int(weight[peer < 0].sum())
        going = peer >= 0
        at, to, weight = peer[going], to[going], weight[going]
        if not at.size:
            break
    return load, by_switches


def _sprayed(graph: SwitchGraph) -> tuple[_Load, Counter[int]]:
    """Every switch passes what it has for another on in equal parts; those far away first."""
    attached = _attached(graph).astype(np.float64)
    hops = graph.hops
    reached = hops < UNREACHED
    held = np.where(reached, np.outer(attached, attached), 0.0)  # [at, to]: parts of routes
    by_switches: Counter[int] = Counter()
    for distance in range(int(hops[reached].max()) + 1):
        pairs = int(held[hops == distance].sum())
        by_switches[distance + 1] = pairs - int(attached.sum()) if distance == 0 else pairs
    load = np.zeros((len(graph.switches), graph.width))
    for distance in range(int(hops[reached].max()), 0, -1):
        for at, trunks in enumerate(graph.trunks):
            to = np.flatnonzero((hops[at] == distance) & (held[at] > 0))
            if not to.size:
                continue
            nearer = np.array([hops[trunk.peer, to] == distance - 1 for trunk in trunks])
            part = held[at, to] / nearer.sum(axis=0)
            for trunk, takes in zip(trunks, nearer, strict=True):
                moved = np.where(takes, part, 0.0)
                load[at, trunk.port] += moved.sum()
                held[trunk.peer, to] += moved
    return load, by_switches


def _by_flow(manager: SubnetManager, label: int) -> tuple[_Load, Counter[int], str]:
    """One flow after the other, each by what the switches choose for it."""
    routes, graph = manager.routes, manager.routes.graph
    load = np.zeros((len(graph.switches), graph.width))
    on_link: Counter[int] = Counter()
    ways: dict[tuple[int, int], list[tuple[int, int]]] = {}  # by switch and target switch: (port, link)
    by_switches: Counter[int] = Counter()
    ends = graph.endpoints
    step = _step(len(ends))
    for here, there in _pairs(len(ends), step):
        source, target = ends[here], ends[there]
        if graph.hops[source.switch, target.switch] == UNREACHED:
            continue
        flow = FlowKey(source.lid, target.lid, label)
        at = source.switch
        while at != target.switch:
            choice = ways.get((at, target.switch))
            if choice is None:
                links = {trunk.port: trunk.link for trunk in graph.trunks[at]}
                choice = [(port, links[port]) for port in routes.choices(at, target.lid)]
                ways[at, target.switch] = choice
            port = pick_port(routes.engine, choice, flow, routes.seed, at, on_link.__getitem__)
            load[at, port] += 1
            on_link[next(link for known, link in choice if known == port)] += 1
            at = int(graph.peers[at, port])
        by_switches[int(graph.hops[source.switch, target.switch]) + 1] += 1
    return load, by_switches, _explanation(routes.engine, label, step)


def _step(ends: int) -> int:
    """Every how many pairs one is counted: 1, or, where there are too many, a number that misses no HCA."""
    step = -(-ends * ends // MAX_FLOWS)
    while math.gcd(step, ends) > 1:
        step += 1
    return step


def _pairs(ends: int, step: int) -> Iterator[tuple[int, int]]:
    for place in range(0, ends * ends, step):
        here, there = divmod(place, ends)
        if here != there:
            yield here, there


def _explanation(engine: str, label: int, step: int) -> str:
    of = f"queue pair {label:#x} of every HCA to every other"
    if engine == "ecmp":
        text = f"the hash of each flow, {of}: other queue pairs go other ways"
    else:
        text = f"the least loaded way for one flow after the other, {of}, none of which ends"
    return text if step == 1 else f"{text}; of so many pairs only each {step}th is counted"


def _attached(graph: SwitchGraph) -> npt.NDArray[np.intp]:
    """HCAs by switch."""
    return np.bincount([end.switch for end in graph.endpoints], minlength=len(graph.switches))


def _by_kind(manager: SubnetManager, load: _Load) -> dict[str, tuple[int, float, float, float]]:
    graph, topology = manager.routes.graph, manager.topology
    kinds: dict[str, list[float]] = {}
    for at, trunks in enumerate(graph.trunks):
        for trunk in trunks:
            tiers = (topology.nodes[graph.switches[at]].tier or 0, topology.nodes[graph.switches[trunk.peer]].tier or 0)
            name = "->".join(TIER_NAMES[tier] if tier < len(TIER_NAMES) else f"tier {tier}" for tier in tiers)
            kinds.setdefault(name, []).append(round(float(load[at, trunk.port]), 6))
    return {name: (len(c), min(c), sum(c) / len(c), max(c)) for name, c in sorted(kinds.items())}
