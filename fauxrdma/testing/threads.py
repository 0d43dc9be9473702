"""Whether threads of this process sleep: they wait in the kernel and have used no CPU since they were looked at before.

Linux: the CPU-time clock of a thread is ``(~tid << 3) | 6`` of clock_gettime(2), states are those of proc(5). A thread
that waits for the interpreter's lock sleeps, too; so between the two looks the lock has to be released for a moment.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable

__all__ = ["ThreadWatch"]

_BLOCKED = frozenset("StTIZX")


class ThreadWatch:
    """A look at threads by native id (None: all of the process but this one and `besides`)."""

    def __init__(self, threads: Iterable[int] | None = None, besides: Iterable[int] = ()) -> None:
        if threads is None:
            left_out = {threading.get_native_id(), *besides}
            threads = [number for number in self.threads() if number not in left_out]
        self._sample = {number: _cpu_ns(number) for number in threads}

    @staticmethod
    def threads() -> list[int]:
        """All of this process, those of libraries included."""
        return [int(name) for name in os.listdir("/proc/self/task")]

    def asleep(self) -> bool:
        """Whether all of them have slept since."""
        return all(_state(number) in _BLOCKED and _cpu_ns(number) == before for number, before in self._sample.items())


def _cpu_ns(thread: int) -> int:
    try:
        return time.clock_gettime_ns(~thread << 3 | 6)
    except OSError:
        return -1  # it has ended


def _state(thread: int) -> str:
    try:
        with open(f"/proc/self/task/{thread}/stat", "rb", buffering=0) as file:
            line = file.read(512)
    except OSError:
        return "X"
    at = line.rfind(b")")
    return chr(line[at + 2]) if len(line) > at + 2 else "X"
