"""How senders make good what was dropped: go-back-N, or only what is missing.

**Go-back-N.** What arrives behind a gap is discarded. The receiver says so (NAK) once per gap, when the first packet
behind it arrives; the sender then starts again from the gap. If what it repeats is lost again there is no second NAK,
and only its retry timer gets it going, as of IBTA vol. 1, 9.7. **Selective**: what is lost is sent again when the
sender learns of it, a round trip later; what is behind it is kept (TCP with RFC 2018).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fauxrdma.fabric.queues.delay_line import DelayLine

__all__ = ["GoBackN", "Selective"]

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Numbers = NDArray[np.intp]


class GoBackN:
    """Of F flows of `size` bytes (F,). `back` (F,): steps a NAK takes; `packet` in bytes."""

    def __init__(self, back: Numbers, size: Floats, packet: float, timeout_ns: float) -> None:
        self._size = size
        self._packet = packet
        self._timeout = timeout_ns
        self._naks = DelayLine(back)
        self.gap: Flags = np.zeros(len(size), dtype=bool)
        self._expected: Floats = np.zeros(len(size))
        self._nak_for: Floats = np.full(len(size), -np.inf)
        self._silent_since: Floats = np.full(len(size), np.inf)

    def dropped(self, flows: Numbers, in_order: Floats) -> Numbers:
        """Packets of `flows` were dropped: `in_order` bytes of each are before the first. For which that is a gap."""
        fresh = ~self.gap[flows]
        opened = flows[fresh]
        self.gap[opened] = True
        self._expected[opened] = in_order[fresh]
        self._silent_since[opened] = np.inf  # what is before the gap is still on its way, and is acknowledged
        return opened

    def reached(self, now_ns: float, flows: Numbers, followed: Flags) -> None:
        """All that was before the gaps of `flows` has arrived; `followed` (n,): something is behind it."""
        self._silent_since[flows] = now_ns
        # One NAK for each packet that is missing: there is another only after something was in order again.
        news = followed & (self._expected[flows] > self._nak_for[flows] + self._packet / 2)
        told = flows[news]
        if len(told):
            self._nak_for[told] = self._expected[told]
            self._naks.send(told, np.ones(len(told)))

    def restart(self, now_ns: float, good: Floats, unsent: Floats) -> Numbers:
        """Rewind the senders that a NAK reached or whose timer ran out: `unsent` (F,) is set anew, from the bytes in
        order (F, H) on their way and there. Which ones."""
        due = self.gap & (now_ns - self._silent_since > self._timeout)
        naks = self._naks.step()
        if naks is not None:
            due |= self.gap & (naks > 0)
        if not due.any():
            return _NONE
        flows = np.flatnonzero(due)
        self.gap[flows] = False
        unsent[flows] = self._size[flows] - good[flows].sum(axis=1)
        return flows


class Selective:
    """Of F flows. `back` (F,): steps until a sender learns of a loss."""

    def __init__(self, back: Numbers) -> None:
        self._reports = DelayLine(back)
        self.pending: Floats = np.zeros(len(back))

    def dropped(self, flows: Numbers, lost: Floats) -> None:
        """`lost` bytes of `flows` were dropped."""
        self.pending[flows] += lost
        self._reports.send(flows, lost)

    def restart(self, unsent: Floats) -> Numbers:
        """Put what senders learn was lost back into `unsent` (F,). Who learns of a loss."""
        reported = self._reports.step()
        if reported is None:
            return _NONE
        flows = np.flatnonzero(reported)
        unsent[flows] += reported[flows]
        self.pending[flows] -= reported[flows]
        left = self.pending < 1e-6
        self.pending[left] = 0.0
        return flows


_NONE = np.zeros(0, dtype=np.intp)
