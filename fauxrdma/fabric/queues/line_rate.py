"""No congestion control: a sender offers what its port carries, until it is paused or out of credits."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["LineRate", "SendControl"]

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


class SendControl(Protocol):
    """What F senders may send, and what they learn. All arrays (F,), bytes."""

    def limits(self, queued: Floats | None, step_ns: float) -> Floats:
        """Bytes each may send within a step; `queued` of its bytes are in the network."""

    def step(self, now_ns: float, sent: Floats, acked: Floats, notified: Flags | None, lost: Flags | None) -> None:
        """A step is over: bytes that left and that arrived, who was notified of congestion, who found out a loss."""

    def inherit(self, flow: int, other: int) -> None:
        """`flow` goes on where `other`, of the same queue pair, is."""


class LineRate:
    """`line`: (F,), bytes per ns."""

    def __init__(self, line: Floats, step_ns: float) -> None:
        self._limits = line * step_ns

    def limits(self, queued: Floats | None, step_ns: float) -> Floats:
        """The line rate."""
        return self._limits

    def step(self, now_ns: float, sent: Floats, acked: Floats, notified: Flags | None, lost: Flags | None) -> None:
        """Nothing is learnt."""

    def inherit(self, flow: int, other: int) -> None:
        """There is nothing."""
