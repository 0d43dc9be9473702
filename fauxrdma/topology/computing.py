"""What a rank's own computing costs in fabric time under clock `virtual`: nothing, so much for each call, or a multiple
of the CPU time that it used.

As text ``[RANKS=]COST`` parts with spaces between, of which later ones win::

    20us                    every rank: 20 us before each call
    cpu*0.002               every rank: a five-hundredth of the CPU time it used since its last call
    20us 3=1ms 5-7=none     rank 3 is slow, ranks 5 to 7 compute in no time

A call is a collective, a send or a receive of the rank's communicator. Only what is counted in CPU time differs from
run to run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from fauxrdma.errors import ConfigError
from fauxrdma.units import parse_time_ns

__all__ = ["COMPUTE_VARIABLE", "FREE", "ComputeCost", "check_ranks", "compute_cost", "parse_compute"]

COMPUTE_VARIABLE = "FAUXRDMA_COMPUTE"
"""The cost of this rank's computing, as text."""

_PART = re.compile(r"(?:([0-9,-]+)=)?([^=\s]+)", re.ASCII)
_RANKS = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7}))?", re.ASCII)
_CPU = re.compile(r"cpu\*([0-9]+(?:\.[0-9]+)?(?:e-?[0-9]+)?)", re.ASCII)


@dataclass(frozen=True, slots=True)
class ComputeCost:
    """`call_ns`: fabric time before each call. `cpu_factor`: fabric time for each ns of CPU time between two calls."""

    call_ns: int = 0
    cpu_factor: float = 0.0

    def __str__(self) -> str:
        if self.cpu_factor:
            return f"cpu*{self.cpu_factor:g}"
        return f"{self.call_ns}ns" if self.call_ns else "none"


FREE = ComputeCost()

_Rule = tuple[range | None, ComputeCost]


def parse_compute(text: str) -> list[_Rule]:
    """The rules: ranks (None: all) and what computing costs them. Raises ConfigError for what is none."""
    rules: list[_Rule] = []
    for part in text.split():
        match = _PART.fullmatch(part)
        if match is None:
            raise ConfigError(f"compute {text!r}: {part!r} is no [RANKS=]COST, as 20us or 3,5-7=cpu*0.002")
        cost = _cost(match.group(2))
        if match.group(1) is None:
            rules.append((None, cost))
            continue
        for piece in match.group(1).split(","):
            ranks = _RANKS.fullmatch(piece)
            first, last = (int(ranks.group(1)), int(ranks.group(2) or ranks.group(1))) if ranks is not None else (1, 0)
            if last < first:
                raise ConfigError(f"compute {text!r}: {piece!r} are no ranks: write numbers and ranges, as 0,3,5-7")
            rules.append((range(first, last + 1), cost))
    if not rules:
        raise ConfigError("compute is empty: write none, a time for each call (20us) or a multiple of CPU time (cpu*2)")
    return rules


def _cost(text: str) -> ComputeCost:
    if text == "none":
        return FREE
    factor = _CPU.fullmatch(text)
    if factor is not None:
        return ComputeCost(cpu_factor=float(factor.group(1)))
    try:
        return ComputeCost(call_ns=parse_time_ns(text))
    except ConfigError:
        raise ConfigError(
            f"compute: {text!r} is no cost: write none, a time for each call (20us) or a multiple of CPU time (cpu*2)"
        ) from None


def compute_cost(text: str | None, rank: int) -> ComputeCost:
    """What computing costs `rank` by `text`; nothing by None. Raises ConfigError as `parse_compute`."""
    cost = FREE
    for ranks, each in parse_compute(text) if text is not None else ():
        if ranks is None or rank in ranks:
            cost = each
    return cost


def check_ranks(text: str | None, world_size: int) -> None:
    """Raise ConfigError for a rank that a job of `world_size` has not."""
    for ranks, _ in parse_compute(text) if text is not None else ():
        if ranks is not None and ranks[-1] >= world_size:
            raise ConfigError(f"compute {text!r} speaks of rank {ranks[-1]}: the job has ranks 0 to {world_size - 1}")
