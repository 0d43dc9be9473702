"""Staying awake for a moment after a small message, since another one is likely.

A daemon that sleeps in epoll leaves its processor idle, and waking an idle (virtual) processor takes some 30 us, as
long as all the rest of a small WRITE. So the event loop goes round without sleeping for a while, giving way to whoever
else wants the processor, as the kernel does with `net.core.busy_poll` and network drivers with adaptive interrupts.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

__all__ = ["BUSY_POLL_NS", "BusyPoll"]

BUSY_POLL_NS = 200_000
"""How long (wall time): a few round trips. Half of it is too short on a machine whose processors are all taken."""


def _give_way() -> None:
    """Let another process that is ready have the processor."""
    os.sched_yield()


class BusyPoll:
    """Keeps `loop` from sleeping until BUSY_POLL_NS after the last :meth:`stir`. `clock_ns` is monotonic wall time."""

    __slots__ = ("_call_soon", "_clock_ns", "_give_way", "_until_ns", "awake")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        give_way: Callable[[], None] = _give_way,
    ) -> None:
        self._call_soon = loop.call_soon
        self._clock_ns = clock_ns
        self._give_way = give_way
        self._until_ns = 0
        self.awake = False

    def stir(self) -> None:
        """A small message went out or came in."""
        self._until_ns = self._clock_ns() + BUSY_POLL_NS
        if not self.awake:
            self.awake = True
            self._call_soon(self._turn)

    def close(self) -> None:
        """Sleep from the next turn of the loop on."""
        self._until_ns = 0

    def _turn(self) -> None:
        # A callback that is due makes the loop look for events without waiting for any.
        if self._clock_ns() < self._until_ns:
            self._give_way()
            self._call_soon(self._turn)
        else:
            self.awake = False
