"""A child made by fork() must not use its parent's context.

The child shares the parent's rings, doorbell and control socket: whatever it posted, polled or read would be missing or
doubled in the parent. So in the child everything that touches them is replaced by something that says so. That costs
the parent nothing: there is no check on the data path. Descriptors and mappings of the child are its own to close.
"""

from __future__ import annotations

import errno
import os
import weakref
from typing import Any, NoReturn

from fauxrdma.errors import VerbsError

__all__ = ["FORKED", "watch_for_fork"]

_SHARED = ("_rings", "_ring", "_lock", "_cqs", "_turn", "_reading", "_doorbells")
"""Attributes of contexts and of what is made from them that are, or guard, memory and pipes shared with the parent."""


class _Forked:
    """Whatever is done with it, it refuses."""

    def _refuse(self, *_: object) -> NoReturn:
        raise VerbsError(errno.EPERM, "this context was opened before fork(): the child must open its own")

    __bool__ = __len__ = __iter__ = __enter__ = _refuse

    def __exit__(self, *_: object) -> None:
        """Never reached: it is not entered."""

    def __getattr__(self, name: str) -> NoReturn:
        self._refuse()


FORKED: Any = _Forked()

_contexts: weakref.WeakSet[Any] = weakref.WeakSet()


def watch_for_fork(context: Any) -> None:
    """Have `context` and its children refuse to work in any child process made by fork from now on."""
    _contexts.add(context)


def _in_child() -> None:
    for context in list(_contexts):
        for thing in (context, *context._children):
            for name in _SHARED:
                if hasattr(thing, name):
                    setattr(thing, name, FORKED)


os.register_at_fork(after_in_child=_in_child)
