"""What was made from a context, and who wants to hear of it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, ClassVar

__all__ = ["Children"]


class Children(weakref.WeakSet[Any]):
    """The objects made from one context that are still referred to. `watchers` are called with each object of any
    context, and with the contexts, when it has been made: so a test kit knows what was not closed, and who made it."""

    watchers: ClassVar[list[Callable[[Any], None]]] = []

    def add(self, item: Any) -> None:
        """Take in an object that was made."""
        super().add(item)
        self.tell(item)

    @classmethod
    def tell(cls, item: Any) -> None:
        """Have the watchers hear of an object."""
        for watcher in cls.watchers:
            watcher(item)
