"""The ways of pyverbs' objects that hold something of the device: what they raise, and in which order they close.

A parent knows its children by weak references and closes them first; a child keeps its parent alive; what nobody refers
to any more closes itself; closing twice is closing once.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, NoReturn, ParamSpec, TypeVar

from fauxrdma.compat.pyverbs_error import PyverbsRDMAError
from fauxrdma.errors import VerbsError

__all__ = ["Handle", "adopt", "not_offered", "refused_as", "verb"]

P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def refused_as(words: str) -> Iterator[None]:
    """Turn VerbsError into PyverbsRDMAError with the same errno, whose message begins with pyverbs' words."""
    try:
        yield
    except VerbsError as error:
        raise translated(words, error) from error


def translated(words: str, error: VerbsError) -> PyverbsRDMAError:
    """`words`, what was wrong, and the errno."""
    detail = error.strerror or ""
    if not detail.startswith(words):
        opening, colon, rest = detail.partition(": ")  # the native interface may say it with words of its own
        detail = f"{words}: {rest if colon and opening.startswith('Failed to') else detail}"
    ctypes.set_errno(error.error_code)
    return PyverbsRDMAError(detail, error.error_code)


def verb(words: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorates what calls fauxrdma.verbs: `words` is what pyverbs says when it is refused."""

    def decorate(call: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(call)
        def calling(*args: P.args, **kwargs: P.kwargs) -> R:
            # No context manager: posting and polling come through here.
            try:
                return call(*args, **kwargs)
            except VerbsError as error:
                raise translated(words, error) from error

        return calling

    return decorate


def not_offered(words: str, what: str) -> NoReturn:
    """Refuse what this device does not have: PyverbsRDMAError with EOPNOTSUPP."""
    ctypes.set_errno(errno.EOPNOTSUPP)
    raise PyverbsRDMAError(f"{words}: this device has no {what}", errno.EOPNOTSUPP)


class Handle:
    """Goes in front of a class of fauxrdma.verbs, whose `close` destroys the object."""

    CLOSE_ORDER: ClassVar[int]
    _CLOSING: ClassVar[str] = "Failed to close"
    """What pyverbs says when the object cannot be destroyed."""

    def add_ref(self, obj: Any) -> None:
        """`obj` lives in this object, which closes it first."""
        self.__dict__.setdefault("_living", weakref.WeakSet()).add(obj)

    def remove_ref(self, obj: Any) -> None:
        """It lives elsewhere now."""
        self.__dict__.setdefault("_living", weakref.WeakSet()).discard(obj)

    def close(self) -> None:
        """Destroy what lives in it, then itself. Idempotent. Raises PyverbsRDMAError, EBUSY while others use it."""
        living = self.__dict__.get("_living", ())
        # Queue pairs before windows, windows before the regions they are bound to: each class names its rank.
        for child in sorted(living, key=lambda child: child.CLOSE_ORDER):
            child.close()
        with refused_as(self._CLOSING):
            super().close()  # type: ignore[misc]

    def __del__(self) -> None:
        # Once the interpreter takes modules apart, or after a fork, there is nothing to say it to.
        try:
            self.close()
        except Exception:
            pass


def adopt(parent: Any, child: Any) -> None:
    """Make `child` live in `parent`, when that is one of ours."""
    if isinstance(parent, Handle):
        parent.add_ref(child)
