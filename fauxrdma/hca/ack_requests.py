"""When an RC requester asks for an acknowledgement: at the end of its queue, and at the latest after so much.

Often enough that the timer of a long message sees progress, seldom enough that small messages share one.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["AckRequests"]

_EVERY_FRAMES = 32
_EVERY_BYTES = 256 * 1024
_PATIENT_TIMEOUT = 12
"""From this ACK timeout (16.8 ms) on, an acknowledgement nobody waits for may be collected for some milliseconds."""


@dataclass(slots=True)
class AckRequests:
    """What was sent since the last request for an acknowledgement: frames, bytes, and whether somebody waits for the
    completion of any of it."""

    frames: int = 0
    nbytes: int = 0
    awaited: bool = False

    @property
    def due(self) -> bool:
        """Whether it has become too much."""
        return self.frames >= _EVERY_FRAMES or self.nbytes >= _EVERY_BYTES

    def ask(self, ends: bool, timeout: int) -> bool:
        """A frame that `ends` a message or not asks; returns whether the answer has time.

        Nobody is told when an unsignaled request completes; only the timer (the QP's `timeout` code) wants to know.
        """
        patient = ends and not self.awaited and (timeout == 0 or timeout >= _PATIENT_TIMEOUT)
        self.awaited = False
        self.frames = self.nbytes = 0
        return patient
