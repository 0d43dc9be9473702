"""A TCP-like control for iWARP: a window that grows until a loss or a mark halves it.

Slow start doubles the window every round trip, congestion avoidance adds a packet to it (RFC 5681); a loss or an echoed
mark halves it, at most once per round trip (RFC 3168). What is under way never exceeds the window: with `queued` bytes
of the flow in switches, the rest of the window passes through the wire once in a round trip without queues.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["INITIAL_PACKETS", "TcpLike"]

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

INITIAL_PACKETS = 10
"""RFC 6928."""
LARGEST_WINDOW = float(65535 << 14)
"""RFC 7323's window scaling allows no more."""


class TcpLike:
    """The windows of F flows, in bytes. `line` in bytes per ns, `round_trip_ns` without queues; all arrays (F,)."""

    def __init__(self, line: Floats, round_trip_ns: Floats, packet: float) -> None:
        self._line = line
        self._round_trip = round_trip_ns
        self._packet = packet
        self.window: Floats = np.full(len(line), INITIAL_PACKETS * packet)
        self._threshold: Floats = np.full(len(line), np.inf)
        self._quiet_until: Floats = np.full(len(line), -np.inf)
        self._queued: Floats = np.zeros(len(line))

    def limits(self, queued: Floats | None, step_ns: float) -> Floats:
        """Bytes each flow may send within a step, with `queued` of its bytes in switches."""
        assert queued is not None
        self._queued = queued
        room = np.maximum(self.window - queued, 0.0)
        limits: Floats = np.minimum(room * np.minimum(1.0, step_ns / self._round_trip), self._line * step_ns)
        return limits

    def step(self, now_ns: float, sent: Floats, acked: Floats, notified: Flags | None, lost: Flags | None) -> None:
        """A step is over: `acked` bytes arrived; marks were echoed, or losses found out, for some flows."""
        slow = self.window < self._threshold
        self.window += np.where(slow, acked, self._packet * acked / self.window)
        for signal in (notified, lost):
            if signal is not None:
                halve = np.flatnonzero(signal & (now_ns >= self._quiet_until))
                self.window[halve] = np.maximum(self.window[halve] / 2, 2 * self._packet)
                self._threshold[halve] = self.window[halve]
                waiting = self._queued[halve] / self._line[halve]
                self._quiet_until[halve] = now_ns + self._round_trip[halve] + waiting
        np.minimum(self.window, LARGEST_WINDOW, out=self.window)

    def inherit(self, flow: int, other: int) -> None:
        """`flow` goes on where `other`, of the same connection, is."""
        for state in (self.window, self._threshold, self._quiet_until):
            state[flow] = state[other]
