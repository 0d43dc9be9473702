"""Playing flows to their end in virtual time: who is complete when, and what the links went through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fauxrdma.errors import ConfigError
from fauxrdma.fabric.queues.layout import Layout, Way
from fauxrdma.fabric.queues.settings import QueueSettings
from fauxrdma.fabric.queues.step import QueueModel
from fauxrdma.fabric.queues.storms import Storm
from fauxrdma.fabric.routing.ethernet import FlowKey
from fauxrdma.fabric.subnet import SubnetManager

__all__ = ["PRIORITIES", "Flow", "FlowResult", "LinkResult", "Outcome", "play"]

PRIORITIES = 8
"""Of an Ethernet cable (IEEE 802.1Q)."""
MOST_LANES = 15
"""Data lanes of an InfiniBand port at most (IBTA vol. 1, 7.6); VL15 is for management."""


@dataclass(frozen=True, slots=True)
class Flow:
    """`nbytes` from one HCA to another (LIDs), from `start_ns` on. `priority`: on InfiniBand the virtual lane; None for
    the lane that the routes have for these HCAs, 0 on Ethernet. `number` stands for the queue pair's. The memories at
    both ends are numbers as `SubnetManager.path` has them."""

    source: int
    target: int
    nbytes: int
    start_ns: float = 0.0
    priority: int | None = None
    number: int = 0
    source_memory: int | None = None
    target_memory: int | None = None


@dataclass(frozen=True, slots=True)
class FlowResult:
    """`priority`: what it was played with. `completion_ns`: from the start until the last byte is there, None if it
    never was. `sent`, with what was sent again; `delivered`, in order; `dropped`; all bytes."""

    flow: Flow
    priority: int
    completion_ns: float | None
    sent: float
    delivered: float
    dropped: float
    notifications: int
    restarts: int

    @property
    def rate_bps(self) -> float | None:
        """Bytes over time, in bits/s."""
        return None if self.completion_ns is None else self.flow.nbytes * 8e9 / self.completion_ns


@dataclass(frozen=True, slots=True)
class LinkResult:
    """One priority of one link (an id and its name). `queue_max` at its egress, `ingress_max` in the buffer at its end;
    bytes. `pauses`: how often the port at its end has paused it."""

    link: int
    name: str
    priority: int
    nbytes: float
    pauses: int
    stalled_ns: float
    dropped: float
    marked: float
    queue_max: float
    ingress_max: float


@dataclass(slots=True)
class Outcome:
    """`ended_ns`: when the last flow was complete, or the play was broken off. `deadlock`: the links that wait for each
    other, in a circle. `trace`: what happened, in order: (ns, what, to whom, how much)."""

    flows: list[FlowResult]
    links: list[LinkResult]
    ended_ns: float
    step_ns: float
    deadlock: list[str] = field(default_factory=list)
    trace: list[tuple[float, str, str, float]] = field(default_factory=list)
    lost_xons: int = 0


def play(
    manager: SubnetManager,
    flows: Sequence[Flow],
    settings: QueueSettings,
    *,
    seed: int = 0,
    limit_ns: float = 1e10,
    storms: Sequence[Storm] = (),
) -> Outcome:
    """Play `flows` over the routes of `manager` until all are complete, a deadlock is found, or `limit_ns` have passed.
    Meanwhile the HCAs of `storms` take nothing in.

    The same arguments give the same outcome, its trace included. A flow that the switches spray goes in equal parts
    over its ways and is complete with the last. Raises ConfigError for a flow of no bytes or with a priority that there
    is not, FabricUnhealthy as `SubnetManager.path` does.
    """
    ways, sizes, owner = _ways(manager, flows)
    topology = manager.topology
    payload = [manager.payload_rate(link.id) for link in topology.links]
    layout = Layout(topology, payload, ways)
    trace: list[tuple[float, str, str, float]] = []
    random = np.random.default_rng(seed)
    model = QueueModel(layout, sizes, settings, topology.mtu, random, lambda *event: trace.append(event), storms)
    starts = sorted(range(len(ways)), key=lambda row: (flows[owner[row]].start_ns, row))
    parts_left = np.bincount(owner, minlength=len(flows)) if owner else np.zeros(0, dtype=np.intp)
    completion: list[float | None] = [None] * len(flows)
    latest = [0.0] * len(flows)
    late = [0.0] * len(flows)
    at = 0
    while (at < len(starts) or model.busy) and model.now_ns < limit_ns and not model.deadlock:
        if not model.busy:
            model.jump(flows[owner[starts[at]]].start_ns)
        while at < len(starts) and flows[owner[starts[at]]].start_ns <= model.now_ns:
            number = owner[starts[at]]
            late[number] = model.now_ns - flows[number].start_ns
            trace.append((model.now_ns, "start", f"flow {number}", float(sizes[starts[at]])))
            model.start(starts[at])
            at += 1
        for row, when_ns in model.step():
            number = owner[row]
            latest[number] = max(latest[number], when_ns - late[number])
            parts_left[number] -= 1
            if parts_left[number] == 0:
                completion[number] = latest[number] - flows[number].start_ns
                trace.append((latest[number], "complete", f"flow {number}", float(flows[number].nbytes)))
    cycle = [layout.name(lane) for lane in model.deadlock]
    if cycle:
        trace.append((model.now_ns, "deadlock", " -> ".join(cycle), 0.0))
    done = all(when is not None for when in completion)
    return Outcome(
        flows=_flow_results(model, flows, owner, [way.priority for way in ways], completion),
        links=_link_results(model),
        ended_ns=max(latest, default=0.0) if done else model.now_ns,
        step_ns=model.step_ns,
        deadlock=cycle,
        trace=trace,
        lost_xons=model.pause_control.lost_xons,
    )


def _ways(manager: SubnetManager, flows: Sequence[Flow]) -> tuple[list[Way], list[float], list[int]]:
    ways: list[Way] = []
    sizes: list[float] = []
    owner: list[int] = []
    active: dict[int, int] = {}
    last = (PRIORITIES if manager.transport.ethernet else MOST_LANES) - 1
    for number, flow in enumerate(flows):
        if flow.nbytes <= 0:
            raise ConfigError(f"flow {number} has {flow.nbytes} bytes: give it at least one")
        if flow.priority is not None and not 0 <= flow.priority <= last:
            raise ConfigError(
                f"flow {number} has the priority {flow.priority}: {manager.transport.name} has 0 to {last}"
            )
        key = FlowKey(flow.source, flow.target, flow.number)
        path = manager.flow_path(key, lambda link: active.get(link, 0), flow.source_memory, flow.target_memory)
        for link in path.links:
            active[link] = active.get(link, 0) + 1
        parts = path.ways or (path.links,)
        lane = manager.routes.sl(flow.source, flow.target) if flow.priority is None else flow.priority
        for links in parts:
            if not links:
                raise ConfigError(f"flow {number} stays within {manager.node(flow.source).name}: it crosses no link")
            ways.append(Way(links, lane, float(path.latency_ns)))
            sizes.append(flow.nbytes / len(parts))
            owner.append(number)
    return ways, sizes, owner


def _flow_results(
    model: QueueModel,
    flows: Sequence[Flow],
    owner: list[int],
    priorities: list[int],
    completion: list[float | None],
) -> list[FlowResult]:
    def total(values: NDArray[Any]) -> list[float]:
        return [float(v) for v in np.bincount(owner, values, minlength=len(flows))] if owner else []

    counted = model.flows
    priority = dict(zip(owner, priorities, strict=True))
    columns = [total(c) for c in (counted.sent, counted.delivered, counted.dropped, counted.notified, counted.restarts)]
    return [
        FlowResult(flow, priority[at], when, sent, delivered, dropped, int(notified), int(restarts))
        for at, (flow, when, sent, delivered, dropped, notified, restarts) in enumerate(
            zip(flows, completion, *columns, strict=True)
        )
    ]


def _link_results(model: QueueModel) -> list[LinkResult]:
    layout, counted = model.layout, model.lanes
    return [
        LinkResult(
            link=link,
            name=layout.topology.links[link].name,
            priority=priority,
            nbytes=float(counted.nbytes[lane]),
            pauses=int(model.pause_control.pauses[lane]),
            stalled_ns=float(counted.stalled_ns[lane]),
            dropped=float(counted.dropped[lane]),
            marked=float(counted.marked[lane]),
            queue_max=float(counted.queue_max[lane]),
            ingress_max=float(counted.ingress_max[lane]),
        )
        for lane, (link, priority) in enumerate(layout.lanes)
    ]
