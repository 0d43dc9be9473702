"""What a rank called, in a few bits that travel with every message, and in words for when the ranks disagree."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from fauxrdma.collectives.request import Counts

__all__ = ["Call"]

LONGEST_COUNTS = 60
"""Characters of the counts that an error shows."""


@dataclass(frozen=True, slots=True)
class Call:
    """One collective as its caller meant it: what must be the same on all ranks. `counts` as in Request, empty where a
    rank knows only its own; `number` counts the calls of a communicator."""

    number: int
    operation: str
    algorithm: str
    op: str
    dtype: str
    counts: Counts
    root: int

    @property
    def signature(self) -> int:
        """16 bits: two different calls have the same once in 65,536 times."""
        words = f"{self.number} {self.operation} {self.algorithm} {self.op} {self.dtype} {self.root}"
        # The hash of whole numbers is the same in every process.
        mixed = zlib.crc32(words.encode()) ^ (hash(self.counts) & 0xFFFFFFFF)
        return (mixed ^ mixed >> 16) & 0xFFFF

    def __str__(self) -> str:
        counts = str(self.counts)
        if len(counts) > LONGEST_COUNTS:
            counts = counts[:LONGEST_COUNTS] + "..."
        op = f"{self.op} of " if self.op else ""
        what = f"{op}{counts} x {self.dtype}, root {self.root}, by {self.algorithm}"
        return f"{self.operation}({what}) as call {self.number}"
