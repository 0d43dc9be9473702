"""Recursive doubling and halving: all-reduce in log2 n steps.

**Recursive doubling**: in step k each rank exchanges everything it has with the rank whose number differs in bit k, and
both reduce. log2 n steps of the whole buffer: the least latency, the most bytes.

**Halving-doubling** (Rabenseifner; Thakur, Rabenseifner and Gropp 2005): the same partners, but in step k each keeps
one half of what it had and gives the other away (reduce-scatter), then the halves are collected in the reverse order
(all-gather). 2 log2 n steps and 2 (n-1)/n of the buffer: as few bytes as the ring, in fewer steps.

When n is no power of two, the first n - p ranks of odd number (p the power of two below n) are helped by their even
neighbours: those hand over what they have first and get the result last.

Both sides of an exchange reduce the same two values, and IEEE operations commute, so all ranks end with the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator

from fauxrdma.collectives.plan import Plan, Slice
from fauxrdma.collectives.stepwise import Receive, Send, Step, step_plan

__all__ = ["halving_doubling_all_reduce", "recursive_doubling_all_reduce"]

ORDER = "pairs of neighbouring powers of two: (x[0] op x[1]) op (x[2] op x[3]) ..., after folding n - p ranks"


class _Folded:
    """Ranks renumbered to a power of two: `core` of them take part, the others hand over to a neighbour."""

    def __init__(self, world_size: int) -> None:
        self.core = 1 << (world_size.bit_length() - 1)
        self.extra = world_size - self.core

    @property
    def bits(self) -> int:
        return self.core.bit_length() - 1

    def number(self, rank: int) -> int | None:
        """The number of `rank` among those that take part, or None for one that hands over to rank + 1."""
        if rank < 2 * self.extra:
            return rank // 2 if rank % 2 else None
        return rank - self.extra

    def rank(self, number: int) -> int:
        """The rank that has this number."""
        return 2 * number + 1 if number < self.extra else number + self.extra

    def helped(self, rank: int) -> int | None:
        """The rank that hands over to `rank`, if one does."""
        return rank - 1 if rank < 2 * self.extra and rank % 2 else None


def recursive_doubling_all_reduce(count: int, world_size: int, *, chunk: int, lanes: int) -> Plan:
    """All-reduce of `count` elements in place in `data`; each rank sends log2 n times the whole buffer.

    Raises LocalProtocolError for impossible sizes.
    """
    fold = _Folded(world_size)
    whole = Slice("data", 0, count)

    def steps(rank: int) -> Iterator[Step]:
        number, helped = fold.number(rank), fold.helped(rank)
        if fold.extra:
            yield _hand_over(rank, number, helped, whole, final=fold.bits == 0)
        for bit in range(fold.bits):
            if number is None:
                yield []
                continue
            peer = fold.rank(number ^ 1 << bit)
            yield [Send(peer, whole), Receive(peer, whole, reduce=True, final=bit == fold.bits - 1)]
        if fold.extra:
            yield _hand_back(rank, number, helped, whole)

    def sends(rank: int) -> Iterator[int]:
        takes_part = fold.number(rank) is not None
        yield from [count] * (fold.bits if takes_part else 1)
        if fold.helped(rank) is not None:
            yield count

    rounds = fold.bits + (2 if fold.extra else 0)
    return step_plan(
        "all_reduce", "recursive-doubling", world_size, {"data": count},
        rounds=rounds, chunk=chunk, lanes=lanes, order=ORDER, steps=steps, sends=sends,
    )  # fmt: skip


def _hand_over(rank: int, number: int | None, helped: int | None, whole: Slice, final: bool) -> Step:
    if number is None:
        return [Send(rank + 1, whole)]
    return [] if helped is None else [Receive(helped, whole, reduce=True, final=final)]


def _hand_back(rank: int, number: int | None, helped: int | None, whole: Slice) -> Step:
    if number is None:
        return [Receive(rank + 1, whole)]
    return [] if helped is None else [Send(helped, whole)]


def halving_doubling_all_reduce(count: int, world_size: int, *, chunk: int, lanes: int) -> Plan:
    """All-reduce of `count` elements in place in `data`; each of p ranks sends 2 (p-1)/p of the buffer (p the power of
    two that is n or below it). Raises LocalProtocolError for impossible sizes."""
    fold = _Folded(world_size)
    whole = Slice("data", 0, count)

    def halves(number: int) -> Iterator[tuple[int, Slice, Slice]]:
        """(bit, what it keeps, what it gives away) of each step, most significant bit first."""
        start, end = 0, count
        for bit in reversed(range(fold.bits)):
            middle = start + (end - start + 1) // 2
            low, high = Slice("data", start, middle - start), Slice("data", middle, end - middle)
            keeps, gives = (high, low) if number >> bit & 1 else (low, high)
            yield bit, keeps, gives
            start, end = keeps.offset, keeps.offset + keeps.count

    def steps(rank: int) -> Iterator[Step]:
        number, helped = fold.number(rank), fold.helped(rank)
        if fold.extra:
            yield _hand_over(rank, number, helped, whole, final=fold.bits == 0)
        if number is None:
            yield from ([] for _ in range(2 * fold.bits))
        else:
            way = [(fold.rank(number ^ 1 << bit), keeps, gives) for bit, keeps, gives in halves(number)]
            for k, (peer, keeps, gives) in enumerate(way):
                yield [Send(peer, gives), Receive(peer, keeps, reduce=True, final=k == fold.bits - 1)]
            for peer, keeps, gives in reversed(way):
                yield [Send(peer, keeps), Receive(peer, gives)]
        if fold.extra:
            yield _hand_back(rank, number, helped, whole)

    def sends(rank: int) -> Iterator[int]:
        number = fold.number(rank)
        if number is None:
            yield count
            return
        for _, keeps, gives in halves(number):
            yield keeps.count
            yield gives.count
        if fold.helped(rank) is not None:
            yield count

    rounds = 2 * fold.bits + (2 if fold.extra else 0)
    return step_plan(
        "all_reduce", "halving-doubling", world_size, {"data": count},
        rounds=rounds, chunk=chunk, lanes=lanes, order=ORDER, steps=steps, sends=sends,
    )  # fmt: skip
