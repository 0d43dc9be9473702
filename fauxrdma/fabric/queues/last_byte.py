"""When a flow is complete: its last byte is followed through first-in-first-out queues, as is that before a gap.

The fluid lets all bytes of a queue drain alike, so the rest of a flow among others would only ever fade. The last byte
is exact: it joins a lane's queue, and leaves when the lane has served all that was there when it came.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["LastBytes"]

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


class LastBytes:
    """The last bytes of F flows. `lane`: (F, H), `last`: (F,) as in `Layout`; `rate`: (K,) bytes per ns."""

    def __init__(self, lane: NDArray[np.intp], last: NDArray[np.intp], rate: Floats) -> None:
        self._lane = lane
        self._last = last
        self._rate = rate
        self._slowest: Floats = np.append(rate, np.inf)[lane].min(axis=1, initial=np.inf)
        self._slot: NDArray[np.intp] = np.full(len(last), -1, dtype=np.intp)
        self._target: Floats = np.full(len(last), np.nan)
        self._not_before: Floats = np.zeros(len(last))
        self._under_way: NDArray[np.intp] = np.zeros(0, dtype=np.intp)

    def follow(self, flows: NDArray[np.intp], slots: NDArray[np.intp] | None = None) -> None:
        """The last bytes of `flows` have come to `slots`, by default the first behind their senders. Those followed
        already are followed on."""
        fresh = self._slot[flows] < 0
        new = flows[fresh]
        self._slot[new] = 1 if slots is None else slots[fresh]
        self._target[new] = np.nan
        self._under_way = np.flatnonzero(self._slot >= 0)

    def lose(self, flows: NDArray[np.intp]) -> None:
        """Something of `flows` is to be sent again: what was the last byte no longer is."""
        self._slot[flows] = -1
        self._under_way = np.flatnonzero(self._slot >= 0)

    def join(self, now_ns: float, waiting: Floats, served: Floats, own: Floats) -> None:
        """Before a step: `waiting` (K,) bytes are in each queue, `served` (K,) have ever left it; `own` (F, H) are the
        bytes of each flow in its slots. All of a flow's bytes come before its last, those too that lag behind because
        queues mix: it leaves no sooner than they could have."""
        flows = self._under_way
        if len(flows):
            new = flows[np.isnan(self._target[flows])]
            slots = self._slot[new]
            lanes = self._lane[new, slots]
            before = np.where(np.arange(own.shape[1]) <= slots[:, None], own[new], 0.0).sum(axis=1)
            self._target[new] = served[lanes] + waiting[lanes]
            self._not_before[new] = now_ns + before / self._rate[lanes]

    def leave(
        self, now_ns: float, served_before: Floats, served: Floats, step_ns: float
    ) -> tuple[NDArray[np.intp], Floats]:
        """After a step: the flows whose last byte reached the receiver, and how far into the step that was, in ns."""
        flows = self._under_way
        if not len(flows):
            return flows, _NONE
        lanes = self._lane[flows, self._slot[flows]]
        # Sums of many steps: a byte in 1e9 is lost to rounding.
        out = served[lanes] >= self._target[flows] - 1e-9 * (1.0 + served[lanes])
        out &= self._not_before[flows] <= now_ns + step_ns * (1 + 1e-9)
        gone = flows[out]
        done = gone[self._slot[gone] == self._last[gone]]
        lanes = self._lane[done, self._last[done]]
        # The last lane may be faster than what feeds it.
        offset = (self._target[done] - served_before[lanes]) / self._slowest[done]
        offset = np.clip(np.maximum(offset, self._not_before[done] - now_ns), 0.0, step_ns)
        self._slot[gone] += 1
        self._target[gone] = np.nan
        if len(done):
            self.lose(done)
        return done, offset


_NONE = np.zeros(0)
