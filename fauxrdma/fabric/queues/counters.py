"""What happened at the lanes and to the flows, added up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["FlowCounters", "LaneCounters"]

Floats = NDArray[np.float64]


@dataclass(slots=True)
class LaneCounters:
    """Of K lanes. Bytes that crossed, that were dropped where the lane leads (or found its queue full), and that were
    marked in its queue; the longest its egress queue and the ingress buffer at its end ever were; for how long (ns)
    flow control held it up."""

    nbytes: Floats
    dropped: Floats
    marked: Floats
    queue_max: Floats
    ingress_max: Floats
    stalled_ns: Floats

    @classmethod
    def of(cls, lanes: int) -> LaneCounters:
        """All zero."""
        zero = np.zeros
        return cls(zero(lanes), zero(lanes), zero(lanes), zero(lanes), zero(lanes), zero(lanes))


@dataclass(slots=True)
class FlowCounters:
    """Of F flows. Bytes sent (repeats included), arrived, in order at the receiver, dropped; notifications that reached
    the sender; how often it started again."""

    sent: Floats
    arrived: Floats
    delivered: Floats
    dropped: Floats
    notified: NDArray[np.int64]
    restarts: NDArray[np.int64]

    @classmethod
    def of(cls, flows: int) -> FlowCounters:
        """All zero."""
        zero, none = np.zeros, np.int64
        return cls(zero(flows), zero(flows), zero(flows), zero(flows), zero(flows, dtype=none), zero(flows, dtype=none))
