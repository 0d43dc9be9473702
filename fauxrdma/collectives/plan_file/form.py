"""What a plan file says, read and checked for form; docs/plans.md describes it.

Every part remembers its place in the file, so that what is only seen when ranks are known can be shown there, too.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fauxrdma.collectives.plan_file.expressions import Expression, parse_expression
from fauxrdma.errors import ConfigError
from fauxrdma.topology.yaml_document import YamlDocument
from fauxrdma.topology.yaml_scan import Loc, Problem

__all__ = ["BUFFERS", "Block", "CopyForm", "MoveForm", "PlanFile", "SliceForm", "StepForm", "read_plan_file"]

BUFFERS: Mapping[str, tuple[str, ...]] = {
    "all_reduce": ("data",),
    "reduce": ("data",),
    "broadcast": ("data",),
    "all_gather": ("input", "output"),
    "reduce_scatter": ("input", "output"),
    "all_to_all": ("input", "output"),
}
"""The operations a file can describe, and their buffers; `scratch` is one more, where the file declares it."""
OTHERS = "others"
_KEYS = ("operation", "name", "ranks", "chunks", "scratch", "order", "steps")
_MOVES = ("send", "receive", "copy")
_SLICE = re.compile(r"^\s*([A-Za-z_]\w*)\s*(?:\[([^\[\]]*)\])?\s*$")
_NAME = re.compile(r"^[A-Za-z_]\w*$")
_RESERVED = ("rank", "n", "root", "chunks")


@dataclass(frozen=True, slots=True)
class SliceForm:
    """`data`, `data[first]` or `data[first:end]`; in chunks."""

    buffer: str
    first: Expression | None
    end: Expression | None
    loc: Loc


@dataclass(frozen=True, slots=True)
class MoveForm:
    """A send to, or a receive from, `peer`; with `reduce` what arrives is reduced into `slice`."""

    sends: bool
    slice: SliceForm
    peer: Expression
    reduce: bool
    when: Expression | None
    loc: Loc


@dataclass(frozen=True, slots=True)
class CopyForm:
    """A copy within the rank."""

    source: SliceForm
    target: SliceForm
    when: Expression | None
    loc: Loc


@dataclass(frozen=True, slots=True)
class StepForm:
    """Moves that a rank makes together."""

    moves: tuple[MoveForm | CopyForm, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """Steps that are repeated, `name` counting from 0."""

    times: Expression
    name: str
    when: Expression | None
    steps: tuple[StepForm | Block, ...]
    loc: Loc


@dataclass(frozen=True)
class PlanFile:
    """A plan file. `ranks` None: any number. `steps` by rank; those of the others under -1."""

    document: YamlDocument
    operation: str
    name: str
    ranks: tuple[int, ...] | None
    chunks: Expression
    scratch: Expression
    order: str
    steps: Mapping[int, tuple[StepForm | Block, ...]]

    def problem(self, loc: Loc, message: str) -> ConfigError:
        """The error for a mistake at `loc`."""
        return ConfigError(self.document.problem(loc, message).at(self.document.path))


class _Refused(Exception):
    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def read_plan_file(path: str, text: str | None = None) -> PlanFile:
    """The plan file at `path`, or `text` as if it were there.

    Raises ConfigError, `file:line:column: message`, for the first thing that is wrong with its form.
    """
    document = YamlDocument(path, text, expects="a plan needs operation and steps")
    try:
        return _Reader(document).file()
    except _Refused as refused:
        raise ConfigError(refused.problem.at(path)) from None


class _Reader:
    def __init__(self, document: YamlDocument) -> None:
        self._document = document
        self._operation = ""
        self._has_scratch = False

    def file(self) -> PlanFile:
        data = self._document.data
        self._check_keys(data, (), _KEYS, needed=("operation", "steps"))
        operation = data["operation"]
        if operation not in BUFFERS:
            raise self._no(("operation",), f"{operation!r} is not an operation{_guess(operation, BUFFERS)}")
        self._operation = operation
        self._has_scratch = "scratch" in data
        return PlanFile(
            document=self._document,
            operation=operation,
            name=self._text(data, "name", "own"),
            ranks=self._ranks(data.get("ranks", "any")),
            chunks=self._number(data.get("chunks", 1), ("chunks",), ("n",)),
            scratch=self._number(data.get("scratch", 0), ("scratch",), ("n", "chunks")),
            order=self._text(data, "order", "as the file has it"),
            steps=self._programs(data["steps"]),
        )

    def _no(self, loc: Loc, message: str, *, key: bool = False) -> _Refused:
        return _Refused(self._document.problem(loc, message, key=key))

    def _check_keys(self, given: object, loc: Loc, known: Iterable[str], needed: Iterable[str]) -> None:
        if not isinstance(given, dict):
            raise self._no(loc, f"this must be a mapping with {', '.join(needed)}")
        for key in given:
            if key not in known:
                raise self._no((*loc, key), f"unknown key {str(key)!r}{_guess(key, known)}", key=True)
        for key in needed:
            if key not in given:
                raise self._no(loc, f"{key!r} is missing here")

    def _text(self, data: dict[Any, Any], key: str, default: str) -> str:
        value = data.get(key, default)
        if not isinstance(value, str) or not value.strip():
            raise self._no((key,), f"{key!r} must be text")
        return value.strip()

    def _ranks(self, given: object) -> tuple[int, ...] | None:
        if given == "any":
            return None
        numbers = given if isinstance(given, list) else [given]
        for number in numbers:
            if not isinstance(number, int) or isinstance(number, bool) or number < 1:
                raise self._no(("ranks",), f"{number!r} is no number of ranks: write 4, [2, 4, 8] or any")
        return tuple(numbers)

    def _number(self, given: object, loc: Loc, names: Iterable[str]) -> Expression:
        try:
            expression = parse_expression(given)
        except ConfigError as error:
            raise self._no(loc, str(error)) from None
        unknown = sorted(expression.names - set(names))
        if unknown:
            raise self._no(loc, f"{unknown[0]!r} is not known here{_guess(unknown[0], names)}")
        return expression

    # ---- steps

    def _programs(self, given: object) -> dict[int, tuple[StepForm | Block, ...]]:
        names = (*_RESERVED,)
        if not isinstance(given, dict):
            return {-1: self._steps(given, ("steps",), names)}
        programs: dict[int, tuple[StepForm | Block, ...]] = {}
        for key, steps in given.items():
            if key != OTHERS and (not isinstance(key, int) or isinstance(key, bool) or key < 0):
                raise self._no(("steps", key), f"{key!r} is no rank: steps are a list, or lists by rank", key=True)
            programs[-1 if key == OTHERS else key] = self._steps(steps, ("steps", key), names)
        return programs

    def _steps(self, given: object, loc: Loc, names: tuple[str, ...]) -> tuple[StepForm | Block, ...]:
        if not isinstance(given, list):
            raise self._no(loc, "steps are a list: begin each with a dash")
        return tuple(self._step(step, (*loc, at), names) for at, step in enumerate(given))

    def _step(self, given: object, loc: Loc, names: tuple[str, ...]) -> StepForm | Block:
        if isinstance(given, list):
            return StepForm(tuple(self._move(move, (*loc, at), names) for at, move in enumerate(given)))
        if isinstance(given, dict) and "repeat" in given:
            return self._block(given, loc, names)
        return StepForm((self._move(given, loc, names),))

    def _block(self, given: dict[Any, Any], loc: Loc, names: tuple[str, ...]) -> Block:
        self._check_keys(given, loc, ("repeat", "as", "if", "steps"), needed=("repeat", "steps"))
        name = given.get("as", "i")
        if not isinstance(name, str) or not _NAME.match(name) or name in names:
            raise self._no((*loc, "as" if "as" in given else "repeat"), f"{name!r} is taken or no name: add as: k")
        return Block(
            times=self._number(given["repeat"], (*loc, "repeat"), names),
            name=name,
            when=self._when(given, loc, names),
            steps=self._steps(given["steps"], (*loc, "steps"), (*names, name)),
            loc=loc,
        )

    def _when(self, given: dict[Any, Any], loc: Loc, names: tuple[str, ...]) -> Expression | None:
        return self._number(given["if"], (*loc, "if"), names) if "if" in given else None

    def _move(self, given: object, loc: Loc, names: tuple[str, ...]) -> MoveForm | CopyForm:
        kinds = [kind for kind in _MOVES if isinstance(given, dict) and kind in given]
        if not isinstance(given, dict) or len(kinds) != 1:
            raise self._no(loc, "a move is one of {send: data[0], to: 1}, {receive: data[0], from: 1}, "
                                "{copy: input, into: output[0]}")  # fmt: skip
        kind = kinds[0]
        if kind == "copy":
            self._check_keys(given, loc, ("copy", "into", "if"), needed=("copy", "into"))
            return CopyForm(
                source=self._slice(given["copy"], (*loc, "copy"), names),
                target=self._slice(given["into"], (*loc, "into"), names),
                when=self._when(given, loc, names),
                loc=loc,
            )
        end = "to" if kind == "send" else "from"
        extra = () if kind == "send" else ("reduce",)
        self._check_keys(given, loc, (kind, end, "if", *extra), needed=(kind, end))
        reduce = given.get("reduce", False)
        if not isinstance(reduce, bool):
            raise self._no((*loc, "reduce"), "'reduce' must be true or false")
        if reduce and self._operation not in ("all_reduce", "reduce", "reduce_scatter"):
            raise self._no((*loc, "reduce"), f"{self._operation} reduces nothing", key=True)
        return MoveForm(
            sends=kind == "send",
            slice=self._slice(given[kind], (*loc, kind), names),
            peer=self._number(given[end], (*loc, end), names),
            reduce=reduce,
            when=self._when(given, loc, names),
            loc=loc,
        )

    def _slice(self, given: object, loc: Loc, names: tuple[str, ...]) -> SliceForm:
        match = _SLICE.match(given) if isinstance(given, str) else None
        if match is None:
            raise self._no(loc, f"{str(given)[:60]!r} is no slice: write data, data[0] or data[2:4], in chunks")
        buffer, inside = match.groups()
        known = (*BUFFERS[self._operation], *(("scratch",) if self._has_scratch else ()))
        if buffer not in known:
            declare = ": declare it, as scratch: 4" if buffer == "scratch" else _guess(buffer, known)
            raise self._no(loc, f"{self._operation} has no buffer {buffer!r}{declare}")
        if inside is None:
            return SliceForm(buffer, None, None, loc)
        first, colon, end = (part.strip() for part in inside.partition(":"))
        if not first or (colon and not end):
            raise self._no(loc, f"{given!r}: write both ends, as {buffer}[2:4], or one chunk, as {buffer}[0]")
        return SliceForm(
            buffer,
            self._number(first, loc, names),
            self._number(end, loc, names) if colon else None,
            loc,
        )


def _guess(given: object, known: Iterable[str]) -> str:
    words = list(known)
    close = difflib.get_close_matches(str(given), words, n=1)
    return f" (did you mean {close[0]}?)" if close else f": it is one of {', '.join(words)}" if words else ""
