"""A first look at the text of a YAML file: mistakes of syntax with advice, and what no fabric file needs.

YAML can do more than a fabric needs, and its parser fails in its own ways on some of it: tags that build objects,
values that contain themselves, dates that do not exist, thousands of brackets. The scan goes through the parser's
events, which build nothing, and refuses all that with the place where it stands.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)
from ruamel.yaml.reader import ReaderError

__all__ = ["MAX_DEPTH", "Loc", "Problem", "YamlRefused", "first_oddity", "syntax_problem"]

MAX_DEPTH = 16
"""No fabric nests deeper."""
MAX_SCALAR = 2000
"""Characters of one text or number."""

Loc = tuple[int | str, ...]
"""A path into the file: keys of mappings, positions in lists."""

_DATE = re.compile(r"^\d{4}-\d{1,2}-\d{1,2}($|[Tt\s])")


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """A mistake at `line` and `column` (both from 1) of a file."""

    line: int
    column: int
    message: str

    def at(self, path: str) -> str:
        """`file:line:column: message`, as compilers write it."""
        return f"{path}:{self.line}:{self.column}: {self.message}"


class YamlRefused(Exception):
    """The text is no YAML that a fabric file may hold; `problem` says why."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


_ADVICE = (
    (r"found character '\\t'", "a tab cannot indent: use spaces"),
    (r"found character .* cannot start any token", "text that begins so needs quotes"),
    (r"mapping values are not allowed here", "is a line indented too far, a space missing after a colon, or a quote?"),
    (r"expected <block end>", "is this line indented like those it belongs to?"),
    (r"expected ',' or '[]}]'", "is a bracket not closed or a comma missing? Text with { } [ ] needs quotes"),
    (r"expected the node content", "a value is missing here; text with { } [ ] needs quotes"),
    (r"found duplicate key", "keep one of them"),
    (r"found undefined alias|expected alphabetic or numeric", "text that begins with * or & needs quotes"),
    (r"another document", "a file holds one fabric: remove the line --- or ... and what follows"),
    (r"could not find expected ':'", "a key is followed by a colon and a space"),
    (r"found unexpected end of stream", "is a quote not closed?"),
    (r"found unknown escape character", "use single quotes, in which \\ means itself, or write \\\\"),
    (r"for merging", "'<<' takes an alias to a mapping, as <<: *leaf"),
)


def syntax_problem(error: MarkedYAMLError) -> Problem:
    """What the YAML parser found wrong, with advice."""
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
    what = (error.problem or "not valid YAML").splitlines()[0][:300].replace(" with value", ", with value")
    if what.startswith("but "):
        what = f"{error.context}, {what}"
    if mark is not None and error.context_mark is not None and "while parsing a flow" in (error.context or ""):
        opened = error.context_mark
        what = f"{what} (the bracket was opened at {opened.line + 1}:{opened.column + 1})"
    advice = next((text for pattern, text in _ADVICE if re.search(pattern, what)), None)
    return Problem(line, column, f"{what}: {advice}" if advice else what)


def first_oddity(text: str) -> Problem | None:
    """The first mistake of syntax, or the first thing that no fabric file needs; None when there is neither."""
    scan = _Scan()
    try:
        for event in YAML(typ="rt").parse(text):
            oddity = scan.look_at(event)
            if oddity is not None:
                return oddity
    except MarkedYAMLError as error:
        return syntax_problem(error)
    except ReaderError as error:
        before = text[: error.position].splitlines() or [""]
        what = f"character #x{ord(text[error.position]):04x} is not allowed: remove it"
        return Problem(len(before), len(before[-1]) + 1, what)
    except (YAMLError, ValueError, OverflowError) as error:
        return Problem(scan.line, scan.column, f"not valid YAML after this: {' '.join(str(error).split())[:200]}")
    return None


class _Scan:
    """How deep the events have gone, and which anchors have begun."""

    def __init__(self) -> None:
        self.line = self.column = 1
        self._open: list[str | None] = []
        self._anchors: set[str] = set()

    def look_at(self, event: object) -> Problem | None:
        """What is odd about the next event, if anything."""
        if isinstance(event, (MappingEndEvent, SequenceEndEvent)):
            self._open.pop()
        if not isinstance(event, NodeEvent):
            return None
        self.line, self.column = event.start_mark.line + 1, event.start_mark.column + 1
        what = self._oddity(event)
        return None if what is None else Problem(self.line, self.column, what)

    def _oddity(self, event: NodeEvent) -> str | None:
        if isinstance(event, AliasEvent):
            if event.anchor in self._open:
                return f"*{event.anchor} contains itself: name something that ends before it"
            return None
        if event.anchor is not None and event.anchor in self._anchors:
            return f"there is an anchor &{event.anchor} already: give this one another name"
        tag = getattr(event, "tag", None)
        if tag is not None:
            return (
                f"the tag {tag} has no place in a fabric file: remove it, or put quotes around text that begins with !"
            )
        if event.anchor is not None:
            self._anchors.add(event.anchor)
        if isinstance(event, (MappingStartEvent, SequenceStartEvent)):
            self._open.append(event.anchor)
            if len(self._open) > MAX_DEPTH:
                return f"nested deeper than {MAX_DEPTH} levels, which no fabric file is: close a bracket earlier"
        if isinstance(event, ScalarEvent):
            if len(event.value) > MAX_SCALAR:
                return f"{len(event.value)} characters in one value: no fabric file needs more than {MAX_SCALAR}"
            if any("\ud800" <= character <= "\udfff" for character in event.value):
                return "half a surrogate pair is no character: remove the escape"
            if not event.style and _DATE.match(event.value):
                return f"{event.value} is read as a date: put quotes around it"
        return None
