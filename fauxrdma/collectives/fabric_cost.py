"""What a plan costs on a fabric: its time over shared links, and the bytes on every one of them.

The time comes from playing all ranks' programs by the model that also paces a running lab (`fabric_player`). The bytes
are counted from the programs and the forwarding tables alone: they are exact and depend on no timing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from fauxrdma.collectives.fabric_player import Flight, Operation, PlayedFlow, play
from fauxrdma.collectives.plan import Plan, Put, Signal, Wait
from fauxrdma.collectives.rank_paths import RankPath, RankPaths
from fauxrdma.errors import LocalProtocolError
from fauxrdma.topology.rails import rails_of

__all__ = ["FabricCost", "MessageTime", "PairTraffic", "fabric_cost"]

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class PairTraffic:
    """What one rank sends to another: messages, and payload bytes in them."""

    messages: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class MessageTime:
    """When message `index` from `source` to `target` was under way, in ns: its first bit left, its last bit had left,
    it was there."""

    source: int
    target: int
    index: int
    started_ns: int
    departed_ns: int
    arrived_ns: int


@dataclass(frozen=True)
class FabricCost:
    """The cost of one plan on one fabric, all ranks starting together.

    `end_ns[r]` is when rank r is done, in ns of fabric time. `pairs` maps (sender, receiver) to what it sends;
    `link_bytes` link ids to payload bytes, links without traffic left out. The summaries count the bytes of messages
    by where they go: `between_nodes`; `across_rails`, between HCAs of different rails (0 where the fabric has none);
    `over_spines`, through a switch above the leaves. `rounds` is what the plan declares.
    """

    end_ns: tuple[int, ...]
    rounds: int
    pairs: Mapping[Pair, PairTraffic]
    link_bytes: Mapping[int, int]
    between_nodes: int
    across_rails: int
    over_spines: int
    crossing: Mapping[Pair, PairTraffic]
    """The pairs behind `across_rails`."""
    messages_ns: tuple[MessageTime, ...] = ()
    """Every message's times, in order of departure, when they were asked for."""

    @property
    def predicted_ns(self) -> int:
        """When the last rank is done."""
        return max(self.end_ns, default=0)

    @property
    def messages(self) -> int:
        """Messages of all ranks together."""
        return sum(traffic.messages for traffic in self.pairs.values())

    @property
    def nbytes(self) -> int:
        """Payload bytes of all ranks together."""
        return sum(traffic.nbytes for traffic in self.pairs.values())


def fabric_cost(plan: Plan, itemsize: int, paths: RankPaths, *, messages_too: bool = False) -> FabricCost:
    """The cost of `plan`, with elements of `itemsize` bytes, for ranks at the places of `paths`; with `messages_too`
    the times of each message, too.

    Raises LocalProtocolError when there are not as many places as ranks or the plan never ends, FabricUnhealthy when
    two ranks that talk have no path between them.
    """
    if plan.world_size != paths.world_size:
        raise LocalProtocolError(f"{plan.name} of {plan.world_size} ranks on {paths.world_size} places")
    flows: dict[Pair, PlayedFlow] = {}

    def flow(source: int, target: int) -> PlayedFlow:
        found = flows.get((source, target))
        if found is None:
            path = paths.path(source, target)
            links = [hop[0] for hop in path.hops]
            found = PlayedFlow(target, links, path.rate.bits_per_s, path.latency_ns, path.shares)
            flows[source, target] = found
        return found

    programs: list[list[Operation]] = []
    for rank in range(plan.world_size):
        operations: list[Operation] = []
        for step in plan.build(rank).steps:  # not plan.program(), which would keep those of all ranks
            if type(step) is Wait:
                operations.append((flow(step.peer, rank), ~step.index))
            elif type(step) is Put:
                operations.append((flow(rank, step.peer), step.src.count * itemsize))
            elif type(step) is Signal:
                operations.append((flow(rank, step.peer), 0))
        programs.append(operations)
    messages: Counter[PlayedFlow] = Counter()
    nbytes: Counter[PlayedFlow] = Counter()
    for operations in programs:
        for sent, size in operations:
            if size >= 0:
                messages[sent] += 1
                nbytes[sent] += size
    pairs = {pair: PairTraffic(messages[own], nbytes[own]) for pair, own in sorted(flows.items()) if messages[own]}
    flights: list[Flight] | None = [] if messages_too else None
    end_ns = play(programs, list(flows.values()), _capacities(flows, paths), flights)
    cost = _counted(tuple(end_ns), plan.rounds, pairs, paths)
    return cost if flights is None else replace(cost, messages_ns=_times(flights, flows))


def _times(flights: Iterable[Flight], flows: Mapping[Pair, PlayedFlow]) -> tuple[MessageTime, ...]:
    pair_of = {flow: pair for pair, flow in flows.items()}
    number: Counter[PlayedFlow] = Counter()
    times = []
    for flow, started, departed, arrived in flights:
        times.append(MessageTime(*pair_of[flow], number[flow], started, departed, arrived))
        number[flow] += 1
    return tuple(sorted(times, key=lambda time: time.departed_ns))


def _capacities(pairs: Iterable[Pair], paths: RankPaths) -> list[int]:
    """Payload rates in bits/s by link id; the first of several parallel lanes stands for all of them."""
    capacities = [paths.manager.payload_rate(link.id).bits_per_s for link in paths.topology.links]
    for hop in {hop for pair in pairs for hop in paths.path(*pair).hops if len(hop) > 1}:
        capacities[hop[0]] = paths.hop_rate(hop).bits_per_s
    return capacities


def _counted(end_ns: tuple[int, ...], rounds: int, pairs: Mapping[Pair, PairTraffic], paths: RankPaths) -> FabricCost:
    topology = paths.topology
    rails = rails_of(topology)
    upper = {switch.name for switch in topology.switches() if switch.tier}
    over_upper = {link.id for link in topology.links if link.dst in upper}
    link_bytes: Counter[int] = Counter()
    crossing: dict[Pair, PairTraffic] = {}
    between_nodes = over_spines = 0
    for (source, target), traffic in pairs.items():
        path = paths.path(source, target)
        _count(path, traffic.nbytes, link_bytes)
        here, there = paths.places[source], paths.places[target]
        if here.node != there.node:
            between_nodes += traffic.nbytes
        if path.over_hcas and rails.get(here.hca_name) != rails.get(there.hca_name):
            crossing[source, target] = traffic
        if any(link in over_upper for hop in path.hops for link in hop):
            over_spines += traffic.nbytes
    return FabricCost(
        end_ns=end_ns,
        rounds=rounds,
        pairs=pairs,
        link_bytes={link: link_bytes[link] for link in sorted(link_bytes) if link_bytes[link]},
        between_nodes=between_nodes,
        across_rails=sum(traffic.nbytes for traffic in crossing.values()),
        over_spines=over_spines,
        crossing=crossing,
    )


def _count(path: RankPath, nbytes: int, link_bytes: Counter[int]) -> None:
    if path.ways:
        each, rest = divmod(nbytes, len(path.ways))
        for number, way in enumerate(path.ways):
            link_bytes.update(dict.fromkeys(way, each + (number < rest)))
        return
    for hop in path.hops:
        share, rest = divmod(nbytes, len(hop))
        for number, link in enumerate(hop):
            link_bytes[link] += share + (number < rest)
