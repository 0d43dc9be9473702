"""Traffic patterns: who sends to whom, as pairs of ranks.

`incast:N` has ranks 1 to N send to rank 0; `permutation` gives every rank one other to send to and one to receive from;
`all-to-all` has everybody send to everybody else; `ring:HOPS` has rank r send to rank r + HOPS.
"""

from __future__ import annotations

import difflib
import random
from dataclasses import dataclass

from fauxrdma.errors import ConfigError

__all__ = ["PATTERNS", "Pattern"]

PATTERNS = ("incast", "permutation", "all-to-all", "ring")
_NUMBERED = {"incast": "senders", "ring": "ranks ahead"}


@dataclass(frozen=True, slots=True)
class Pattern:
    """One of `PATTERNS`; `number` is N of an incast (None for all others) or HOPS of a ring (None for 1)."""

    name: str
    number: int | None = None

    @classmethod
    def parse(cls, text: str) -> Pattern:
        """Read `incast:32` and the like. Raises ConfigError."""
        name, colon, number = text.partition(":")
        if name not in PATTERNS:
            close = difflib.get_close_matches(name, PATTERNS, n=1)
            meant = f" (did you mean {close[0]}?)" if close else ""
            raise ConfigError(f"{text!r} is no traffic pattern{meant}: there are {', '.join(PATTERNS)}")
        if not colon:
            return cls(name)
        if name not in _NUMBERED:
            raise ConfigError(f"{text!r}: {name} takes no number")
        if not (number.isascii() and number.isdigit() and int(number) >= 1):
            raise ConfigError(f"{text!r}: {number!r} is no number of {_NUMBERED[name]}: write {name}:2")
        return cls(name, int(number))

    @property
    def ranks(self) -> int:
        """How many ranks it takes at least."""
        return (self.number or 1) + 1

    def pairs(self, ranks: int, seed: int = 0) -> list[tuple[int, int]]:
        """(sender, receiver) of each flow among `ranks`. `seed` draws the permutation. Raises ConfigError for too few
        ranks."""
        if ranks < self.ranks:
            raise ConfigError(f"{self} takes {self.ranks} ranks, there are {ranks}: raise --nodes or --gpus")
        if self.name == "incast":
            return [(rank, 0) for rank in range(1, (self.number or ranks - 1) + 1)]
        if self.name == "all-to-all":
            return [(rank, (rank + ahead) % ranks) for ahead in range(1, ranks) for rank in range(ranks)]
        if self.name == "ring":
            return [(rank, (rank + (self.number or 1)) % ranks) for rank in range(ranks)]
        # Everybody in one circle of random order: nobody sends to himself.
        order = list(range(ranks))
        random.Random(seed).shuffle(order)
        follower = dict(zip(order, order[1:] + order[:1], strict=True))
        return [(rank, follower[rank]) for rank in range(ranks)]

    def __str__(self) -> str:
        return self.name + (f":{self.number}" if self.number is not None else "")
