"""Plans put to use elsewhere: played by other ranks, over a part of larger buffers, or one after another.

This is how a collective is cut over channels (each the same algorithm over a slice of the data, around another ring),
and how hierarchical algorithms run an algorithm for all ranks among the ranks of one rail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from fauxrdma.collectives.plan import (
    Copy,
    Free,
    Incoming,
    Outgoing,
    Plan,
    Program,
    Put,
    Reduce,
    Signal,
    Slice,
    Step,
    Traffic,
    Wait,
)
from fauxrdma.errors import LocalProtocolError

__all__ = ["Region", "embedded", "embedded_plan", "in_sequence"]

Sent = TypeVar("Sent", Outgoing, Put, Signal)
Received = TypeVar("Received", Incoming, Wait, Free)


@dataclass(frozen=True, slots=True)
class Region:
    """Where a buffer of a plan lies: block b, of `block` elements, begins at element `starts[b]` of `buffer`."""

    buffer: str
    block: int
    starts: Sequence[int]

    def find(self, piece: Slice) -> Slice:
        """The slice of the larger buffer. Raises LocalProtocolError for one that is not within one block."""
        number, within = divmod(piece.offset, self.block) if self.block else (0, 0)
        if within + piece.count > self.block:
            raise LocalProtocolError(f"{piece} is not within one block of {self.block} elements: it cannot be moved")
        if number == len(self.starts):  # nothing, at the very end
            number, within = number - 1, self.block
        return Slice(self.buffer, self.starts[number] + within, piece.count)


@dataclass(frozen=True, slots=True)
class _Rewriter:
    """Renames peers, renumbers messages and moves slices."""

    peer: Callable[[int], int]
    sent_before: Mapping[int, int]
    received_before: Mapping[int, int]
    move: Callable[[Slice], Slice]

    def step(self, step: Step) -> Step:
        if isinstance(step, Put):
            return replace(self._sent(step), src=self._staged(step.src))
        if isinstance(step, Signal):
            return self._sent(step)
        if isinstance(step, Wait):
            return self._received(step)
        if isinstance(step, Free):
            return self._received(step)
        if isinstance(step, Reduce):
            arrived = self._received(step.arrived)
            return Reduce(self._target(step.dst), self.move(step.local), arrived, step.final)
        source = self.move(step.src) if isinstance(step.src, Slice) else self._staged(step.src)
        return Copy(self._target(step.dst), source)

    def _sent(self, message: Sent) -> Sent:
        index = message.index + self.sent_before.get(message.peer, 0)
        return replace(message, peer=self.peer(message.peer), index=index)

    def _received(self, message: Received) -> Received:
        index = message.index + self.received_before.get(message.peer, 0)
        return replace(message, peer=self.peer(message.peer), index=index)

    def _staged(self, place: Outgoing | Incoming) -> Outgoing | Incoming:
        return self._sent(place) if isinstance(place, Outgoing) else self._received(place)

    def _target(self, place: Slice | Outgoing) -> Slice | Outgoing:
        return self.move(place) if isinstance(place, Slice) else self._sent(place)


def embedded(program: Program, ranks: Sequence[int], regions: Mapping[str, Region]) -> Program:
    """`program` with rank p played by `ranks[p]`, its buffers lying in `regions` (by the plan's name for them)."""

    def move(piece: Slice) -> Slice:
        return regions[piece.buffer].find(piece)

    rewriter = _Rewriter(ranks.__getitem__, {}, {}, move)
    return Program(
        tuple(map(rewriter.step, program.steps)),
        {ranks[peer]: count for peer, count in program.outgoing.items()},
        {ranks[peer]: count for peer, count in program.incoming.items()},
    )


def in_sequence(programs: Iterable[Program]) -> Program:
    """One rank's programs, one after the other: messages to a peer are numbered on."""
    steps: list[Step] = []
    outgoing: Counter[int] = Counter()
    incoming: Counter[int] = Counter()
    for program in programs:
        rewriter = _Rewriter(lambda peer: peer, outgoing, incoming, lambda piece: piece)
        steps += map(rewriter.step, program.steps)
        outgoing.update(program.outgoing)
        incoming.update(program.incoming)
    return Program(tuple(steps), dict(outgoing), dict(incoming))


def embedded_plan(
    plan: Plan,
    ranks: Sequence[int],
    buffers: Mapping[str, int | Sequence[int]],
    regions: Callable[[int], Mapping[str, Region]],
) -> Plan:
    """`plan` with rank p played by `ranks[p]`, over `buffers`; `regions(rank)`: where the plan's buffers lie in them.

    `ranks` holds every rank once. Raises LocalProtocolError otherwise.
    """
    if sorted(ranks) != list(range(plan.world_size)):
        raise LocalProtocolError(f"{list(ranks)} is not an order of the {plan.world_size} ranks of {plan.name}")
    position = {rank: at for at, rank in enumerate(ranks)}

    def build(rank: int) -> Program:
        return embedded(plan.program(position[rank]), ranks, regions(rank))

    def declare(rank: int) -> Traffic:
        return plan.traffic(position[rank])

    return replace(plan, buffers=buffers, build=build, declare=declare)
