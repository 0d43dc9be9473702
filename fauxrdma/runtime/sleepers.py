"""Whether processes sleep: every thread waits in the kernel and has used no CPU since it was looked at before.

Two calls make one look, `sample` and then `asleep`. A thread that ran when `sample` was called still runs in `asleep`,
or it has gone to sleep meanwhile, and then the kernel has added its time to the process's CPU clock, which counts
nanoseconds. So when `asleep` returns True, all slept at the instant at which `sample` returned; and where several
observers all call `sample` before any calls `asleep`, all processes of all of them did.

Linux: the clock is CPU-time clock ``(~pid << 3) | 2`` of clock_gettime(2), states are those of proc(5). Children that a
process's first thread has forked (a data loader's workers) count with it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

__all__ = ["SleepWatch", "cpu_clock_ns", "is_blocked", "is_running"]

_BLOCKED = frozenset("StTIZX")
"""Waiting, stopped, idle, or ended. Not D: a thread that waits for a disk goes on by itself, and soon."""


class SleepWatch:
    """The looks of one observer."""

    def __init__(self) -> None:
        self._sample: dict[int, int] = {}

    def sample(self, pids: Iterable[int]) -> None:
        """Begin a look at these processes and their children. Those of the process that started this one are left out:
        it holds the lab, of which they are the daemons and the ranks."""
        lab = os.getppid()
        self._sample = {
            each: cpu_clock_ns(_clock(each)) for pid in pids for each in (pid, *(_children(pid) if pid != lab else ()))
        }

    def asleep(self) -> bool:
        """End the look: whether all slept when it began."""
        return all(_threads_blocked(pid) for pid in self._sample) and all(
            cpu_clock_ns(_clock(pid)) == before for pid, before in self._sample.items()
        )


def is_running(pid: int) -> bool:
    """Whether there is such a process and it has not ended."""
    return _state(f"/proc/{pid}/stat") not in ("", "Z", "X")


def is_blocked(path: str) -> bool:
    """Whether the thread with this `stat` file in /proc sleeps, or has ended."""
    return _state(path) in _BLOCKED


def cpu_clock_ns(clock: int) -> int:
    """What a CPU-time clock shows; -1 when its process or thread has ended."""
    try:
        return time.clock_gettime_ns(clock)
    except OSError:
        return -1


def _clock(pid: int) -> int:
    return ~pid << 3 | 2


def _threads_blocked(pid: int) -> bool:
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return True
    return all(is_blocked(f"/proc/{pid}/task/{thread}/stat") for thread in threads)


def _state(path: str) -> str:
    """The letter behind the name, which may hold anything; X for what is gone meanwhile."""
    try:
        with open(path, "rb", buffering=0) as file:
            line = file.read(512)
    except OSError:
        return "X"
    at = line.rfind(b")")
    return chr(line[at + 2]) if len(line) > at + 2 else "X"


def _children(pid: int) -> list[int]:
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb", buffering=0) as file:
            return [int(child) for child in file.read().split()]
    except OSError:
        return []
