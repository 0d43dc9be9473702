"""A plan told as rounds: who sends what to whom, and what each rank does with what arrives.

The round of a message is one more than that of the latest message its sender had to wait for before: messages of one
round need not wait for each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fauxrdma.collectives.plan import Copy, Incoming, Outgoing, Plan, Put, Reduce, Signal, Slice, Step, Wait
from fauxrdma.collectives.symbolic import PlanDefect

__all__ = ["SentMessage", "describe_step", "plan_messages"]


@dataclass(frozen=True, slots=True)
class SentMessage:
    """Message `index` from `source` to `target` in round `round` (from 1): `count` elements. `what` names the slice of
    the sender's buffers they come from, or the message that is passed on; `then` says what the receiver does with
    them."""

    round: int
    source: int
    target: int
    index: int
    count: int
    what: str
    then: str


def plan_messages(plan: Plan) -> list[SentMessage]:
    """Every message of a plan, by round, sender, receiver. Raises PlanDefect when ranks wait for ever."""
    n = plan.world_size
    programs = [plan.build(rank).steps for rank in range(n)]
    position, rounds = [0] * n, [0] * n
    prepared: dict[tuple[int, int, int], str] = {}
    uses = [_uses(steps) for steps in programs]
    sent: dict[tuple[int, int, int], SentMessage] = {}
    moved = True
    while moved:
        moved = False
        for rank, steps in enumerate(programs):
            while position[rank] < len(steps):
                step = steps[position[rank]]
                if isinstance(step, Wait):
                    message = sent.get((step.peer, rank, step.index))
                    if message is None:
                        break
                    rounds[rank] = max(rounds[rank], message.round)
                elif isinstance(step, Reduce | Copy) and isinstance(step.dst, Outgoing):
                    source = step.local if isinstance(step, Reduce) else step.src
                    prepared[rank, step.dst.peer, step.dst.index] = _place(source)
                elif isinstance(step, Put | Signal):
                    key = (rank, step.peer, step.index)
                    what = prepared.get(key, "")
                    if isinstance(step, Put) and isinstance(step.src, Incoming):
                        what = _place(step.src)
                    count = step.src.count if isinstance(step, Put) else 0
                    then = ", ".join(uses[step.peer].get((rank, step.index), []))
                    sent[key] = SentMessage(rounds[rank] + 1, rank, step.peer, step.index, count, what, then)
                position[rank] += 1
                moved = True
    waiting = [rank for rank in range(n) if position[rank] < len(programs[rank])]
    if waiting:
        raise PlanDefect(f"this {plan.name} plan never ends: ranks {waiting} wait for each other")
    return sorted(sent.values(), key=lambda m: (m.round, m.source, m.target, m.index))


def _uses(steps: Sequence[Step]) -> dict[tuple[int, int], list[str]]:
    """What a rank does with each message, by (sender, index)."""
    uses: dict[tuple[int, int], list[str]] = {}
    for step in steps:
        if isinstance(step, Reduce):
            arrived, how = step.arrived, f"reduced into {_place(step.dst)}"
            if isinstance(step.dst, Outgoing):
                how = f"reduced with {_place(step.local)}, sent to {step.dst.peer}"
        elif isinstance(step, Copy) and isinstance(step.src, Incoming):
            arrived, how = step.src, f"to {_place(step.dst)}"
        elif isinstance(step, Put) and isinstance(step.src, Incoming):
            arrived, how = step.src, f"sent to {step.peer}"
        else:
            continue
        uses.setdefault((arrived.peer, arrived.index), []).append(how)
    return uses


def _place(place: Slice | Outgoing | Incoming) -> str:
    if isinstance(place, Slice):
        return f"{place.buffer}[{place.offset}:{place.offset + place.count}]"
    if isinstance(place, Incoming):
        return f"message {place.index} from {place.peer}"
    return f"message {place.index} to {place.peer}"


def describe_step(step: Step) -> str:
    """A step in words."""
    if isinstance(step, Put):
        what = "" if isinstance(step.src, Outgoing) else f" with {_place(step.src)}"
        return f"put message {step.index} to {step.peer}{what}, {step.src.count} elements"
    if isinstance(step, Signal):
        return f"signal {step.peer} (message {step.index})"
    if isinstance(step, Wait):
        return f"wait for message {step.index} from {step.peer}, {step.count} elements"
    if isinstance(step, Reduce):
        final = ", final" if step.final else ""
        return f"{_place(step.dst)} = {_place(step.local)} op {_place(step.arrived)}{final}"
    if isinstance(step, Copy):
        return f"{_place(step.dst)} = {_place(step.src)}"
    return f"free message {step.index} from {step.peer}"
