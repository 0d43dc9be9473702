"""What a process holds: descriptors and shared memory, to compare before and after."""

from __future__ import annotations

import os
import time
from pathlib import Path


def descriptors(pid: int) -> list[str]:
    """What each open descriptor of a process is."""
    names = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            names.append(os.readlink(entry))
        except FileNotFoundError:
            continue
    return names


def memfd_mappings(pid: int) -> int:
    """How many memfd areas a process has mapped."""
    return sum("/memfd:fauxrdma" in line for line in Path(f"/proc/{pid}/maps").read_text().splitlines())


def settles(probe: object, expected: object, timeout_s: float = 10.0) -> object:
    """The value of `probe()` once it equals `expected`, or its last value: what a daemon releases, it releases when it
    hears of the end, a moment later."""
    assert callable(probe)
    deadline = time.monotonic() + timeout_s
    while (value := probe()) != expected and time.monotonic() < deadline:
        os.sched_yield()
    return value
