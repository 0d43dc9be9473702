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
    """Of F flows. `good` is the plane (F, H) of the bytes that are in order; `back` (F,): steps a NAK takes."""

    def __init__(self, back: Numbers, size: Floats, timeout_ns: float) -> None:
        self._size = size
        self._timeout = timeout_ns
        self._naks = DelayLine(back)
        self.gap: Flags = np.zeros(len(size), dtype=bool)
        self._nak_sent: Flags = np.zeros(len(size), dtype=bool)
        self._progress_at: Floats = np.zeros(len(size))

    def dropped(self, flows: Numbers, slot: Numbers, good: Floats, now_ns: float) -> None:
        """Packets of `flows` were dropped on arrival in `slot`: nothing behind them is in order."""
        columns = np.arange(good.shape[1])
        good[flows] = np.where(columns[None, :] < slot[:, None], 0.0, good[flows])
        fresh = flows[~self.gap[flows]]
        self._progress_at[fresh] = now_ns
        self.gap[flows] = True

    def arrived(self, now_ns: float, total: Floats, good: Floats) -> None:
        """`total` (F,) bytes arrived at each receiver, `good` of them in order."""
        advanced = good > 1e-6
        self._progress_at[advanced] = now_ns
        self._nak_sent &= ~advanced
        behind = self.gap & ~self._nak_sent & (total - good > 1e-6) & ~advanced
        if behind.any():
            flows = np.flatnonzero(behind)
            self._nak_sent[flows] = True
            self._naks.send(flows, np.ones(len(flows)))

    def restart(self, now_ns: float, good: Floats, unsent: Floats) -> Numbers:
        """Rewind the senders that a NAK reached or whose timer ran out: `unsent` (F,) is set anew. Which ones."""
        due = self.gap & (now_ns - self._progress_at > self._timeout)
        naks = self._naks.step()
        if naks is not None:
            due |= self.gap & (naks > 0)
        if not due.any():
            return _NONE
        flows = np.flatnonzero(due)
        self.gap[flows] = False
        self._progress_at[flows] = now_ns
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
