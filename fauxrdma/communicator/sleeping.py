"""Waiting for whichever comes first: a completion of an HCA, a bell rung beside, a modelled arrival that is due; on one
mesh of peers or on those of several channels."""

from __future__ import annotations

import os
import select
from collections.abc import Collection, Sequence
from typing import Protocol

__all__ = ["Sleeper", "sleep_on", "wait_for_any"]

LAST_STRETCH_S = 200e-6
"""Waits for a modelled arrival do not sleep for less than this: the kernel would oversleep."""


class Sleeper(Protocol):
    """Something that can be waited for."""

    def poll(self) -> bool:
        """Take in what has happened, without waiting; whether anything did."""

    def due_in_s(self) -> float | None:
        """Wall time until something is due that nobody will announce; None when there is nothing of that kind."""

    def before_sleep(self) -> list[int]:
        """From here on have what happens announced on these file descriptors. Look once more before you sleep."""

    def after_sleep(self, ready: Collection[int]) -> bool:
        """Have nothing announced any more, and take in what happened; `ready`: the descriptors that were readable."""


def sleep_on(sleepers: Sequence[Sleeper], timeout_s: float) -> bool:
    """Sleep until something happens on one of `sleepers`, at most `timeout_s` seconds of wall time; False when nothing
    did."""
    due = [left_s for sleeper in sleepers if (left_s := sleeper.due_in_s()) is not None]
    if due:
        if min(due) < LAST_STRETCH_S:
            os.sched_yield()
            return any(sleeper.poll() for sleeper in sleepers)
        timeout_s = min(timeout_s, min(due) - LAST_STRETCH_S / 2)
    ready: Collection[int] = ()
    happened = False
    asleep: list[Sleeper] = []
    poller = select.poll()
    try:
        for sleeper in sleepers:
            asleep.append(sleeper)
            for fd in sleeper.before_sleep():
                poller.register(fd, select.POLLIN)
        happened = any(sleeper.poll() for sleeper in sleepers)
        if not happened:
            ready = {fd for fd, _ in poller.poll(timeout_s * 1000)}
    finally:
        woken = [sleeper.after_sleep(ready) for sleeper in asleep]
    return happened or any(woken) or bool(due)


def wait_for_any(sleepers: Sequence[Sleeper], timeout_s: float) -> bool:
    """As `sleep_on`, but look first."""
    return any(sleeper.poll() for sleeper in sleepers) or sleep_on(sleepers, timeout_s)
