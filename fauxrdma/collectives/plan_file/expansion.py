"""A plan file written out for so many ranks: the moves of each rank, in chunks, checked against each other.

Ranks and chunks are counted around: `rank + 1` is rank 0 for the last one, `data[chunks]` is `data[0]`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fauxrdma.collectives.plan_file.expressions import Expression
from fauxrdma.collectives.plan_file.form import Block, CopyForm, MoveForm, PlanFile, SliceForm, StepForm
from fauxrdma.errors import ConfigError
from fauxrdma.topology.yaml_scan import Loc

__all__ = ["Expanded", "FileCopy", "FileMove", "FileSlice", "expand"]

_MOST_MOVES = 2_000_000
PER_RANK = {"all_gather": "output", "reduce_scatter": "input"}
"""Operations in which one buffer has a block for every rank; in an all_to_all both have."""


@dataclass(frozen=True, slots=True)
class FileSlice:
    """Chunks `first` to `end` (exclusive) of a buffer."""

    buffer: str
    first: int
    end: int

    def overlaps(self, other: FileSlice) -> bool:
        """Whether the two have a chunk in common."""
        return self.buffer == other.buffer and self.first < other.end and other.first < self.end


@dataclass(slots=True)
class FileMove:
    """A send to, or receive from, `peer`. `final`: nothing is reduced into these chunks afterwards."""

    sends: bool
    peer: int
    slice: FileSlice
    reduce: bool
    loc: Loc
    final: bool = False


@dataclass(frozen=True, slots=True)
class FileCopy:
    """A copy within the rank."""

    target: FileSlice
    source: FileSlice
    loc: Loc


@dataclass
class Expanded:
    """The steps of every rank. `lengths` says how many chunks each buffer has."""

    file: PlanFile
    world_size: int
    chunks: int
    lengths: Mapping[str, int]
    steps: list[list[list[FileMove | FileCopy]]] = field(default_factory=list)


def expand(file: PlanFile, world_size: int, root: int) -> Expanded:
    """The moves of all ranks. Raises ConfigError with the place in the file: a number of ranks it is not for, a slice
    that does not exist, a send without its receive, moves of one step that are in each other's way."""
    n = world_size
    if file.ranks is not None and n not in file.ranks:
        raise file.problem(("ranks",), f"this plan is for {' or '.join(map(str, file.ranks))} ranks, not for {n}")
    chunks = _number(file, file.chunks, {"n": n}, ("chunks",), 1)
    scratch = _number(file, file.scratch, {"n": n, "chunks": chunks}, ("scratch",), 0)
    lengths = dict.fromkeys(("data", "input", "output"), chunks)
    for buffer in ("input", "output"):
        if file.operation == "all_to_all" or PER_RANK.get(file.operation) == buffer:
            lengths[buffer] = n * chunks
    for key in file.steps:
        if key >= n:
            raise file.problem(("steps", key), f"there is no rank {key} among {n}")
    expanded = Expanded(file, n, chunks, {**lengths, "scratch": scratch})
    budget = _MOST_MOVES
    for rank in range(n):
        program = file.steps.get(rank, file.steps.get(-1, ()))
        writer = _Rank(expanded, rank, {"rank": rank, "n": n, "root": root, "chunks": chunks})
        steps = []
        for step in writer.steps(program, {}):
            budget -= len(step)
            if budget < 0:
                raise file.problem(("steps",), f"more than {_MOST_MOVES} moves for {n} ranks: fewer repeats or chunks")
            steps.append(step)
        expanded.steps.append(steps)
    _match(expanded)
    return expanded


def _number(file: PlanFile, expression: Expression, names: Mapping[str, int], loc: Loc, least: int) -> int:
    try:
        value = expression.value(names)
    except ConfigError as error:
        raise file.problem(loc, str(error)) from None
    if value < least:
        raise file.problem(loc, f"{expression.text!r} is {value}: it must be at least {least}")
    return value


class _Rank:
    def __init__(self, expanded: Expanded, rank: int, names: dict[str, int]) -> None:
        self._expanded = expanded
        self._file = expanded.file
        self._rank = rank
        self._names = names

    def steps(self, program: Sequence[StepForm | Block], loops: dict[str, int]) -> Iterator[list[FileMove | FileCopy]]:
        for step in program:
            if isinstance(step, StepForm):
                moves = [made for move in step.moves if (made := self._move(move, loops)) is not None]
                if moves:
                    self._check_step(moves)
                    yield moves
            elif step.when is None or self._value(step.when, loops, (*step.loc, "if")):
                times = self._value(step.times, loops, (*step.loc, "repeat"))
                if times > _MOST_MOVES:
                    raise self._file.problem((*step.loc, "repeat"), f"{times} times is too often")
                for turn in range(times):
                    yield from self.steps(step.steps, {**loops, step.name: turn})

    def _value(self, expression: Expression, loops: Mapping[str, int], loc: Loc) -> int:
        try:
            return expression.value({**self._names, **loops})
        except ConfigError as error:
            raise self._file.problem(loc, f"{error} (rank {self._rank})") from None

    def _move(self, move: MoveForm | CopyForm, loops: Mapping[str, int]) -> FileMove | FileCopy | None:
        if move.when is not None and not self._value(move.when, loops, (*move.loc, "if")):
            return None
        if isinstance(move, CopyForm):
            source, target = self._slice(move.source, loops), self._slice(move.target, loops)
            if source.end - source.first != target.end - target.first:
                raise self._file.problem(
                    move.loc, f"rank {self._rank} copies {_told(source)} into {_told(target)}: of unequal length"
                )
            return FileCopy(target, source, move.loc)
        peer = self._value(move.peer, loops, move.loc) % self._expanded.world_size
        if peer == self._rank:
            raise self._file.problem(
                move.loc, f"rank {peer} would {'send to' if move.sends else 'receive from'} itself: use copy and into"
            )
        return FileMove(move.sends, peer, self._slice(move.slice, loops), move.reduce, move.loc)

    def _slice(self, form: SliceForm, loops: Mapping[str, int]) -> FileSlice:
        length = self._expanded.lengths[form.buffer]
        if form.first is None:
            return FileSlice(form.buffer, 0, length)
        first = self._value(form.first, loops, form.loc)
        if form.end is None:
            if not length:
                raise self._file.problem(form.loc, f"{form.buffer} has no chunks")
            return FileSlice(form.buffer, first % length, first % length + 1)
        end = self._value(form.end, loops, form.loc)
        if not 0 <= first <= end <= length:
            raise self._file.problem(
                form.loc, f"{form.buffer}[{first}:{end}] on rank {self._rank}: {form.buffer} has chunks 0 to {length}"
            )
        return FileSlice(form.buffer, first, end)

    def _check_step(self, moves: list[FileMove | FileCopy]) -> None:
        """What is sent in a step is what was there before it."""
        sends = [move for move in moves if isinstance(move, FileMove) and move.sends]
        receives = [move for move in moves if isinstance(move, FileMove) and not move.sends]
        for receive in receives:
            for send in sends:
                if not receive.slice.overlaps(send.slice):
                    continue
                alone = sum(s.peer == send.peer for s in sends) == sum(r.peer == receive.peer for r in receives) == 1
                if receive.slice != send.slice or not alone:
                    raise self._file.problem(
                        receive.loc,
                        f"rank {self._rank} receives into {_told(receive.slice)} in the step in which it sends "
                        f"{_told(send.slice)}: take two steps",
                    )


def _told(piece: FileSlice) -> str:
    inside = f"{piece.first}" if piece.end == piece.first + 1 else f"{piece.first}:{piece.end}"
    return f"{piece.buffer}[{inside}]"


def _match(expanded: Expanded) -> None:
    """The k-th send from one rank to another and the k-th receive there must be of one length."""
    sends: dict[tuple[int, int], list[FileMove]] = {}
    receives: dict[tuple[int, int], list[FileMove]] = {}
    for rank, steps in enumerate(expanded.steps):
        for step in steps:
            for move in step:
                if isinstance(move, FileMove) and move.slice.first != move.slice.end:
                    if move.sends:
                        sends.setdefault((rank, move.peer), []).append(move)
                    else:
                        receives.setdefault((move.peer, rank), []).append(move)
    problem = expanded.file.problem
    for source, target in sorted(sends.keys() | receives.keys()):
        out, into = sends.get((source, target), []), receives.get((source, target), [])
        for send, receive in zip(out, into, strict=False):
            if send.slice.end - send.slice.first != receive.slice.end - receive.slice.first:
                raise problem(
                    receive.loc,
                    f"rank {target} receives into {_told(receive.slice)} what rank {source} sends as "
                    f"{_told(send.slice)}: of unequal length",
                )
        if len(out) > len(into):
            lost = out[len(into)]
            raise problem(
                lost.loc,
                f"rank {source} sends {_told(lost.slice)} to rank {target}, which does not receive it: it receives "
                f"{len(into)} times from rank {source}",
            )
        if len(into) > len(out):
            missing = into[len(out)]
            raise problem(
                missing.loc,
                f"rank {target} waits for {_told(missing.slice)} from rank {source}, which sends it {len(out)}",
            )
