"""One absolute deadline on CLOCK_MONOTONIC, kept to tens of microseconds.

libuv's timers count milliseconds and fire at once below half a millisecond, too coarse for pacing. A Linux timerfd in
the event loop is exact; where there is none (macOS) the loop's own timer serves.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable

__all__ = ["PreciseTimer"]

_CLOCK_MONOTONIC = 1
_TFD_TIMER_ABSTIME = 1
_TFD_FLAGS = 0o4000 | 0o2000000  # TFD_NONBLOCK | TFD_CLOEXEC


class _Timespec(ctypes.Structure):
    _fields_ = (("sec", ctypes.c_long), ("nsec", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class PreciseTimer:
    """Calls `callback()` at the armed instant. Arming again moves the deadline; `arm(None)` disarms."""

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._armed: int | None = None
        self._fd = -1
        self._handle: asyncio.TimerHandle | None = None
        if sys.platform == "linux":
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._fd = self._libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_FLAGS)
            if self._fd < 0:
                raise OSError(ctypes.get_errno(), "timerfd_create failed")
            self._spec = _Itimerspec()
            loop.add_reader(self._fd, self._expired)

    def arm(self, wall_ns: int | None) -> None:
        """Fire at `wall_ns` on CLOCK_MONOTONIC (at once if that is past), or never."""
        if wall_ns == self._armed:
            return
        self._armed = wall_ns
        if self._fd >= 0:
            value = self._spec.value
            # All zero disarms, so an instant in the past becomes 1 ns.
            value.sec, value.nsec = divmod(max(1, wall_ns), 10**9) if wall_ns is not None else (0, 0)
            self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(self._spec), None)
            return
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if wall_ns is not None:
            delay_s = max(0.0, (wall_ns - time.monotonic_ns()) / 1e9)
            self._handle = self._loop.call_later(delay_s, self._fire)

    def _expired(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return
        self._fire()

    def _fire(self) -> None:
        self._armed = None
        self._callback()

    def close(self) -> None:
        """Disarm and release the descriptor. Idempotent."""
        self.arm(None)
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
