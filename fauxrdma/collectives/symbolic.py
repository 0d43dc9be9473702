"""Plans executed on symbols instead of numbers, under a finite number of staging slots and any schedule.

`run_symbolically` plays all ranks of a plan with values that remember how they were made: a leaf is
(rank, buffer, element), a reduction is ("op", local, arrived). What comes out proves, for those sizes, that the plan is
correct, in which order it reduces, that it cannot deadlock under the schedule chosen, that every slot is freed once
and never read after, and how many messages and elements each rank really sent.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from fauxrdma.collectives.plan import (
    Copy,
    Free,
    Incoming,
    Outgoing,
    Plan,
    Put,
    Reduce,
    Signal,
    Slice,
    Step,
    Traffic,
    Wait,
)
from fauxrdma.errors import LocalProtocolError

__all__ = ["PlanDefect", "SymbolicResult", "run_symbolically"]

Values = list[Hashable]
Pair = tuple[int, int]


class PlanDefect(LocalProtocolError):
    """A plan deadlocks, misuses a slot or leaves messages behind; the message says which rank at which step."""


@dataclass(slots=True)
class SymbolicResult:
    """Final buffers by rank and name, and what each rank sent."""

    buffers: list[dict[str, Values]]
    traffic: list[Traffic]


@dataclass(slots=True)
class _Edge:
    """Messages from one rank to another: contents by index, and how far the slots have been given back."""

    contents: dict[int, Values] = field(default_factory=dict)
    sent: int = 0
    freed: set[int] = field(default_factory=set)
    given_back: int = 0
    credits_seen: int = 0


class _World:
    def __init__(self, plan: Plan, slots: int, credit_batch: int) -> None:
        self.plan = plan
        self.slots = slots
        self.credit_batch = credit_batch
        n = plan.world_size
        self.steps: list[Sequence[Step]] = [plan.program(rank).steps for rank in range(n)]
        self.position = [0] * n
        self.buffers: list[dict[str, Values]] = [
            {name: [(rank, name, i) for i in range(length)] for name, length in plan.lengths(rank).items()}
            for rank in range(n)
        ]
        self.edges: dict[Pair, _Edge] = {}
        self.prepared: dict[tuple[int, int, int], Values] = {}
        self.forwards: list[tuple[int, Incoming]] = []
        self.sent = [Traffic(0, 0) for _ in range(n)]

    def edge(self, src: int, dst: int) -> _Edge:
        return self.edges.setdefault((src, dst), _Edge())

    def has_slot(self, rank: int, peer: int, index: int) -> bool:
        return index < self.edge(rank, peer).credits_seen + self.slots

    def ready(self, rank: int) -> bool:
        """Whether the next step of `rank` can run now."""
        if self.position[rank] >= len(self.steps[rank]):
            return False
        step = self.steps[rank][self.position[rank]]
        if isinstance(step, Wait):
            return self.edge(step.peer, rank).sent > step.index
        if isinstance(step, Put | Signal):
            return self.has_slot(rank, step.peer, step.index)
        if isinstance(step, Reduce | Copy) and isinstance(step.dst, Outgoing):
            return self.has_slot(rank, step.dst.peer, step.dst.index)
        return True

    def read(self, rank: int, place: Slice | Incoming | Outgoing) -> Values:
        if isinstance(place, Slice):
            buffer = self.buffers[rank][place.buffer]
            values = buffer[place.offset : place.offset + place.count]
        elif isinstance(place, Outgoing):
            values = self.prepared.get((rank, place.peer, place.index), [])
        else:
            edge = self.edge(place.peer, rank)
            if place.index in edge.freed:
                raise self.defect(rank, f"reads message {place.index} from rank {place.peer} after freeing it")
            values = edge.contents.get(place.index, [])
        if len(values) != place.count:
            raise self.defect(rank, f"reads {place.count} elements of {place} but {len(values)} are there")
        return values

    def write(self, rank: int, place: Slice | Outgoing, values: Values) -> None:
        if isinstance(place, Outgoing):
            self.prepared[(rank, place.peer, place.index)] = list(values)
            return
        buffer = self.buffers[rank][place.buffer]
        if place.offset < 0 or place.offset + place.count > len(buffer):
            raise self.defect(rank, f"writes {place}, past the end of a buffer of {len(buffer)} elements")
        buffer[place.offset : place.offset + place.count] = values

    def send(self, rank: int, peer: int, index: int, values: Values) -> None:
        edge = self.edge(rank, peer)
        if index != edge.sent:
            raise self.defect(rank, f"puts message {index} to rank {peer} where {edge.sent} is next")
        edge.contents[index] = list(values)
        edge.sent += 1
        before = self.sent[rank]
        self.sent[rank] = Traffic(before.messages + 1, before.elements + len(values))

    def step(self, rank: int) -> None:
        step = self.steps[rank][self.position[rank]]
        if isinstance(step, Put):
            self.send(rank, step.peer, step.index, self.read(rank, step.src))
            if isinstance(step.src, Incoming):
                self.forwards.append((rank, step.src))
        elif isinstance(step, Signal):
            self.send(rank, step.peer, step.index, [])
        elif isinstance(step, Reduce):
            local, arrived = self.read(rank, step.local), self.read(rank, step.arrived)
            self.write(rank, step.dst, [("op", a, b) for a, b in zip(local, arrived, strict=True)])
        elif isinstance(step, Copy):
            self.write(rank, step.dst, self.read(rank, step.src))
        elif isinstance(step, Wait):
            got = len(self.edge(step.peer, rank).contents[step.index])
            if got != step.count:
                raise self.defect(rank, f"expects {step.count} elements from rank {step.peer}, {got} came")
        elif isinstance(step, Free):
            edge = self.edge(step.peer, rank)
            if step.index in edge.freed:
                raise self.defect(rank, f"frees message {step.index} from rank {step.peer} twice")
            edge.freed.add(step.index)
            self.give_back(step.peer, rank)
        self.position[rank] += 1

    def give_back(self, src: int, dst: int) -> None:
        """Return freed slots as credits, in order, in batches, and not while a forward still reads them."""
        edge = self.edge(src, dst)
        busy = {place.index for rank, place in self.forwards if rank == dst and place.peer == src}
        while edge.given_back in edge.freed and edge.given_back not in busy:
            edge.given_back += 1
        if edge.given_back - edge.credits_seen >= self.credit_batch:
            edge.credits_seen = edge.given_back

    def complete_forward(self, number: int) -> None:
        rank, place = self.forwards.pop(number)
        self.give_back(place.peer, rank)

    def run_in_turns(self) -> None:
        """Go on until nobody can."""
        moved = True
        while moved:
            moved = bool(self.forwards)
            while self.forwards:
                self.complete_forward(0)
            for rank in range(self.plan.world_size):
                while self.ready(rank):
                    self.step(rank)
                    moved = True

    def defect(self, rank: int, what: str) -> PlanDefect:
        return PlanDefect(
            f"{self.plan.name} of {self.plan.world_size}: rank {rank} at step {self.position[rank]} {what}"
        )

    def check_end(self) -> None:
        waiting = [rank for rank in range(self.plan.world_size) if self.position[rank] < len(self.steps[rank])]
        if waiting:
            where = "; ".join(f"rank {r} at {self.steps[r][self.position[r]]}" for r in waiting[:8])
            raise PlanDefect(f"{self.plan.name} deadlocks with {self.slots} slots per peer: {where}")
        for (src, dst), edge in self.edges.items():
            if len(edge.freed) != edge.sent:
                raise PlanDefect(f"{self.plan.name}: {edge.sent} messages {src}->{dst}, but {len(edge.freed)} freed")


def run_symbolically(
    plan: Plan,
    *,
    slots: int,
    credit_batch: int = 1,
    choose: Callable[[int], int] | None = None,
) -> SymbolicResult:
    """Play `plan` to its end and return the symbolic buffers and the counted traffic.

    `slots` staging slots per direction of each pair; credits return in batches of `credit_batch`. `choose(k)` picks
    which of k possible moves comes next (default: each rank in turn goes as far as it can). Raises PlanDefect for a
    deadlock or a misuse.
    """
    world = _World(plan, slots, credit_batch)
    if choose is None:
        world.run_in_turns()
    else:
        _run_as_chosen(world, choose)
    world.check_end()
    return SymbolicResult(world.buffers, world.sent)


def _run_as_chosen(world: _World, choose: Callable[[int], int]) -> None:
    ranks = range(world.plan.world_size)
    while True:
        runnable = [rank for rank in ranks if world.ready(rank)]
        moves = len(runnable) + len(world.forwards)
        if not moves:
            return
        move = choose(moves)
        if move < len(runnable):
            world.step(runnable[move])
        else:
            world.complete_forward(move - len(runnable))
