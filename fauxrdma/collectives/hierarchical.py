"""Algorithms that know which ranks share a node: traffic between nodes stays on its rail.

`nodes` lists the ranks of each node, the rank on rail i at place i. Nodes may have different numbers of ranks; then the
rails are those that every node has.

**Hierarchical all-reduce**: within each node the rank on rail i collects and reduces share i (over NVLink); the ranks
of one rail reduce their shares among the nodes, by a ring; within each node the shares are handed out again. Each rank
of a rail sends 2 (N-1)/N of its share between nodes, nothing crosses rails, and a switch above the leaves sees nothing.

**PXN all-to-all** (NCCL 2.12, "PCIe x NVLink"): what is for rank j of another node is first handed over NVLink to the
local rank on rail j, which sends it, from all local ranks, on its rail. As many bytes between nodes as without, none of
them across rails, and each rank talks to one rank of each other node instead of all of its ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from fauxrdma.collectives.direct import Counts, check_counts
from fauxrdma.collectives.partition import Partition
from fauxrdma.collectives.plan import Plan, Slice
from fauxrdma.collectives.stepwise import Local, Move, Receive, Send, Step, step_plan
from fauxrdma.errors import LocalProtocolError

__all__ = ["Nodes", "hierarchical_all_reduce", "pxn_all_to_all"]

Nodes = Sequence[Sequence[int]]


def _places(nodes: Nodes) -> dict[int, tuple[int, int]]:
    """(node, rail) of every rank. Raises LocalProtocolError unless `nodes` has each rank of 0..n-1 once."""
    places = {rank: (node, rail) for node, ranks in enumerate(nodes) for rail, rank in enumerate(ranks)}
    if sorted(places) != list(range(sum(map(len, nodes)))) or not all(nodes):
        raise LocalProtocolError(f"every rank must be on one node, and no node empty: {[list(r) for r in nodes]}")
    return places


def hierarchical_all_reduce(count: int, nodes: Nodes, *, chunk: int, lanes: int) -> Plan:
    """All-reduce of `count` elements in place in `data`. Raises LocalProtocolError for impossible sizes or nodes."""
    places = _places(nodes)
    rails = min(map(len, nodes))
    share = Partition(count, rails, -(-count // rails))
    far = len(nodes)

    def whole(rail: int) -> Slice:
        return Slice("data", share.offset(rail), share.length(rail))

    def blocks(rail: int) -> Partition:
        return Partition(share.length(rail), far, -(-share.length(rail) // far))

    def block(rail: int, index: int) -> Slice:
        part = blocks(rail)
        return Slice("data", share.offset(rail) + part.offset(index % far), part.length(index % far))

    def steps(rank: int) -> Iterator[Step]:
        node, rail = places[rank]
        local = nodes[node]
        owners = [(i, owner) for i, owner in enumerate(local[:rails]) if owner != rank]
        others = [peer for peer in local if peer != rank]
        collect: Step = [Send(owner, whole(i)) for i, owner in owners]
        if rail < rails:
            collect += [
                Receive(peer, whole(rail), reduce=True, final=far == 1 and peer == others[-1]) for peer in others
            ]
        yield collect
        yield from _ring(node, rail) if rail < rails else ([] for _ in range(2 * (far - 1)))
        hand_out: Step = [Send(peer, whole(rail)) for peer in others] if rail < rails else []
        yield [*hand_out, *(Receive(owner, whole(i)) for i, owner in owners)]

    def _ring(node: int, rail: int) -> Iterator[Step]:
        left, right = nodes[(node - 1) % far][rail], nodes[(node + 1) % far][rail]
        for k in range(far - 1):
            yield [
                Send(left, block(rail, node + 1 + k)),
                Receive(right, block(rail, node + 2 + k), reduce=True, final=k == far - 2),
            ]
        for k in range(far - 1):
            yield [Send(left, block(rail, node + k)), Receive(right, block(rail, node + 1 + k))]

    def sends(rank: int) -> Iterator[int]:
        node, rail = places[rank]
        yield from (share.length(i) for i in range(rails) if i != rail)
        if rail < rails:
            part = blocks(rail)
            for k in range(far - 1):
                yield part.length((node + 1 + k) % far)
                yield part.length((node + k) % far)
            yield from [share.length(rail)] * (len(nodes[node]) - 1)

    order = "within nodes in rank order, the rail's owner first; then around the ring of nodes"
    return step_plan(
        "all_reduce", "hierarchical", len(places), {"data": count}, rounds=2 * far,
        chunk=chunk, lanes=lanes, order=order, steps=steps, sends=sends,
    )  # fmt: skip


def pxn_all_to_all(counts: Counts, nodes: Nodes, *, chunk: int, lanes: int) -> Plan:
    """All-to-all of `counts[a][b]` elements from rank a's `input` to rank b's `output`, between nodes by way of the
    local rank on the receiver's rail; `scratch` is where that one keeps what it was handed.

    Raises LocalProtocolError when `counts` or `nodes` make no sense.
    """
    n = check_counts(counts)
    places = _places(nodes)
    if len(places) != n:
        raise LocalProtocolError(f"{n} rows of counts for {len(places)} ranks on nodes")

    def proxy(node: int, target: int) -> int:
        """The rank of `node` that sends to `target`: the one on its rail, if the node has that many."""
        return nodes[node][places[target][1] % len(nodes[node])]

    def away(node: int) -> list[int]:
        return [rank for rank in range(n) if places[rank][0] != node]

    def held(rank: int) -> list[tuple[int, int]]:
        """(target, source) of the parts in the scratch of `rank`, in the order they lie there."""
        node = places[rank][0]
        return [(b, a) for b in away(node) if proxy(node, b) == rank for a in nodes[node] if a != rank]

    def layout(rank: int) -> dict[tuple[int, int], Slice]:
        pairs = held(rank)
        starts = [0, *accumulate(counts[a][b] for b, a in pairs)]
        return {(b, a): Slice("scratch", at, counts[a][b]) for (b, a), at in zip(pairs, starts, strict=False)}

    inputs = [[0, *accumulate(row)] for row in counts]
    outputs = [[0, *accumulate(row[b] for row in counts)] for b in range(n)]

    def here(rank: int, target: int) -> Slice:
        return Slice("input", inputs[rank][target], counts[rank][target])

    def there(rank: int, source: int) -> Slice:
        return Slice("output", outputs[rank][source], counts[source][rank])

    def steps(rank: int) -> Iterator[Step]:
        node = places[rank][0]
        scratch = layout(rank)
        first: list[Move] = [Local(there(rank, rank), here(rank, rank))]
        first += [Send(peer, here(rank, peer)) for peer in nodes[node] if peer != rank]
        first += [Send(proxy(node, b), here(rank, b)) for b in away(node) if proxy(node, b) != rank]
        first += [Receive(peer, there(rank, peer)) for peer in nodes[node] if peer != rank]
        first += [
            Receive(a, scratch[b, a])
            for a in nodes[node] if a != rank
            for b in away(node) if proxy(node, b) == rank
        ]  # fmt: skip
        yield first
        second: list[Move] = []
        for b in away(node):
            if proxy(node, b) == rank:
                second += [Send(b, here(rank, b) if a == rank else scratch[b, a]) for a in nodes[node]]
        for other, ranks in enumerate(nodes):
            if other != node:
                second += [Receive(proxy(other, rank), there(rank, a)) for a in ranks]
        yield second

    def sends(rank: int) -> Iterator[int]:
        node = places[rank][0]
        for b in range(n):
            mine = b != rank and (places[b][0] == node or proxy(node, b) != rank)
            if mine:
                yield counts[rank][b]
        for b in away(node):
            if proxy(node, b) == rank:
                yield from (counts[a][b] for a in nodes[node])

    scratch = [sum(counts[a][b] for b, a in held(rank)) for rank in range(n)]
    buffers = {
        "input": [sum(row) for row in counts],
        "output": [starts[-1] for starts in outputs],
        "scratch": scratch,
    }
    return step_plan(
        "all_to_all", "pxn", n, buffers, rounds=2, chunk=chunk, lanes=lanes,
        order="nothing is reduced", steps=steps, sends=sends,
    )  # fmt: skip
