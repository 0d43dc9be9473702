"""The timers of one application under clock `virtual`: what its threads wait for time with."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fauxrdma.abi import control_verbs as V
from fauxrdma.abi.timer_page import TIMER_BYTES, AppTimer
from fauxrdma.errors import VerbsError
from fauxrdma.memory.shared import SharedMemory
from fauxrdma.runtime.virtual_data_path import VirtualDataPath
from fauxrdma.wire.control import Message

if TYPE_CHECKING:
    from fauxrdma.runtime.app_session import AppSession

__all__ = ["TimerVerbs"]


class TimerVerbs:
    """Serves the verbs in `handlers`, destroys the kinds in `destroyers` (by handle), owns what it made."""

    def __init__(self, session: AppSession) -> None:
        self._session = session
        self._timers: dict[int, AppTimer] = {}
        self.handlers: dict[type[Message], Callable[[Any], None]] = {V.CreateTimer: self._create}
        self.destroyers: dict[str, Callable[[int], None]] = {"timer": self._destroy}

    def _create(self, msg: V.CreateTimer) -> None:
        path = self._session.data_path
        if not isinstance(path, VirtualDataPath):
            raise VerbsError(errno.EOPNOTSUPP, "timers are for clock virtual: under others, time needs no waiting for")
        memory = SharedMemory.create(TIMER_BYTES, "fauxrdma-timer")
        timer = AppTimer(memory.view, os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        timer.format()
        timer.now = path.clock.now_ns()
        handle = self._session.hca.new_handle()
        self._timers[handle] = timer
        path.timers.add(timer)
        self._session.reply(V.Created(handle), memory.fd, timer.event_fd)
        memory.close_fd()

    def _destroy(self, handle: int) -> None:
        timer = self._timers.pop(handle, None)
        if timer is None:
            raise VerbsError(errno.EINVAL, f"there is no timer {handle} in this context")
        path = self._session.data_path
        if isinstance(path, VirtualDataPath):
            path.timers.discard(timer)
        os.close(timer.event_fd)

    def close(self) -> None:
        """Destroy everything."""
        for handle in list(self._timers):
            self._destroy(handle)
