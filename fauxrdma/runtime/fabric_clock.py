"""Fabric time from the machine's monotonic clock: (CLOCK_MONOTONIC - epoch) / dilation, in whole ns.

CLOCK_MONOTONIC is one clock for all processes of a machine, so every daemon and rank that knows the epoch agrees.
"""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "FabricClock"]


class Clock(Protocol):
    """Fabric time, and the instants at which timers are set to reach it."""

    epoch_ns: int
    dilation: float

    def now_ns(self) -> int:
        """Fabric time now."""

    def wall_ns(self, fabric_ns: int) -> int:
        """What a timer is set to."""


class FabricClock:
    """Converts between wall and fabric time. `dilation` k: one fabric second takes k wall seconds."""

    __slots__ = ("dilation", "epoch_ns")

    def __init__(self, epoch_ns: int, dilation: float) -> None:
        self.epoch_ns = epoch_ns
        self.dilation = dilation

    def now_ns(self) -> int:
        """Fabric time now."""
        return int((time.monotonic_ns() - self.epoch_ns) / self.dilation)

    def wall_ns(self, fabric_ns: int) -> int:
        """The CLOCK_MONOTONIC instant at which fabric time reaches `fabric_ns`."""
        return self.epoch_ns + int(fabric_ns * self.dilation) + 1
