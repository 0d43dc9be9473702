"""Which bytes are lost where a part of what arrives finds no room: packets are lost whole.

The fluid says what part x of the bytes must go; that a packet is among them is drawn. Of a flow of which whole packets
arrive in a step, x of them go. Of one so slow that a packet takes many steps, the packet is doomed as its first bytes
come, and the rest of it is lost as it follows. So x of the bytes are lost on average, in as few losses as there are
packets in them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["PacketLoss"]

Floats = NDArray[np.float64]


class PacketLoss:
    """Of F flows where they arrive, at H places. `packet` in bytes."""

    def __init__(self, flows: int, places: int, packet: float, random: np.random.Generator) -> None:
        self._packet = packet
        self._random = random
        self._doomed: Floats = np.zeros((flows, places))
        self.pending = False

    def lose(self, part: Floats, arriving: Floats) -> Floats:
        """What is lost (F, H) of the bytes `arriving`, if on average `part` of them should be."""
        rest = np.minimum(self._doomed, arriving)
        left = arriving - rest
        wanted = part * left
        packets = left / self._packet
        with np.errstate(divide="ignore", invalid="ignore"):
            # Doomed packets are not drawn again until they are over, so slow flows must be hit more often than x.
            slow = part / (part + (1.0 - part) / packets)
        chance = np.where(packets < 1.0, np.nan_to_num(slow), wanted / self._packet)
        hit = self._random.random(arriving.shape) < chance
        first = np.minimum(left, self._packet)
        lost = rest + np.where(wanted >= self._packet, wanted, np.where(hit, first, 0.0))
        self._doomed += np.where(hit, self._packet - first, 0.0) - rest
        self.pending = bool(self._doomed.any())
        return lost

    def forget(self, flows: NDArray[np.intp]) -> None:
        """These flows start again: what follows are other packets."""
        self._doomed[flows] = 0.0
