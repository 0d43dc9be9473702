"""Waiting for fabric time under clock `virtual`: a thread that waits sleeps in the kernel until the daemon wakes it."""

from __future__ import annotations

import errno
import os
import select
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from fauxrdma.abi import control_verbs as V
from fauxrdma.abi.timer_page import TIMER_BYTES, AppTimer
from fauxrdma.errors import VerbsError
from fauxrdma.memory.shared import SharedMemory

if TYPE_CHECKING:
    from fauxrdma.runtime.control_channel import ControlChannel

__all__ = ["VirtualClock", "VirtualTimer"]


class VirtualTimer:
    """One thread's. `fd` is readable once the time that was set with `wake_by` has come."""

    def __init__(self, channel: ControlChannel) -> None:
        _, fds = channel.request(V.CreateTimer(), V.Created, expect_fds=2)
        self._channel = channel
        memory = SharedMemory.attach(fds[0], TIMER_BYTES)
        memory.close_fd()
        self.fd = fds[1]
        self._timer = AppTimer(memory.view, self.fd)

    def now_ns(self) -> int:
        """Fabric time."""
        return self._timer.now

    def wake_by(self, at_ns: int | None) -> None:
        """Have `fd` readable then, if not before; None asks for nothing."""
        before = self._timer.wake_at
        if at_ns is not None and (before is None or at_ns < before):
            self._timer.wake_at = at_ns

    def silence(self) -> None:
        """What was announced is heard. A time that is still to come stays asked for: who wakes for a moment by the wall
        clock must not hide from the daemon what it waits for, or fabric time goes past it."""
        self._clear()

    def forget(self) -> None:
        """Have nothing announced any more."""
        self._timer.wake_at = None

    def sleep_until(self, at_ns: int) -> None:
        """Wait for a fabric time. Raises VerbsError(EIO) when the daemon is gone."""
        self._clear()
        self._timer.wake_at = at_ns
        self._wait(lambda: self._timer.wake_at is None)

    def wait_step(self) -> None:
        """Wait for whatever happens next, as an empty poll does. Raises VerbsError(EIO) when the daemon is gone."""
        self._clear()
        self._timer.polling = True
        self._wait(lambda: not self._timer.polling)

    def _wait(self, over: Callable[[], bool]) -> None:
        poller = select.poll()
        poller.register(self.fd, select.POLLIN)
        poller.register(self._channel.fileno(), 0)  # hanging up is told all the same
        while not over():
            for fd, _ in self._channel.wait(poller, None):
                if fd != self.fd:
                    raise VerbsError(errno.EIO, f"the HCA daemon at {self._channel.path!r} is gone")
        self._clear()

    def _clear(self) -> None:
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return

    def close(self) -> None:
        """Release the descriptor; the daemon's side goes with the context."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class VirtualClock:
    """The fabric clock of a context: time as the daemon shows it, and a timer for each thread that waits."""

    dilation = 1.0

    def __init__(self, channel: ControlChannel) -> None:
        self._channel = channel
        self._first = VirtualTimer(channel)
        self._own = threading.local()
        self._own.timer = self._first
        self._all = [self._first]
        self.now_ns = self._first.now_ns

    @property
    def timer(self) -> VirtualTimer:
        """This thread's."""
        timer: VirtualTimer | None = getattr(self._own, "timer", None)
        if timer is None:
            timer = self._own.timer = VirtualTimer(self._channel)
            self._all.append(timer)
        return timer

    def wall_ns(self, fabric_ns: int) -> int:
        """There is no such instant: fabric time itself, so that differences are right."""
        return fabric_ns

    def close(self) -> None:
        """Release the descriptors."""
        for timer in self._all:
            timer.close()
