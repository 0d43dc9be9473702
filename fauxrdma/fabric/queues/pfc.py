"""Priority flow control (IEEE 802.1Qbb): a full ingress pauses the sender of its cable, per priority.

A port pauses a priority when what came in by it and still waits exceeds XOFF, a part of what is free in the switch, and
lets it go (XON) when it is below XON. A PAUSE lasts for its quanta; it is repeated while the port still wants it, so
the sender of a port whose XON was lost goes on when the quanta have run out. Frames take the cable's delay and the
sender's response; what arrives meanwhile has the headroom, and beyond that is dropped.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fauxrdma.fabric.queues.delay_line import DelayLine
from fauxrdma.fabric.queues.settings import PfcSettings

__all__ = ["QUANTUM_BITS", "PauseControl"]

QUANTUM_BITS = 512
_XON = -1.0

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


class PauseControl:
    """PFC of K (cable, priority) pairs. `rates` in bytes per ns; `delay_ns`: from the decision until the sender obeys;
    `obeys`: which of them PFC governs. All arrays (K,)."""

    def __init__(
        self,
        settings: PfcSettings,
        rates: Floats,
        delay_ns: Floats,
        obeys: Flags,
        step_ns: float,
        random: np.random.Generator,
    ) -> None:
        self._settings = settings
        self._obeys = obeys
        self._random = random
        self.pause_ns: Floats = settings.quanta * QUANTUM_BITS / 8 / rates
        self._frames = DelayLine(np.ceil(delay_ns / step_ns).astype(np.intp))
        self._asking: Flags = np.zeros(len(rates), dtype=bool)
        self._repeat_at: Floats = np.full(len(rates), np.inf)
        self._held_until: Floats = np.full(len(rates), -np.inf)
        self._any_held = False
        self.pauses = np.zeros(len(rates), dtype=np.int64)
        self.lost_xons = 0

    def held(self, now_ns: float) -> Flags | None:
        """Which senders are paused now; None for none."""
        frames = self._frames.step()
        if frames is not None:
            pause = frames > 0
            self._held_until[pause] = now_ns + self.pause_ns[pause]
            self._held_until[frames < 0] = now_ns
            self._any_held = True
        if not self._any_held:
            return None
        held = self._held_until > now_ns
        self._any_held = bool(held.any())
        return held if self._any_held else None

    def observe(self, now_ns: float, occupancy: Floats, xoff: Floats) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Decide what to send, from what waits in each ingress and its XOFF (less than zero: pause, whatever there is):
        which pause now and which let go."""
        over = self._obeys & (occupancy > xoff)
        if not (over.any() or self._asking.any()):
            return _NONE, _NONE
        starting = over & ~self._asking
        # XOFF may be tiny in a switch that others have filled: XON is then when the port is empty. Not so below zero.
        xon = np.maximum(xoff - self._settings.gap_bytes, np.minimum(xoff, 0.0))
        ending = self._asking & (occupancy <= xon)
        self._asking ^= starting | ending
        sending = starting | (self._asking & (self._repeat_at <= now_ns))
        if sending.any():
            wires = np.flatnonzero(sending)
            self._frames.send(wires, np.ones(len(wires)))
            self._repeat_at[wires] = now_ns + self.pause_ns[wires] / 2
        begun, ended = np.flatnonzero(starting), np.flatnonzero(ending)
        self.pauses[begun] += 1
        if len(ended):
            arrives = self._random.random(len(ended)) >= self._settings.xon_loss
            self.lost_xons += int(np.count_nonzero(~arrives))
            self._frames.send(ended[arrives], np.full(int(np.count_nonzero(arrives)), _XON))
        return begun, ended


_NONE = np.zeros(0, dtype=np.intp)
