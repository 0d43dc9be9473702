"""Algorithms that know which ranks share a node: traffic between nodes stays on its rail.

`nodes` lists the ranks of each node, the rank on rail i at place i (rail_order.py puts them so). Nodes may have
different numbers of ranks; then the rails are the places that every node has, or the first `rails` of them.

**All-reduce**: within each node the rank on rail i collects and reduces share i (over NVLink); the ranks of one rail
reduce their shares among the nodes, by any algorithm for all ranks (`inner`: a ring, a tree); within each node the
shares are handed out again. With a ring each rank of a rail sends 2 (N-1)/N of its share between nodes.

**Reduce-scatter and all-gather** are its halves. The block of a rank beyond the rails goes by way of a rank of its node
that is on one.

Nothing crosses rails, and a switch above the leaves sees nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fauxrdma.collectives.direct import direct_reduce_scatter
from fauxrdma.collectives.embedding import Region, embedded, in_sequence
from fauxrdma.collectives.partition import Partition
from fauxrdma.collectives.plan import Plan, Program, Slice, Traffic
from fauxrdma.collectives.rail_order import Nodes
from fauxrdma.collectives.ring import ring_all_reduce, ring_reduce_scatter
from fauxrdma.collectives.stepwise import Local, Receive, Send, Step, compile_steps
from fauxrdma.collectives.stepwise_rings import uneven_ring_all_gather
from fauxrdma.errors import LocalProtocolError

__all__ = [
    "InnerAllReduce",
    "check_nodes",
    "hierarchical_all_gather",
    "hierarchical_all_reduce",
    "hierarchical_reduce_scatter",
]

_NAMES = {"ring": "hierarchical", "double-tree": "hierarchical-tree"}

InnerAllReduce = Callable[[int, int], Plan]
"""Makes the all-reduce of so many elements of `data` over so many ranks."""


def check_nodes(nodes: Nodes) -> dict[int, tuple[int, int]]:
    """(node, place) of every rank. Raises LocalProtocolError unless `nodes` has each rank of 0..n-1 once."""
    places = {rank: (node, place) for node, ranks in enumerate(nodes) for place, rank in enumerate(ranks)}
    if sorted(places) != list(range(sum(map(len, nodes)))) or not all(nodes):
        raise LocalProtocolError(f"every rank must be on one node, and no node empty: {[list(r) for r in nodes]}")
    return places


def _rail_count(nodes: Nodes, rails: int | None) -> int:
    most = min(map(len, nodes))
    if rails is not None and not 1 <= rails <= most:
        raise LocalProtocolError(f"{rails} rails, but the smallest node has {most} ranks")
    return most if rails is None else rails


def _check_sizes(count: int, chunk: int, lanes: int) -> None:
    if count < 0 or chunk < 1 or lanes < 1:
        raise LocalProtocolError(
            f"a plan needs count >= 0, chunk >= 1 and lanes >= 1; got count={count}, chunk={chunk}, lanes={lanes}"
        )


def _sent(steps: list[Step], chunk: int) -> Traffic:
    counts = [move.source.count for step in steps for move in step if isinstance(move, Send)]
    return Traffic(sum(-(-count // chunk) for count in counts), sum(counts))


def _plus(first: Traffic, second: Traffic) -> Traffic:
    return Traffic(first.messages + second.messages, first.elements + second.elements)


def hierarchical_all_reduce(
    count: int,
    nodes: Nodes,
    *,
    chunk: int,
    lanes: int,
    inner: InnerAllReduce | None = None,
    rails: int | None = None,
) -> Plan:
    """All-reduce of `count` elements in place in `data`. `inner` (default: a ring) runs among the ranks of each rail.

    Raises LocalProtocolError for impossible sizes or nodes.
    """
    places = check_nodes(nodes)
    _check_sizes(count, chunk, lanes)
    used = _rail_count(nodes, rails)
    far = len(nodes)
    share = Partition(count, used, -(-count // used))

    def ring(elements: int, ranks: int) -> Plan:
        return ring_all_reduce(elements, ranks, itemsize=1, chunk=chunk, lanes=lanes)

    between = [(inner or ring)(share.length(rail), far) for rail in range(used)]

    def whole(rail: int) -> Slice:
        return Slice("data", share.offset(rail), share.length(rail))

    def local(rank: int) -> tuple[Step, Step]:
        node, rail = places[rank]
        owners = [(i, owner) for i, owner in enumerate(nodes[node][:used]) if owner != rank]
        others = [peer for peer in nodes[node] if peer != rank]
        collect: Step = [Send(owner, whole(i)) for i, owner in owners]
        hand_out: Step = []
        if rail < used:
            for peer in others:
                collect.append(Receive(peer, whole(rail), reduce=True, final=far == 1 and peer == others[-1]))
                hand_out.append(Send(peer, whole(rail)))
        hand_out += [Receive(owner, whole(i)) for i, owner in owners]
        return collect, hand_out

    def build(rank: int) -> Program:
        node, rail = places[rank]
        collect, hand_out = (compile_steps([step], chunk, lanes) for step in local(rank))
        if rail >= used:
            return in_sequence([collect, hand_out])
        mates = [ranks[rail] for ranks in nodes]
        region = Region("data", share.length(rail), [share.offset(rail)])
        return in_sequence([collect, embedded(between[rail].program(node), mates, {"data": region}), hand_out])

    def declare(rank: int) -> Traffic:
        node, rail = places[rank]
        within = _sent([*local(rank)], chunk)
        return _plus(within, between[rail].traffic(node)) if rail < used else within

    kind = between[0].algorithm
    return Plan(
        "all_reduce", _NAMES.get(kind, f"hierarchical-{kind}"), len(places), {"data": count},
        between[0].rounds + (2 if len(places) > far else 0), max(lanes, between[0].lanes),
        max(chunk, *(plan.chunk for plan in between)),
        f"within nodes in rank order, the rail's owner first; then among the nodes, {between[0].reduction_order}",
        build, declare,
    )  # fmt: skip


class _Layers:
    """Ranks by rail and layer: the rank at place p of its node is on rail p mod `rails`, in layer p / `rails`. Layer 0
    are the ranks on rails themselves (the keepers); those of other layers are served by the keeper of their rail."""

    def __init__(self, nodes: Nodes, rails: int | None) -> None:
        self.nodes = nodes
        self.places = check_nodes(nodes)
        self.rails = _rail_count(nodes, rails)
        self.depth = max(-(-len(ranks) // self.rails) for ranks in nodes)

    def layer(self, rail: int, number: int) -> list[int]:
        """The ranks of one layer of a rail, in the order of their nodes; nodes without one left out."""
        place = number * self.rails + rail
        return [ranks[place] for ranks in self.nodes if place < len(ranks)]

    def counts(self, rail: int, number: int, count: int) -> list[int]:
        """`count` for each node with a rank in the layer, else 0."""
        place = number * self.rails + rail
        return [count if place < len(ranks) else 0 for ranks in self.nodes]

    def rail(self, rail: int) -> list[int]:
        """All ranks of a rail, layer by layer."""
        return [rank for number in range(self.depth) for rank in self.layer(rail, number)]

    def mates(self, rail: int) -> list[int]:
        """The keepers of a rail, by node."""
        return [ranks[rail] for ranks in self.nodes]

    def served(self, node: int, rail: int) -> list[int]:
        """The ranks of `node` beyond the rails that the keeper of `rail` serves."""
        return list(self.nodes[node][self.rails + rail :: self.rails])

    def plan(
        self,
        operation: str,
        buffers: Mapping[str, int | list[int]],
        order: str,
        *,
        local: Callable[[int], tuple[Step, Step]],
        between: Callable[[int, int], Plan],
        regions: Callable[[int, int, int], dict[str, Region]],
        chunk: int,
        lanes: int,
    ) -> Plan:
        """The plan of what each rank does within its node before and after (`local`), and between the nodes, layer by
        layer: the keepers of a rail run `between(rail, number)` on `regions(node, rail, number)` of their buffers."""

        def build(rank: int) -> Program:
            node, place = self.places[rank]
            before, after = (compile_steps([step], chunk, lanes) for step in local(rank))
            exchange = [
                embedded(between(place, number).program(node), self.mates(place), regions(node, place, number))
                for number in range(self.depth if place < self.rails else 0)
            ]
            return in_sequence([before, *exchange, after])

        def declare(rank: int) -> Traffic:
            node, place = self.places[rank]
            total = _sent([*local(rank)], chunk)
            for number in range(self.depth if place < self.rails else 0):
                total = _plus(total, between(place, number).traffic(node))
            return total

        far, n = len(self.nodes), len(self.places)
        rounds = (far - 1) * self.depth + (n > far) + (self.depth > 1)
        return Plan(operation, "hierarchical", n, buffers, rounds, lanes, chunk, order, build, declare)


def hierarchical_reduce_scatter(count: int, nodes: Nodes, *, chunk: int, lanes: int, rails: int | None = None) -> Plan:
    """Reduce-scatter: `input` holds a block of `count` elements for every rank, `output` receives this rank's block
    reduced; in `scratch` the keepers of rails collect what their nodes have for their rail.

    Between nodes a ring among the ranks of each rail (for the blocks of ranks beyond the rails, a pairwise exchange):
    each sends (N-1)/N of what it collected, once. Raises LocalProtocolError for impossible sizes or nodes.
    """
    _check_sizes(count, chunk, lanes)
    layers = _Layers(nodes, rails)
    places, used, n = layers.places, layers.rails, len(layers.places)

    def block(rank: int) -> Slice:
        return Slice("input", rank * count, count)

    def collected(rail: int) -> dict[int, Slice]:
        """Where each block of a rail lies in its keepers' scratch."""
        return {rank: Slice("scratch", at * count, count) for at, rank in enumerate(layers.rail(rail))}

    def finished(rank: int) -> Slice:
        """Where a keeper puts the finished block of `rank`, of its own node: its own block at once into `output`."""
        rail = places[rank][1] % used
        own = places[rank][1] < used
        return Slice("output", 0, count) if own else collected(rail)[rank]

    def local(rank: int) -> tuple[Step, Step]:
        node, place = places[rank]
        here = nodes[node]
        collect: Step = []
        hand_out: Step = []
        if place < used:
            collect += [Local(there, block(target)) for target, there in collected(place).items()]
        for rail, keeper in enumerate(here[:used]):
            if keeper != rank:
                collect += [Send(keeper, block(target)) for target in layers.rail(rail)]
        if place < used:
            others = [peer for peer in here if peer != rank]
            for peer in others:
                final = len(nodes) == 1 and peer == others[-1]
                collect += [Receive(peer, there, reduce=True, final=final) for there in collected(place).values()]
            hand_out += [Send(target, finished(target)) for target in layers.served(node, place)]
        else:
            hand_out.append(Receive(here[place % used], Slice("output", 0, count)))
        return collect, hand_out

    def between(rail: int, number: int) -> Plan:
        if number == 0:
            return ring_reduce_scatter(count, len(nodes), chunk=chunk, lanes=lanes)
        return direct_reduce_scatter(layers.counts(rail, number, count), chunk=chunk, lanes=lanes)

    def regions(node: int, rail: int, number: int) -> dict[str, Region]:
        where = collected(rail)
        place = number * used + rail
        mine = finished(nodes[node][place]) if place < len(nodes[node]) else Slice("output", 0, 0)
        return {
            "input": Region("scratch", count, [where[target].offset for target in layers.layer(rail, number)]),
            "output": Region(mine.buffer, count, [mine.offset]),
        }

    scratch = [len(layers.rail(places[r][1])) * count if places[r][1] < used else 0 for r in range(n)]
    order = "within nodes in rank order, the rail's owner first; then around the ring of nodes"
    buffers: dict[str, int | list[int]] = {"input": n * count, "output": count, "scratch": scratch}
    return layers.plan(
        "reduce_scatter", buffers, order, local=local, between=between, regions=regions, chunk=chunk, lanes=lanes
    )


def hierarchical_all_gather(count: int, nodes: Nodes, *, chunk: int, lanes: int, rails: int | None = None) -> Plan:
    """All-gather: `input` holds `count` elements, `output` receives every rank's, in rank order.

    Between nodes a ring: each rank of a rail passes on what the ranks of its rail have, but its neighbour's. Raises
    LocalProtocolError for impossible sizes or nodes.
    """
    _check_sizes(count, chunk, lanes)
    layers = _Layers(nodes, rails)
    places, used, n = layers.places, layers.rails, len(layers.places)

    def block(rank: int) -> Slice:
        return Slice("output", rank * count, count)

    def local(rank: int) -> tuple[Step, Step]:
        node, place = places[rank]
        here = nodes[node]
        bring: Step = [Local(block(rank), Slice("input", 0, count))]
        hand_out: Step = []
        if place < used:
            bring += [Receive(served, block(served)) for served in layers.served(node, place)]
            for peer in here:
                if peer != rank:
                    hand_out += [Send(peer, block(source)) for source in layers.rail(place) if source != peer]
        else:
            bring.append(Send(here[place % used], Slice("input", 0, count)))
        for rail, keeper in enumerate(here[:used]):
            if keeper != rank:
                hand_out += [Receive(keeper, block(source)) for source in layers.rail(rail) if source != rank]
        return bring, hand_out

    def between(rail: int, number: int) -> Plan:
        return uneven_ring_all_gather(layers.counts(rail, number, count), chunk=chunk, lanes=lanes)

    def regions(node: int, rail: int, number: int) -> dict[str, Region]:
        place = number * used + rail
        own = nodes[node][place] * count if place < len(nodes[node]) else 0
        starts = [rank * count for rank in layers.layer(rail, number)]
        return {"input": Region("output", count, [own]), "output": Region("output", count, starts)}

    buffers = {"input": count, "output": n * count}
    return layers.plan(
        "all_gather", buffers, "nothing is reduced",
        local=local, between=between, regions=regions, chunk=chunk, lanes=lanes,
    )  # fmt: skip
