"""What a plan costs on a fabric: its time over shared links, and the bytes on every one of them.

The time comes from playing all ranks' programs by the model that also paces a running lab (`fabric_player`), or through
queues (`queue_player`) where the paths say so. The bytes
are counted from the programs and the forwarding tables alone: they are exact and depend on no timing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fauxrdma.collectives.channelled import ChannelledPlan
from fauxrdma.collectives.fabric_player import Flight, Operation, PlayedFlow, play
from fauxrdma.collectives.plan import Plan, Put, Signal, Wait
from fauxrdma.collectives.rank_paths import RankPath, RankPaths
from fauxrdma.errors import LocalProtocolError
from fauxrdma.fabric.peer_way import even_shares
from fauxrdma.fabric.queues.settings import QueueSettings
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


def fabric_cost(
    plan: Plan | ChannelledPlan, itemsize: int, paths: RankPaths, *, messages_too: bool = False
) -> FabricCost:
    """The cost of `plan`, with elements of `itemsize` bytes, for ranks at the places of `paths`; with `messages_too`
    the times of each message, too. The channels of a channelled plan run at the same time, each over its own HCAs.

    Raises LocalProtocolError when there are not as many places as ranks or the plan never ends, FabricUnhealthy when
    two ranks that talk have no path between them.
    """
    parts = [(plan, paths)] if isinstance(plan, Plan) else _channels(plan, paths)
    n = parts[0][0].world_size
    if n != paths.world_size:
        raise LocalProtocolError(f"{plan.name} of {n} ranks on {paths.world_size} places")
    programs: list[list[Operation]] = []
    sent: list[_Sent] = []
    for number, (part, own) in enumerate(parts):
        writer = _Programs(own, itemsize, number * n)
        programs += (writer.program(part, rank) for rank in range(n))
        sent += writer.sent
    sent_by = {own.flow: own for own in sent}
    for flow, size in (operation for program in programs for operation in program):
        if size >= 0:
            sent_by[flow].messages += 1
            sent_by[flow].nbytes += size
    flights: list[Flight] | None = [] if messages_too else None
    if paths.queues is None:
        ends = play(programs, list(sent_by), _capacities(sent, paths), flights)
    else:
        ends = _in_queues(programs, sent, paths, paths.queues, flights)
    cost = _counted(sent, paths, [max(ends[rank::n]) for rank in range(n)], max(part.rounds for part, _ in parts))
    return cost if flights is None else replace(cost, messages_ns=_times(flights, sent_by))


def _in_queues(
    programs: Sequence[Sequence[Operation]],
    sent: Iterable[_Sent],
    paths: RankPaths,
    settings: QueueSettings,
    flights: list[Flight] | None,
) -> list[int]:
    # Here and not at the top: only who asks for queues waits for them to be imported.
    from fauxrdma.collectives.queue_player import play_in_queues

    own = list(sent)
    ways = {one.flow: one.path.ways or (tuple(hop[0] for hop in one.path.hops),) for one in own}
    lanes = {one.flow: paths.lane(*one.pair) if one.path.over_hcas else 0 for one in own}
    return play_in_queues(programs, ways, lanes, _capacities(own, paths), paths.topology, settings, flights)


def _channels(plan: ChannelledPlan, paths: RankPaths) -> list[tuple[Plan, RankPaths]]:
    routes = zip(plan.parts, plan.routes, strict=True)
    return [(part, paths.over(route.hcas)) for part, route in routes]


@dataclass(slots=True)
class _Sent:
    """What one rank sends to another over one path."""

    pair: Pair
    path: RankPath
    crosses_rails: bool
    flow: PlayedFlow
    messages: int = 0
    nbytes: int = 0


class _Programs:
    """Turns the programs of one plan into operations of the player. The program of rank 0 is number `first` there."""

    def __init__(self, paths: RankPaths, itemsize: int, first: int) -> None:
        self._paths = paths
        self._itemsize = itemsize
        self._first = first
        self._rails = rails_of(paths.topology)
        self._flows: dict[Pair, _Sent] = {}

    @property
    def sent(self) -> list[_Sent]:
        """All flows, by pair."""
        return [flow for _, flow in sorted(self._flows.items(), key=lambda item: item[0])]

    def program(self, plan: Plan, rank: int) -> list[Operation]:
        """What takes time in the program of `rank`."""
        operations: list[Operation] = []
        flow = self._flow
        for step in plan.build(rank).steps:  # not plan.program(), which would keep those of all ranks
            if type(step) is Wait:
                operations.append((flow(step.peer, rank), ~step.index))
            elif type(step) is Put:
                operations.append((flow(rank, step.peer), step.src.count * self._itemsize))
            elif type(step) is Signal:
                operations.append((flow(rank, step.peer), 0))
        return operations

    def _flow(self, source: int, target: int) -> PlayedFlow:
        found = self._flows.get((source, target))
        if found is None:
            path = self._paths.path(source, target)
            here, there = (self._rails.get(self._paths.places[rank].hca_name) for rank in (source, target))
            links = [hop[0] for hop in path.hops]
            flow = PlayedFlow(self._first + target, links, path.rate.bits_per_s, path.latency_ns, path.shares)
            found = _Sent((source, target), path, path.over_hcas and here != there, flow)
            self._flows[source, target] = found
        return found.flow


def _times(flights: Iterable[Flight], sent_by: Mapping[PlayedFlow, _Sent]) -> tuple[MessageTime, ...]:
    number: Counter[PlayedFlow] = Counter()
    times = []
    for flow, started, departed, arrived in flights:
        times.append(MessageTime(*sent_by[flow].pair, number[flow], started, departed, arrived))
        number[flow] += 1
    return tuple(sorted(times, key=lambda time: time.departed_ns))


def _capacities(sent: Iterable[_Sent], paths: RankPaths) -> list[int]:
    """Payload rates in bits/s by link id; the first of several parallel lanes stands for all of them."""
    capacities = [paths.manager.payload_rate(link.id).bits_per_s for link in paths.topology.links]
    for hop in {hop for own in sent for hop in own.path.hops if len(hop) > 1}:
        capacities[hop[0]] = paths.hop_rate(hop).bits_per_s
    return capacities


def _counted(sent: Iterable[_Sent], paths: RankPaths, end_ns: Iterable[int], rounds: int) -> FabricCost:
    topology = paths.topology
    upper = {switch.name for switch in topology.switches() if switch.tier}
    over_upper = {link.id for link in topology.links if link.dst in upper}
    link_bytes: Counter[int] = Counter()
    pairs: dict[Pair, PairTraffic] = {}
    crossing: dict[Pair, PairTraffic] = {}
    between_nodes = over_spines = 0
    for own in sent:
        if not own.messages:
            continue
        _count(own.path, own.nbytes, link_bytes)
        _add(pairs, own)
        source, target = own.pair
        if paths.places[source].node != paths.places[target].node:
            between_nodes += own.nbytes
        if own.crosses_rails:
            _add(crossing, own)
        if any(link in over_upper for hop in own.path.hops for link in hop):
            over_spines += own.nbytes
    return FabricCost(
        end_ns=tuple(end_ns),
        rounds=rounds,
        pairs=dict(sorted(pairs.items())),
        link_bytes={link: link_bytes[link] for link in sorted(link_bytes) if link_bytes[link]},
        between_nodes=between_nodes,
        across_rails=sum(traffic.nbytes for traffic in crossing.values()),
        over_spines=over_spines,
        crossing=dict(sorted(crossing.items())),
    )


def _add(to: dict[Pair, PairTraffic], own: _Sent) -> None:
    known = to.get(own.pair, PairTraffic(0, 0))
    to[own.pair] = PairTraffic(known.messages + own.messages, known.nbytes + own.nbytes)


def _count(path: RankPath, nbytes: int, link_bytes: Counter[int]) -> None:
    if path.ways:
        each, rest = divmod(nbytes, len(path.ways))
        for number, way in enumerate(path.ways):
            link_bytes.update(dict.fromkeys(way, each + (number < rest)))
        return
    for hop in path.hops:
        for link, share in zip(hop, even_shares(nbytes, len(hop)), strict=True):
            link_bytes[link] += share
