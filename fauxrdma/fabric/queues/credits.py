"""InfiniBand credits per virtual lane: a cable carries only what the buffer at its end has granted room for.

Granted are `B_vl - occupancy` bytes, and a grant is used once per round trip of the cable. So the rate is at most
`(B_vl - occupancy) / RTT_link`: full speed as long as the lane's buffer covers rate times round trip, `B_vl / RTT_link`
beyond, and nothing while the buffer is full. Nothing is ever dropped.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["credit_room"]

Floats = NDArray[np.float64]


def credit_room(buffer: Floats, occupancy: Floats, round_trip_ns: Floats, step_ns: float) -> Floats:
    """Bytes that each lane's credits let through within a step."""
    return np.maximum(buffer - occupancy, 0.0) * np.minimum(1.0, step_ns / round_trip_ns)
