"""The bytes of one WRITE land in no promised order (IBTA vol. 1, o9-20): a program that polls its last byte is wrong.

To have such programs notice, the first cache line of some WRITEs, chosen by the fabric's seed, is put in place behind
all the rest. What is promised holds: acknowledgement, immediate and whatever the queue pair receives next come after
the whole. Only WRITEs of several packets are touched, so that the latency of small ones is what it was, and only where
the daemon receives straight into host memory.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from fauxrdma.memory.location import HOST_MEMORY
from fauxrdma.memory.regions import KeyTable
from fauxrdma.memory.spans import Piece
from fauxrdma.wire.headers import Frame

__all__ = ["LINE_BYTES", "LateBytes"]

LINE_BYTES = 64
_BITS = 2
"""One WRITE in 2^2 is chosen."""


@dataclass(slots=True)
class LateBytes:
    """The first bytes of the WRITE that a queue pair is receiving, if they are to come last. `choices` decides; None:
    every byte lands in the order of addresses."""

    keys: KeyTable = field(repr=False, compare=False)
    choices: random.Random | None = field(repr=False, compare=False)
    until_ns: int | None = None
    """All other bytes are in place: these follow at the next event, or at this fabric time."""
    _kept: tuple[memoryview, memoryview] | None = None  # where they belong, and where they are
    _placed: tuple[Frame, memoryview, memoryview] | None = field(default=None, compare=False)

    def split(self, frame: Frame, view: Piece) -> tuple[Piece, ...]:
        """Where to receive the payload of the first frame of a WRITE to `view`. Commits nothing: `begun` does."""
        end = frame.nbytes
        if (
            self.choices is None
            or end <= LINE_BYTES
            or not isinstance(view, memoryview)
            or self.keys.location(view) != HOST_MEMORY
            or self.choices.getrandbits(_BITS)
        ):
            return (view[:end],)
        aside = memoryview(bytearray(LINE_BYTES))
        self._placed = frame, view[:LINE_BYTES], aside
        return aside, view[LINE_BYTES:end]

    def begun(self, frame: Frame) -> None:
        """This first frame of a message is in place, or where `split` said."""
        self._kept = self._placed[1:] if self._placed is not None and self._placed[0] is frame else None
        self._placed = None

    def ended(self, now: int) -> bool:
        """The last byte of the WRITE is here. Whether its first ones are still to come, by `until_ns`."""
        if self._kept is None:
            return False
        self.until_ns = now
        return True

    def put(self) -> None:
        """Put in place what was kept back, before anything else is received."""
        if self._kept is not None:
            there, aside = self._kept
            there[:] = aside
            self._kept = None

    def drop(self) -> None:
        """The queue pair stops: what is not in place never will be."""
        self.until_ns = self._kept = self._placed = None

    def revoke(self, memory: object) -> bool:
        """The region with this memory is deregistered: forget its bytes. Whether all others of a WRITE are there."""
        if self._placed is not None and self._placed[1].obj is memory:
            self._placed = None
        if self._kept is None or self._kept[0].obj is not memory:
            return False
        self._kept = None
        whole, self.until_ns = self.until_ns is not None, None
        return whole
