"""A quick reader for the plain part of YAML that topology files are written in, line by line.

ruamel.yaml takes a dozen seconds for the thousands of cables of a large fabric. This takes one, for files that keep to
block mappings and lists, words, quoted text without escapes, and flow lists and mappings of these on one line. For any
other, and for any with a mistake, it gives up, and ruamel.yaml reads it and says what is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Generic, TypeVar

__all__ = ["NotPlain", "PlainReader", "Position"]

T = TypeVar("T")

Position = tuple[int, int]
"""Line and column, both from 1."""

_KEY = re.compile(r"([A-Za-z_][A-Za-z0-9_.-]*):(?: +|$)")
_WORD = r"[A-Za-z0-9_.+/()-]+(?::[A-Za-z0-9_.+/()-]+)*"
_QUOTED = r"""'(?:[^']|'')*'|"[^"\\]*\""""
_SCALAR = re.compile(rf"(?:{_QUOTED}|(?!-){_WORD}(?: {_WORD})*)$")
_FLOW_SCALAR = rf"(?:{_QUOTED}|(?!-)[A-Za-z0-9_.+/()-]+)"
_FLOW_ELEMENT = re.compile(rf" *()(?P<value>{_FLOW_SCALAR}) *(?P<comma>,|$)")
_FLOW_PAIR = re.compile(rf" *([A-Za-z_][A-Za-z0-9_.-]*): +(?P<value>{_FLOW_SCALAR}) *(?P<comma>,|$)")


class NotPlain(Exception):
    """The text is not of the plain part."""


class PlainReader(Generic[T]):
    """Reads a text into trees of the caller's making: `scalar(what, position, text)`, `listed(what, position, trees)`
    and `mapped(what, position, trees by key)`, where `what` says what the value is."""

    def __init__(
        self,
        scalar: Callable[[str, Position, str], T],
        listed: Callable[[str, Position, list[T]], T],
        mapped: Callable[[str, Position, dict[str, T]], T],
        max_depth: int,
    ) -> None:
        self._scalar, self._listed, self._mapped = scalar, listed, mapped
        self._max_depth = max_depth
        self._lines: list[tuple[int, int, str]] = []
        self._next = 0

    def read(self, text: str, what: str) -> T:
        """The tree of a text. Raises NotPlain."""
        if not text.isascii() or not text.replace("\n", "").isprintable():
            raise NotPlain
        for number, line in enumerate(text.split("\n"), start=1):
            body = line.strip(" ")
            if body and not body.startswith("#"):
                self._lines.append((number, len(line) - len(line.lstrip(" ")), body))
        if not self._lines or self._lines[0][1]:
            raise NotPlain
        tree = self._block(0, what, 0)
        if self._next < len(self._lines):
            raise NotPlain
        return tree

    def _block(self, indent: int, what: str, depth: int) -> T:
        """The list or mapping whose first line is next, at column `indent`."""
        if depth > self._max_depth:
            raise NotPlain
        number, _, body = self._lines[self._next]
        position = (number, indent + 1)
        if body.startswith("- "):
            return self._listed(what, position, self._elements(indent, what, depth))
        return self._mapped(what, position, self._pairs(indent, depth))

    def _elements(self, indent: int, what: str, depth: int) -> list[T]:
        trees = []
        name = f"an element of {what}"
        while (line := self._line_at(indent)) is not None and line[1].startswith("- "):
            number, body = line
            rest = body[1:].lstrip(" ")
            column = indent + len(body) - len(rest)
            if _KEY.match(rest):  # a mapping that begins beside the dash
                self._lines[self._next] = (number, column, rest)
                trees.append(self._block(column, name, depth + 1))
            else:
                self._next += 1
                trees.append(self._value(rest, name, (number, column + 1), depth + 1))
        return trees

    def _pairs(self, indent: int, depth: int) -> dict[str, T]:
        trees: dict[str, T] = {}
        while (line := self._line_at(indent)) is not None and not line[1].startswith("- "):
            number, body = line
            key = _KEY.match(body)
            if key is None or key[1] in trees:
                raise NotPlain
            self._next += 1
            rest = body[key.end() :]
            what = repr(key[1])
            if rest:
                trees[key[1]] = self._value(rest, what, (number, indent + key.end() + 1), depth + 1)
                continue
            if self._next == len(self._lines):
                raise NotPlain
            _, below, first = self._lines[self._next]
            if below < indent or (below == indent and not first.startswith("- ")):
                raise NotPlain  # an empty value
            trees[key[1]] = self._block(below, what, depth + 1)
        return trees

    def _line_at(self, indent: int) -> tuple[int, str] | None:
        """The next line if it is at column `indent`, None if it is further left. Raises NotPlain if further right."""
        if self._next == len(self._lines):
            return None
        number, at, body = self._lines[self._next]
        if at > indent:
            raise NotPlain
        return (number, body) if at == indent else None

    def _value(self, text: str, what: str, position: Position, depth: int) -> T:
        if depth > self._max_depth:
            raise NotPlain
        number, column = position
        if text[0] == "[":
            name = f"an element of {what}"
            found = _flow(text, "]", _FLOW_ELEMENT)
            return self._listed(what, position, [self._scalar(name, (number, column + at), t) for _, at, t in found])
        if text[0] == "{":
            found = _flow(text, "}", _FLOW_PAIR)
            pairs = {key: self._scalar(repr(key), (number, column + at), t) for key, at, t in found}
            if len(pairs) < len(found):
                raise NotPlain
            return self._mapped(what, position, pairs)
        if not _SCALAR.match(text):
            raise NotPlain
        return self._scalar(what, position, _unquoted(text))


@lru_cache(maxsize=4096)
def _flow(text: str, end: str, part: re.Pattern[str]) -> tuple[tuple[str, int, str], ...]:
    """(key, offset, text) of what is between brackets; lists have no keys. Raises NotPlain."""
    if not text.endswith(end) or len(text) < 3:
        raise NotPlain
    inside = text[1:-1]
    found = []
    at = 0
    while True:
        match = part.match(inside, at)
        if match is None:
            raise NotPlain
        found.append((match[1], 1 + match.start("value"), _unquoted(match["value"])))
        if not match["comma"]:
            return tuple(found)
        at = match.end()


def _unquoted(text: str) -> str:
    if text[0] == "'":
        return text[1:-1].replace("''", "'")
    return text[1:-1] if text[0] == '"' else text
