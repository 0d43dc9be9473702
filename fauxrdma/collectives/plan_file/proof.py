"""Whether the plan of a file does what its operation promises: played on symbols, chunk by chunk, before it is used.

The plan is executed with so many elements per chunk that every step needs more messages than there are staging slots:
what passes cannot deadlock for any size. Then each chunk must have become what the operation says, on every rank; a
reduction must have every rank's value once, and the same bits wherever it ends.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

from fauxrdma.collectives.plan import Plan
from fauxrdma.collectives.plan_file.expansion import Expanded, FileCopy, FileMove, FileSlice
from fauxrdma.collectives.symbolic import PlanDefect, run_symbolically

__all__ = ["mark_final_reductions", "prove"]

Leaf = tuple[int, str, int]


def mark_final_reductions(expanded: Expanded) -> None:
    """Find the receives that complete a reduction: after those `avg` divides.

    Values are followed as sets of the ranks in them. Ranks take turns as messages allow. Raises ConfigError, with the
    place in the file, when ranks wait for each other for ever, and when a value would be reduced in twice.
    """
    _Contributions(expanded).run()


class _Contributions:
    def __init__(self, expanded: Expanded) -> None:
        self._expanded = expanded
        self._sets: list[dict[str, list[frozenset[int]]]] = [
            {name: [frozenset([rank])] * length for name, length in expanded.lengths.items()}
            for rank in range(expanded.world_size)
        ]
        self._flying: dict[tuple[int, int], list[list[frozenset[int]]]] = {}
        self._at = [(0, False)] * expanded.world_size  # step, and whether its sends are out

    def run(self) -> None:
        ranks = range(self._expanded.world_size)
        while any(self._advance(rank) for rank in ranks):
            pass
        for rank in ranks:
            step, _ = self._at[rank]
            if step < len(self._expanded.steps[rank]):
                move = self._missing(rank, step)
                raise self._expanded.file.problem(
                    move.loc,
                    f"deadlock: rank {rank} waits here for rank {move.peer}, which waits for a rank that waits for it",
                )

    def _advance(self, rank: int) -> bool:
        moved = False
        steps = self._expanded.steps[rank]
        while (at := self._at[rank])[0] < len(steps):
            step = steps[at[0]]
            if not at[1]:
                self._send(rank, step)
                self._at[rank] = (at[0], True)
                moved = True
            if self._missing_move(rank, step) is not None:
                return moved
            self._receive(rank, step)
            self._at[rank] = (at[0] + 1, False)
            moved = True
        return moved

    def _cells(self, rank: int, piece: FileSlice) -> list[frozenset[int]]:
        return self._sets[rank][piece.buffer][piece.first : piece.end]

    def _send(self, rank: int, step: list[FileMove | FileCopy]) -> None:
        for move in step:
            if isinstance(move, FileCopy):
                self._sets[rank][move.target.buffer][move.target.first : move.target.end] = self._cells(
                    rank, move.source
                )
        for move in step:
            if isinstance(move, FileMove) and move.sends and move.slice.first != move.slice.end:
                self._flying.setdefault((rank, move.peer), []).append(self._cells(rank, move.slice))

    def _missing_move(self, rank: int, step: list[FileMove | FileCopy]) -> FileMove | None:
        needed: dict[int, int] = {}
        for move in step:
            if isinstance(move, FileMove) and not move.sends and move.slice.first != move.slice.end:
                needed[move.peer] = needed.get(move.peer, 0) + 1
                if len(self._flying.get((move.peer, rank), ())) < needed[move.peer]:
                    return move
        return None

    def _missing(self, rank: int, step: int) -> FileMove:
        move = self._missing_move(rank, self._expanded.steps[rank][step])
        assert move is not None
        return move

    def _receive(self, rank: int, step: list[FileMove | FileCopy]) -> None:
        everyone = frozenset(range(self._expanded.world_size))
        for move in step:
            if not isinstance(move, FileMove) or move.sends or move.slice.first == move.slice.end:
                continue
            arrived = self._flying[move.peer, rank].pop(0)
            cells = self._sets[rank][move.slice.buffer]
            if move.reduce:
                twice = [a & b for a, b in zip(cells[move.slice.first : move.slice.end], arrived, strict=True) if a & b]
                if twice:
                    raise self._expanded.file.problem(
                        move.loc,
                        f"rank {rank} would reduce in what came from rank {min(twice[0])} a second time",
                    )
                arrived = [a | b for a, b in zip(cells[move.slice.first : move.slice.end], arrived, strict=True)]
                complete = [cell == everyone for cell in arrived]
                move.final = all(complete)
                if any(complete) and not move.final:
                    raise self._expanded.file.problem(
                        move.loc, "some chunks of this slice are complete now and others are not: take two moves"
                    )
            cells[move.slice.first : move.slice.end] = arrived


def prove(expanded: Expanded, plan: Plan, per_chunk: int, root: int, slots: int) -> None:
    """Play `plan`, whose chunks have `per_chunk` elements, on symbols. Raises ConfigError, naming the file: it
    deadlocks with `slots` staging slots, or a rank ends with something else than the operation promises."""
    file = expanded.file
    try:
        result = run_symbolically(plan, slots=slots, credit_batch=-(-slots // 2))
    except PlanDefect as defect:
        raise file.problem(
            ("steps",),
            f"{defect}. Ranks that send much to each other must do so and receive in one step, not in two",
        ) from None
    values = _Values(expanded.world_size)
    agreed: dict[int, int] = {}
    for rank, buffer, element, wanted in _promises(expanded, per_chunk, root):
        value = result.buffers[rank][buffer][element]
        where = f"{buffer}[{element // per_chunk}] of rank {rank}"
        if isinstance(wanted, tuple):
            if value != wanted:
                ends, promised = _told(value, per_chunk), _told(wanted, per_chunk)
                raise file.problem(("steps",), f"{where} ends as {ends}, not as {promised}")
        elif not values.is_reduction(value, "input" if buffer == "output" else buffer, wanted):
            ends = _told(value, per_chunk)
            raise file.problem(("steps",), f"{where} ends as {ends}: not the value of every rank once")
        elif buffer == "data" and agreed.setdefault(element, values.number(value)) != values.number(value):
            raise file.problem(
                ("steps",), f"{where} is reduced in another order than on rank 0: the ranks would have different bits"
            )


class _Values:
    """Symbolic values by number: equal ones, the two sides of a reduction in either order, have one number. Operations
    commute to the bit, so equal numbers are equal bits. A value is looked at once, however many ranks have it."""

    def __init__(self, world_size: int) -> None:
        self._everyone = (1 << world_size) - 1
        self._number_of: dict[int, int] = {}  # by identity
        self._known: dict[Hashable, int] = {}
        self._about: list[tuple[int, str, int] | None] = []

    def number(self, value: Any) -> int:
        """The number of a value."""
        found = self._number_of.get(id(value))
        if found is None:
            found = self._number_of[id(value)] = self._intern(value)
        return found

    def _intern(self, value: Any) -> int:
        if value[0] != "op":
            rank, buffer, element = value
            return self._keep(value, (1 << rank, buffer, element))
        one, other = sorted((self.number(value[1]), self.number(value[2])))
        first, second = self._about[one], self._about[other]
        about = None
        if first is not None and second is not None and first[1:] == second[1:] and not first[0] & second[0]:
            about = (first[0] | second[0], *first[1:])
        return self._keep((one, other), about)

    def _keep(self, key: Hashable, about: tuple[int, str, int] | None) -> int:
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = len(self._about)
            self._about.append(about)
        return known

    def is_reduction(self, value: Any, buffer: str, element: int) -> bool:
        """Whether `value` has this element of every rank in it, each once, and nothing else."""
        return self._about[self.number(value)] == (self._everyone, buffer, element)


def _promises(expanded: Expanded, per_chunk: int, root: int) -> Iterator[tuple[int, str, int, Any]]:
    """(rank, buffer, element, what it must end as): the leaf of a value that is handed on, or for a reduction the
    element of every rank that must be in it."""
    n, operation = expanded.world_size, expanded.file.operation
    block = expanded.chunks * per_chunk
    for rank in range(n):
        for element in range(block):
            if operation == "all_reduce" or (operation == "reduce" and rank == root):
                yield rank, "data", element, element
            elif operation == "broadcast":
                yield rank, "data", element, (root, "data", element)
            elif operation == "reduce_scatter":
                yield rank, "output", element, rank * block + element
            for source in range(n):
                if operation == "all_gather":
                    yield rank, "output", source * block + element, (source, "input", element)
                elif operation == "all_to_all":
                    yield rank, "output", source * block + element, (source, "input", rank * block + element)


def _leaves(value: Any) -> Iterator[Leaf]:
    if value[0] == "op":
        yield from _leaves(value[1])
        yield from _leaves(value[2])
    else:
        yield value


def _told(value: Any, per_chunk: int) -> str:
    leaves = sorted(_leaves(value))
    words = [f"rank {rank}'s {buffer}[{element // per_chunk}]" for rank, buffer, element in leaves[:6]]
    return " + ".join(words) + (" + ..." if len(leaves) > 6 else "")
