"""Everybody to everybody: all-to-all, gather, scatter, all-gather and reduce-scatter without intermediaries.

**Pairwise** takes n - 1 steps; in step k rank r sends to r + k and receives from r - k (modulo n), or, when n is a
power of two, exchanges with r xor k. **Direct** is the same messages in one step: all queue pairs at once, and whatever
congestion that makes (an incast of n - 1 senders at each receiver).

Counts may differ from pair to pair: `counts[a][b]` elements from rank a to rank b. Inputs lie in the order of the ranks
they go to, outputs in the order of those they come from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from fauxrdma.collectives.plan import Plan, Slice
from fauxrdma.collectives.stepwise import Local, Receive, Send, Step, step_plan
from fauxrdma.errors import LocalProtocolError

__all__ = ["Counts", "all_to_all", "check_counts", "direct_all_gather", "direct_reduce_scatter", "gather", "scatter"]

Counts = Sequence[Sequence[int]]


def _starts(counts: Sequence[int]) -> list[int]:
    return [0, *accumulate(counts)]


def _partners(rank: int, world_size: int, k: int) -> tuple[int, int]:
    """Whom `rank` sends to and receives from in step k of a pairwise exchange."""
    if world_size & (world_size - 1) == 0:
        return rank ^ k, rank ^ k
    return (rank + k) % world_size, (rank - k) % world_size


def _exchange(rank: int, world_size: int, pairwise: bool, step_of: dict[int, Step]) -> Iterator[Step]:
    """The steps 1..n-1 one by one, or all in one."""
    if pairwise:
        yield from (step_of[k] for k in range(1, world_size))
    elif world_size > 1:
        sends = [m for k in range(1, world_size) for m in step_of[k] if isinstance(m, Send)]
        yield [*sends, *(m for k in range(1, world_size) for m in step_of[k] if isinstance(m, Receive))]


def check_counts(counts: Counts) -> int:
    """The number of ranks. Raises LocalProtocolError when `counts` is not square or has negative entries."""
    n = len(counts)
    if any(len(row) != n for row in counts) or any(count < 0 for row in counts for count in row):
        raise LocalProtocolError(f"counts must be {n} rows of {n} numbers of elements, none negative")
    return n


def all_to_all(counts: Counts, *, chunk: int, lanes: int, pairwise: bool = True) -> Plan:
    """All-to-all: `counts[a][b]` elements of rank a's `input` become part of rank b's `output`.

    Raises LocalProtocolError when `counts` is not square or has negative entries.
    """
    n = check_counts(counts)
    columns = [[row[b] for row in counts] for b in range(n)]

    def steps(rank: int) -> Iterator[Step]:
        out, into = _starts(counts[rank]), _starts(columns[rank])

        def here(peer: int) -> Slice:
            return Slice("input", out[peer], counts[rank][peer])

        def there(peer: int) -> Slice:
            return Slice("output", into[peer], counts[peer][rank])

        yield [Local(there(rank), here(rank))]
        step_of: dict[int, Step] = {}
        for k in range(1, n):
            to, source = _partners(rank, n, k)
            step_of[k] = [Send(to, here(to)), Receive(source, there(source))]
        yield from _exchange(rank, n, pairwise, step_of)

    def sends(rank: int) -> Iterator[int]:
        yield from (count for peer, count in enumerate(counts[rank]) if peer != rank)

    buffers = {"input": [sum(row) for row in counts], "output": [sum(column) for column in columns]}
    return step_plan(
        "all_to_all", "pairwise" if pairwise else "direct", n, buffers, rounds=_rounds(n, pairwise),
        chunk=chunk, lanes=lanes, order="nothing is reduced", steps=steps, sends=sends,
    )  # fmt: skip


def _rounds(world_size: int, pairwise: bool) -> int:
    return world_size - 1 if pairwise else min(1, world_size - 1)


def direct_all_gather(counts: Sequence[int], *, chunk: int, lanes: int, pairwise: bool = False) -> Plan:
    """All-gather: rank r's `input` has `counts[r]` elements, `output` receives every rank's, in rank order.

    Each rank sends its elements n - 1 times. Raises LocalProtocolError for negative counts.
    """
    n = len(counts)
    starts = _starts(counts)

    def steps(rank: int) -> Iterator[Step]:
        mine = Slice("input", 0, counts[rank])
        yield [Local(Slice("output", starts[rank], counts[rank]), mine)]
        step_of: dict[int, Step] = {}
        for k in range(1, n):
            to, source = _partners(rank, n, k)
            step_of[k] = [Send(to, mine), Receive(source, Slice("output", starts[source], counts[source]))]
        yield from _exchange(rank, n, pairwise, step_of)

    def sends(rank: int) -> Iterator[int]:
        yield from [counts[rank]] * (n - 1)

    return step_plan(
        "all_gather", "pairwise" if pairwise else "direct", n, {"input": list(counts), "output": starts[-1]},
        rounds=_rounds(n, pairwise), chunk=chunk, lanes=lanes, order="nothing is reduced", steps=steps, sends=sends,
    )  # fmt: skip


def direct_reduce_scatter(counts: Sequence[int], *, chunk: int, lanes: int, pairwise: bool = True) -> Plan:
    """Reduce-scatter: `input` holds a block of `counts[r]` elements for every rank r, `output` receives this rank's
    block reduced. Each rank sends every block but its own. Raises LocalProtocolError for negative counts."""
    n = len(counts)
    starts = _starts(counts)

    def steps(rank: int) -> Iterator[Step]:
        mine = Slice("output", 0, counts[rank])
        yield [Local(mine, Slice("input", starts[rank], counts[rank]))]
        step_of: dict[int, Step] = {}
        for k in range(1, n):
            to, source = _partners(rank, n, k)
            step_of[k] = [
                Send(to, Slice("input", starts[to], counts[to])),
                Receive(source, mine, reduce=True, final=k == n - 1),
            ]
        yield from _exchange(rank, n, pairwise, step_of)

    def sends(rank: int) -> Iterator[int]:
        yield from (count for peer, count in enumerate(counts) if peer != rank)

    order = "own value first, then the peers' in the order of the exchange"
    return step_plan(
        "reduce_scatter", "pairwise" if pairwise else "direct", n, {"input": starts[-1], "output": list(counts)},
        rounds=_rounds(n, pairwise), chunk=chunk, lanes=lanes, order=order, steps=steps, sends=sends,
    )  # fmt: skip


def gather(counts: Sequence[int], root: int, *, chunk: int, lanes: int) -> Plan:
    """Gather: the root's `output` receives the `counts[r]` elements of every rank's `input`, in rank order; `output`
    is empty elsewhere. Each rank but the root sends once, straight to it. Raises LocalProtocolError for negative
    counts."""
    n = len(counts)
    starts = _starts(counts)

    def steps(rank: int) -> Iterator[Step]:
        mine = Slice("input", 0, counts[rank])
        if rank != root:
            yield [Send(root, mine)]
            return
        yield [
            Local(Slice("output", starts[root], counts[root]), mine),
            *(Receive(peer, Slice("output", starts[peer], counts[peer])) for peer in range(n) if peer != root),
        ]

    def sends(rank: int) -> Iterator[int]:
        if rank != root:
            yield counts[rank]

    output = [starts[-1] if rank == root else 0 for rank in range(n)]
    return step_plan(
        "gather", "direct", n, {"input": list(counts), "output": output}, rounds=min(1, n - 1),
        chunk=chunk, lanes=lanes, order="nothing is reduced", steps=steps, sends=sends,
    )  # fmt: skip


def scatter(counts: Sequence[int], root: int, *, chunk: int, lanes: int) -> Plan:
    """Scatter: rank r's `output` receives `counts[r]` elements of the root's `input`, which lie in rank order; `input`
    is empty elsewhere. The root sends each its part. Raises LocalProtocolError for negative counts."""
    n = len(counts)
    starts = _starts(counts)

    def steps(rank: int) -> Iterator[Step]:
        mine = Slice("output", 0, counts[rank])
        if rank != root:
            yield [Receive(root, mine)]
            return
        yield [
            Local(mine, Slice("input", starts[root], counts[root])),
            *(Send(peer, Slice("input", starts[peer], counts[peer])) for peer in range(n) if peer != root),
        ]

    def sends(rank: int) -> Iterator[int]:
        if rank == root:
            yield from (count for peer, count in enumerate(counts) if peer != root)

    source = [starts[-1] if rank == root else 0 for rank in range(n)]
    return step_plan(
        "scatter", "direct", n, {"input": source, "output": list(counts)}, rounds=min(1, n - 1),
        chunk=chunk, lanes=lanes, order="nothing is reduced", steps=steps, sends=sends,
    )  # fmt: skip
