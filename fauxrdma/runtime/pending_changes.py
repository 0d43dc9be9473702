"""Changes that several daemons have to apply: told to each, done when the last has said so.

A daemon that is stuck (stopped, say) is waited for only so long, one that leaves not at all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

__all__ = ["APPLY_TIMEOUT_S", "PendingChanges"]

APPLY_TIMEOUT_S = 5.0
"""A change counts as applied after this long even if a daemon has not said so."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Change:
    what: str
    waiting: set[int]
    done: Callable[[], None]
    timer: asyncio.TimerHandle


class PendingChanges:
    """Changes by token, each waiting for nodes."""

    def __init__(self) -> None:
        self._changes: dict[int, _Change] = {}
        self._next_token = 1

    def __len__(self) -> int:
        """Changes that are not done."""
        return len(self._changes)

    def begin(self, what: str, nodes: Iterable[int], done: Callable[[], None]) -> int:
        """A change called `what` that `nodes` have to apply; `done()` is called when all have, at once when there are
        none. Returns the token they answer with."""
        token, self._next_token = self._next_token, self._next_token + 1
        waiting = set(nodes)
        if not waiting:
            done()
            return token
        timer = asyncio.get_running_loop().call_later(APPLY_TIMEOUT_S, self._too_late, token)
        self._changes[token] = _Change(what, waiting, done, timer)
        return token

    def applied(self, node: int, token: int) -> None:
        """A node has applied a change. Harmless for one that is done."""
        change = self._changes.get(token)
        if change is not None:
            change.waiting.discard(node)
            if not change.waiting:
                self._finish(token)

    def node_left(self, node: int) -> None:
        """Nothing waits for a node any more."""
        for token in list(self._changes):
            self.applied(node, token)

    def close(self) -> None:
        """Stop the timers; nothing more is done."""
        for change in self._changes.values():
            change.timer.cancel()
        self._changes.clear()

    def _too_late(self, token: int) -> None:
        change = self._changes[token]
        _log.warning("nodes %s did not take %s within %g s", sorted(change.waiting), change.what, APPLY_TIMEOUT_S)
        self._finish(token)

    def _finish(self, token: int) -> None:
        change = self._changes.pop(token)
        change.timer.cancel()
        change.done()
