"""PXN all-to-all (NCCL 2.12, "PCIe x NVLink"): between nodes every byte travels on the rail of its receiver.

What is for a rank of another node is first handed over NVLink to the local rank on that rank's rail, which sends it,
from all local ranks, on its rail. As many bytes between nodes as without, none of them across rails, and each rank
talks to one rank of each other node (per rail it serves) instead of all of its ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import accumulate

from fauxrdma.collectives.direct import Counts, check_counts
from fauxrdma.collectives.hierarchical import check_nodes
from fauxrdma.collectives.plan import Plan, Slice
from fauxrdma.collectives.rail_order import Nodes
from fauxrdma.collectives.stepwise import Local, Move, Receive, Send, Step, step_plan
from fauxrdma.errors import LocalProtocolError

__all__ = ["pxn_all_to_all"]


def pxn_all_to_all(counts: Counts, nodes: Nodes, *, chunk: int, lanes: int, rails: Sequence[int] | None = None) -> Plan:
    """All-to-all of `counts[a][b]` elements from rank a's `input` to rank b's `output`, between nodes by way of the
    local rank on the receiver's rail; `scratch` is where that one keeps what it was handed.

    `rails` is the rail of each rank; default: its place in its node. Raises LocalProtocolError when
    `counts` or `nodes` make no sense.
    """
    n = check_counts(counts)
    places = check_nodes(nodes)
    if len(places) != n:
        raise LocalProtocolError(f"{n} rows of counts for {len(places)} ranks on nodes")

    rail_of = [places[rank][1] for rank in range(n)] if rails is None else rails

    @cache
    def proxy(node: int, target: int) -> int:
        """The rank of `node` that sends to `target`: one on its rail, if the node has any; where there are several,
        they share the targets."""
        mates = [rank for rank in nodes[node] if rail_of[rank] == rail_of[target]] or nodes[node]
        theirs = [rank for rank in nodes[places[target][0]] if rail_of[rank] == rail_of[target]]
        at = theirs.index(target) if mates is not nodes[node] else places[target][1]
        return mates[at % len(mates)]

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
