"""BCube all-reduce: reduce-scatter and all-gather in groups, one digit of the rank at a time.

The rank is written in mixed radix, n = f1 f2 ... fk with each factor at most `base` unless it is prime. In stage i the
ranks that differ only in digit i form a group; each member gives every other its share of what the group still has, and
keeps one (a direct reduce-scatter). Then the stages are undone in reverse order (a direct all-gather). With n = 2^k and
base 2 this is halving-doubling; with one factor it is the direct algorithm; in between it trades steps for messages
(BCube: Guo et al. 2009; gloo's allreduce_bcube). It works for every n; a prime n is one stage.
"""

from __future__ import annotations

from collections.abc import Iterator

from fauxrdma.collectives.partition import Partition
from fauxrdma.collectives.plan import Plan, Slice
from fauxrdma.collectives.stepwise import Receive, Send, Step, step_plan

__all__ = ["bcube_all_reduce", "factors"]


def factors(number: int, base: int) -> list[int]:
    """`number` as a product: as few factors of at most `base` as a greedy choice gives; a prime beyond it stays."""
    out = []
    while number > 1:
        fitting = [f for f in range(2, min(base, number) + 1) if number % f == 0]
        factor = fitting[-1] if fitting else next(f for f in range(2, number + 1) if number % f == 0)
        out.append(factor)
        number //= factor
    return out


def bcube_all_reduce(count: int, world_size: int, *, base: int = 4, chunk: int, lanes: int) -> Plan:
    """All-reduce of `count` elements in place in `data`; each rank sends 2 (n-1)/n of the buffer.

    Raises LocalProtocolError for impossible sizes.
    """
    radix = factors(max(1, world_size), max(2, base))
    strides = [1]
    for factor in radix:
        strides.append(strides[-1] * factor)

    def stages(rank: int) -> Iterator[tuple[int, list[int], list[Slice]]]:
        """(own digit, members of the group by digit, share of each) of every stage."""
        start, length = 0, count
        for stride, factor in zip(strides, radix, strict=False):
            digit = rank // stride % factor
            group = [rank + (other - digit) * stride for other in range(factor)]
            part = Partition(length, factor, -(-length // factor))
            shares = [Slice("data", start + part.offset(i), part.length(i)) for i in range(factor)]
            yield digit, group, shares
            start, length = shares[digit].offset, shares[digit].count

    def steps(rank: int) -> Iterator[Step]:
        way = list(stages(rank))
        for number, (digit, group, shares) in enumerate(way):
            others = [i for i in range(len(group)) if i != digit]
            scatter: Step = [Send(group[i], shares[i]) for i in others]
            last = number == len(way) - 1
            for i in others:
                final = last and i == others[-1]
                scatter.append(Receive(group[i], shares[digit], reduce=True, final=final))
            yield scatter
        for digit, group, shares in reversed(way):
            others = [i for i in range(len(group)) if i != digit]
            yield [
                *(Send(group[i], shares[digit]) for i in others),
                *(Receive(group[i], shares[i]) for i in others),
            ]

    def sends(rank: int) -> Iterator[int]:
        for digit, _, shares in stages(rank):
            yield from (share.count for i, share in enumerate(shares) if i != digit)
            yield from [shares[digit].count] * (len(shares) - 1)

    order = "stage by stage: own value, then those of the group in the order of their digit"
    return step_plan(
        "all_reduce", "bcube", world_size, {"data": count}, rounds=2 * len(radix),
        chunk=chunk, lanes=lanes, order=order, steps=steps, sends=sends,
    )  # fmt: skip
