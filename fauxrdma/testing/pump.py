"""Stands where a daemon's event loop stands, for daemons that live in the process of their applications."""

from __future__ import annotations

import select
from collections.abc import Callable, Coroutine
from typing import Any

from fauxrdma.sim.fabric_world import Turns

__all__ = ["DoneTask", "PumpLoop"]


class DoneTask:
    """What a coroutine that never had to wait has become."""

    def add_done_callback(self, call: Callable[[DoneTask], object]) -> None:
        """It is done: call at once."""
        call(self)

    def cancel(self) -> None:
        """Too late."""


class PumpLoop(Turns):
    """Calls what was put off (`run`) and those whose descriptors are ready (`serve`), when told to; never waits."""

    def __init__(self) -> None:
        super().__init__()
        self._readers: dict[int, tuple[Callable[..., object], tuple[Any, ...]]] = {}
        self._writers: dict[int, tuple[Callable[..., object], tuple[Any, ...]]] = {}
        self._poller = select.poll()

    # What sessions use of asyncio's loops.

    def create_task(self, work: Coroutine[Any, Any, None]) -> DoneTask:
        """Run a coroutine, which must not have to wait: whom it asks is in this process."""
        try:
            work.send(None)
        except StopIteration:
            return DoneTask()
        work.close()
        raise RuntimeError(f"{work!r} waits for something outside the process")

    def add_reader(self, fd: int, call: Callable[..., object], *arguments: Any) -> None:
        """As asyncio's."""
        self._readers[fd] = call, arguments
        self._register(fd)

    def remove_reader(self, fd: int) -> None:
        """As asyncio's."""
        if self._readers.pop(fd, None) is not None:
            self._register(fd)

    def add_writer(self, fd: int, call: Callable[..., object], *arguments: Any) -> None:
        """As asyncio's."""
        self._writers[fd] = call, arguments
        self._register(fd)

    def remove_writer(self, fd: int) -> None:
        """As asyncio's."""
        if self._writers.pop(fd, None) is not None:
            self._register(fd)

    def _register(self, fd: int) -> None:
        events = (select.POLLIN if fd in self._readers else 0) | (select.POLLOUT if fd in self._writers else 0)
        if events:
            self._poller.register(fd, events)
        else:
            self._poller.unregister(fd)

    # ---- turns ---------------------------------------------------------------------------------------------------

    def input_waits(self) -> bool:
        """Whether somebody has said what was not read yet."""
        return bool(self._poller.poll(0))

    def serve(self) -> bool:
        """Hear everybody who has said something; whether somebody had."""
        heard = False
        while ready := self._poller.poll(0):
            heard = True
            for fd, events in ready:
                reader, writer = self._readers.get(fd), self._writers.get(fd)
                if reader is not None and events & ~select.POLLOUT:
                    reader[0](*reader[1])
                elif writer is not None:
                    writer[0](*writer[1])
            self.run()
        return heard
