"""Values that arrive a number of steps after they were sent, each on a wire of its own length."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["DelayLine"]


class DelayLine:
    """W wires with `delays` (W,) in steps, at least 1. Values sent in the same step over the same wire add up."""

    def __init__(self, delays: NDArray[np.intp]) -> None:
        self._delays = np.maximum(delays, 1)
        self._depth = int(self._delays.max(initial=1)) + 1
        self._ring = np.zeros((self._depth, len(delays)))
        self._filled = [False] * self._depth
        self._at = 0

    def send(self, wires: NDArray[np.intp], values: NDArray[np.float64]) -> None:
        """Put `values` on `wires`."""
        rows = (self._at + self._delays[wires]) % self._depth
        self._ring[rows, wires] += values
        for row in set(rows.tolist()):
            self._filled[row] = True

    def step(self) -> NDArray[np.float64] | None:
        """Go on by a step; what arrives in it (W,), or None for nothing at all."""
        self._at = (self._at + 1) % self._depth
        if not self._filled[self._at]:
            return None
        arrived: NDArray[np.float64] = self._ring[self._at].copy()
        self._ring[self._at] = 0.0
        self._filled[self._at] = False
        return arrived
