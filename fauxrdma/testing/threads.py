"""Whether threads of this process sleep: they wait in the kernel and have used no CPU since they were looked at before.

Linux: the CPU-time clock of a thread is ``(~tid << 3) | 6`` of clock_gettime(2), states are those of proc(5). A thread
that waits for the interpreter's lock sleeps, too; so between the two looks the lock has to be released for a moment.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable

from fauxrdma.runtime.sleepers import cpu_clock_ns, is_blocked

__all__ = ["ThreadWatch"]


class ThreadWatch:
    """A look at threads by native id (None: all of the process but this one and `besides`)."""

    def __init__(self, threads: Iterable[int] | None = None, besides: Iterable[int] = ()) -> None:
        if threads is None:
            left_out = {threading.get_native_id(), *besides}
            threads = [number for number in self.threads() if number not in left_out]
        self._sample = {number: cpu_clock_ns(_clock(number)) for number in threads}

    @staticmethod
    def threads() -> list[int]:
        """All of this process, those of libraries included."""
        return [int(name) for name in os.listdir("/proc/self/task")]

    def asleep(self) -> bool:
        """Whether all of them have slept since."""
        return all(
            is_blocked(f"/proc/self/task/{number}/stat") and cpu_clock_ns(_clock(number)) == before
            for number, before in self._sample.items()
        )


def _clock(thread: int) -> int:
    return ~thread << 3 | 6
