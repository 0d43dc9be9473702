"""The write end of a pipe that tells an application of events, none of which may be lost."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable

__all__ = ["EventGate", "EventPipe"]


class EventGate:
    """While it is shut, events wait: so an application that is told of one finds all that belong to the same step.
    `on_event()` is called for each."""

    def __init__(self, on_event: Callable[[], None]) -> None:
        self._on_event = on_event
        self._shut = False
        self._waiting: list[tuple[EventPipe, bytes]] = []

    def shut(self) -> None:
        """Hold events back from now on."""
        self._shut = True

    def open(self) -> None:
        """Let them through, in order."""
        self._shut = False
        waiting, self._waiting = self._waiting, []
        for pipe, event in waiting:
            pipe.put(event)

    def holds(self, pipe: EventPipe, event: bytes) -> bool:
        """Whether the event is kept until the gate opens."""
        self._on_event()
        if self._shut:
            self._waiting.append((pipe, event))
        return self._shut


class EventPipe:
    """Writes whole events, each of at most PIPE_BUF bytes. What a full pipe does not take waits here, in order: an
    application that is slow to read hears of everything all the same, as from a kernel's event queue."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int, gate: EventGate | None = None) -> None:
        self._loop = loop
        self._gate = gate
        self._fd = fd
        os.set_blocking(fd, False)
        self._waiting: deque[bytes] = deque()

    def put(self, event: bytes) -> None:
        """Write an event now or, behind others that wait, later."""
        if self._fd < 0 or (self._gate is not None and self._gate.holds(self, event)):
            return
        if not self._waiting and self._write(event):
            return
        if not self._waiting:
            self._loop.add_writer(self._fd, self._writable)
        self._waiting.append(event)

    def _write(self, event: bytes) -> bool:
        """Whether the event needs no other try."""
        try:
            os.write(self._fd, event)
        except BlockingIOError:
            return False
        except OSError:
            pass  # the application closed its end: its session is about to end
        return True

    def _writable(self) -> None:
        while self._waiting and self._write(self._waiting[0]):
            self._waiting.popleft()
        if not self._waiting:
            self._loop.remove_writer(self._fd)

    def close(self) -> None:
        """Release the descriptor; what waits is forgotten. Idempotent."""
        if self._fd >= 0:
            if self._waiting:
                self._loop.remove_writer(self._fd)
                self._waiting.clear()
            os.close(self._fd)
            self._fd = -1
