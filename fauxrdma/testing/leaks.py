"""Verbs objects that were made and not closed, with the line of the program that made each."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from fauxrdma.verbs.children import Children

__all__ = ["LeakedObjects", "ObjectWatch"]

_OURS = str(Path(__file__).resolve().parent.parent)
_INSIDE = (_OURS, "<frozen", "<string>")


class LeakedObjects(AssertionError):
    """A test ended with verbs objects that it made and did not close. Its text names each and the line that made it:
    close it there, or make it in a ``with``. On hardware it would hold its memory and its numbers until the process
    ends."""


class ObjectWatch:
    """Knows the verbs objects that are made while it watches. A context manager.

    It refers to them, so that none disappears without having been closed: `close` does not depend on when Python
    collects an object.
    """

    def __init__(self) -> None:
        self._made: list[tuple[Any, str]] = []
        self._ignored: set[int] = set()

    def __enter__(self) -> ObjectWatch:
        Children.watchers.append(self._hear)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._hear in Children.watchers:
            Children.watchers.remove(self._hear)

    def _hear(self, item: Any) -> None:
        self._made.append((item, made_at(sys._getframe(1))))

    def ignore(self, *items: Any) -> None:
        """Leave objects out, with all that is made from a context among them: somebody else closes them."""
        self._ignored.update(map(id, items))

    def open(self) -> list[str]:
        """The objects that are open, a sentence each, in the order in which they were made."""
        return [
            f"{describe(item)}, made at {where}"
            for item, where in self._made
            if id(item) not in self._ignored and is_open(item)
        ]

    def check(self) -> None:
        """Raise LeakedObjects when there are any."""
        left = self.open()
        if left:
            count = "1 verbs object was" if len(left) == 1 else f"{len(left)} verbs objects were"
            raise LeakedObjects("\n".join([f"{count} not closed:", *(f"  {line}" for line in left)]))

    def close_all(self) -> None:
        """Close what is open, and forget all."""
        for item, _ in reversed(self._made):
            if type(item).__name__ == "Context" and is_open(item):
                item.close()
        self._made.clear()


def is_open(item: Any) -> bool:
    """Whether an object was not closed, nor what it was made from."""
    context = getattr(item, "context", None) or getattr(getattr(item, "pd", None), "context", None)
    return not getattr(item, "_closed", False) and not (context is not None and getattr(context, "_closed", False))


def describe(item: Any) -> str:
    """An object, by what a program knows it by."""
    name = type(item).__name__
    for attribute, form in (("qp_num", "0x{:x}"), ("lkey", "lkey 0x{:x}"), ("rkey", "rkey 0x{:x}"), ("handle", "{}")):
        value = getattr(item, attribute, None)
        if isinstance(value, int):
            return f"{name}({form.format(value)}{_length(item)})"
    return repr(item)


def _length(item: Any) -> str:
    length = getattr(item, "length", None)
    return f", {length} B" if isinstance(length, int) else ""


def made_at(frame: FrameType | None) -> str:
    """The innermost line outside this package, as file:line in function."""
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith(_INSIDE):
            return f"{_short(path)}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return "an unknown place"


def _short(path: str) -> str:
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return path
