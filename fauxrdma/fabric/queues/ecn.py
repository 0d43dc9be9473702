"""Marking by queue length (RED, as DCQCN has switches do it) and the receivers' congestion notifications."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["NotificationPoint", "marking_probability"]

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


def marking_probability(queue: Floats, k_min: Floats, k_max: Floats, p_max: float) -> Floats:
    """0 up to `k_min`, linear to `p_max` at `k_max`, 1 above. A port that does not mark has a `k_min` of infinity."""
    with np.errstate(invalid="ignore"):
        slope = p_max * np.clip((queue - k_min) / (k_max - k_min), 0.0, 1.0)
    return np.where(queue > k_max, 1.0, np.where(queue > k_min, slope, 0.0))


class NotificationPoint:
    """The receivers of F flows: a marked packet is answered with a CNP, at most one per flow and interval."""

    def __init__(self, flows: int, interval_ns: float, packet: float, random: np.random.Generator) -> None:
        self._interval = interval_ns
        self._packet = packet
        self._random = random
        self._ready_at: Floats = np.full(flows, -np.inf)

    def answer(self, now_ns: float, marked: Floats) -> Flags:
        """Which flows get a CNP, when `marked` bytes of each arrived. That a packet was among them is drawn: there are
        marked / packet of them on average."""
        draws = self._random.random(len(marked))
        found = (draws < -np.expm1(-marked / self._packet)) & (now_ns >= self._ready_at)
        self._ready_at[found] = now_ns + self._interval
        return found
