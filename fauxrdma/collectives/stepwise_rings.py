"""Rings made of steps: the all-reduce that goes both ways round, the uneven all-gather, and the long broadcast.

**Bidirectional ring**: a full-duplex link carries as much in each direction, and a ring uses the cable to one neighbour
for sending and that to the other for receiving. Halving the buffer and sending the halves in opposite directions uses
both directions of both. On a fabric where every rank has one cable, in and out are busy anyway and nothing is gained.

**Scatter and all-gather** (van de Geijn): a broadcast in which the root sends each rank its part, and the ring passes
the parts on. Each rank sends about twice the buffer at most, whatever n, where a tree's root sends it log2 n times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from fauxrdma.collectives.partition import Partition
from fauxrdma.collectives.plan import Plan, Slice
from fauxrdma.collectives.stepwise import Local, Receive, Send, Step, step_plan

__all__ = ["bidirectional_ring_all_reduce", "scatter_all_gather_broadcast", "uneven_ring_all_gather"]


def _blocks(start: int, count: int, n: int) -> list[Slice]:
    part = Partition(count, n, -(-count // n))
    return [Slice("data", start + part.offset(i), part.length(i)) for i in range(n)]


def bidirectional_ring_all_reduce(count: int, world_size: int, *, chunk: int, lanes: int) -> Plan:
    """All-reduce of `count` elements in place in `data`; each rank sends (n-1)/n of it either way.

    Raises LocalProtocolError for impossible sizes.
    """
    n = world_size
    half = (count + 1) // 2
    # (towards which neighbour, blocks): in direction d, block b starts at rank b - d and ends, complete, at rank b.
    ways = ((1, _blocks(0, half, n)), (-1, _blocks(half, count - half, n))) if n > 0 else ()

    def steps(rank: int) -> Iterator[Step]:
        for k in range(n - 1):
            step: Step = []
            for way, blocks in ways:
                step.append(Send((rank + way) % n, blocks[(rank - (k + 1) * way) % n]))
            for way, blocks in ways:
                mine = blocks[(rank - (k + 2) * way) % n]
                step.append(Receive((rank - way) % n, mine, reduce=True, final=k == n - 2))
            yield step
        for k in range(n - 1):
            step = []
            for way, blocks in ways:
                step.append(Send((rank + way) % n, blocks[(rank - k * way) % n]))
            for way, blocks in ways:
                step.append(Receive((rank - way) % n, blocks[(rank - (k + 1) * way) % n]))
            yield step

    def sends(rank: int) -> Iterator[int]:
        for way, blocks in ways:
            for k in range(n - 1):
                yield blocks[(rank - (k + 1) * way) % n].count
                yield blocks[(rank - k * way) % n].count

    order = "first half: block b is ((x[b+1] op x[b+2]) op ...) op x[b]; second half the other way round"
    return step_plan(
        "all_reduce", "bidirectional-ring", n, {"data": count}, rounds=2 * max(0, n - 1),
        chunk=chunk, lanes=lanes, order=order, steps=steps, sends=sends,
    )  # fmt: skip


def uneven_ring_all_gather(counts: Sequence[int], *, chunk: int, lanes: int) -> Plan:
    """All-gather around the ring: rank r's `input` has `counts[r]` elements, `output` receives every rank's in order.

    Each rank sends all but its right neighbour's. Raises LocalProtocolError for negative counts.
    """
    n = len(counts)
    starts = [0, *accumulate(counts)]
    blocks = [Slice("output", at, count) for at, count in zip(starts, counts, strict=False)]

    def steps(rank: int) -> Iterator[Step]:
        yield [Local(blocks[rank], Slice("input", 0, counts[rank]))]
        for k in range(n - 1):
            yield [
                Send((rank - 1) % n, blocks[(rank + k) % n]),
                Receive((rank + 1) % n, blocks[(rank + k + 1) % n]),
            ]

    def sends(rank: int) -> Iterator[int]:
        yield from (counts[(rank + k) % n] for k in range(n - 1))

    return step_plan(
        "all_gather", "ring", n, {"input": list(counts), "output": starts[-1]}, rounds=max(0, n - 1),
        chunk=chunk, lanes=lanes, order="nothing is reduced", steps=steps, sends=sends,
    )  # fmt: skip


def scatter_all_gather_broadcast(count: int, world_size: int, root: int, *, chunk: int, lanes: int) -> Plan:
    """Broadcast of the root's `count` elements of `data`: scattered, then passed around the ring.

    Raises LocalProtocolError for impossible sizes.
    """
    n = world_size
    blocks = _blocks(0, count, max(1, n))

    def steps(rank: int) -> Iterator[Step]:
        others = [r for r in range(n) if r != root]
        if rank == root:
            yield [Send(peer, blocks[peer]) for peer in others]
        else:
            yield [Receive(root, blocks[rank])]
        for k in range(n - 1):
            left, right = (rank - 1) % n, (rank + 1) % n
            step: Step = []
            if left != root:
                step.append(Send(left, blocks[(rank + k) % n]))
            if rank != root:
                step.append(Receive(right, blocks[(rank + k + 1) % n]))
            yield step

    def sends(rank: int) -> Iterator[int]:
        if rank == root:
            yield from (blocks[peer].count for peer in range(n) if peer != root)
        if n > 1 and (rank - 1) % n != root:
            yield from (blocks[(rank + k) % n].count for k in range(n - 1))

    return step_plan(
        "broadcast", "scatter-all-gather", n, {"data": count}, rounds=n if n > 1 else 0,
        chunk=chunk, lanes=lanes, order="nothing is reduced", steps=steps, sends=sends,
    )  # fmt: skip
