"""Chance on links that lose or damage packets: per frame, by a generator seeded for each link and sender.

A frame stands for several packets, and is lost as a whole if one of them is, since the receiver takes nothing behind it
(go-back-N). What a wrong bit does depends on the link layer:

- **Ethernet**: the frame check fails, the switch or HCA drops the packet.
- **InfiniBand**: the link replays it (link-level retry, as ports from FDR on have it). A damaged packet counts one
  SymbolError and costs `REPLAY_NS` and its own time again. One that is damaged `MAX_REPLAYS` times in a row has the
  link trained anew: one LinkErrorRecovery and `RECOVERY_NS`. Nothing is lost.

The three constants are assumptions, not measurements.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from fauxrdma.wire.fault_messages import Hazard, LinkErrors

__all__ = ["MAX_REPLAYS", "RECOVERY_NS", "REPLAY_NS", "Hazards", "LinkErrorCounts"]

REPLAY_NS = 1_000
RECOVERY_NS = 100_000
MAX_REPLAYS = 4
_HEADER_BYTES = 30
"""About what is around the payload of a packet on the wire; it can be damaged, too."""


class LinkErrorCounts:
    """What the links that one daemon sends over did to its packets since the last `take`, and their generators."""

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self._rng: dict[str, random.Random] = {}
        self._counts: dict[str, LinkErrors] = {}

    def rng(self, link: str) -> random.Random:
        """The generator that decides what the link does to this daemon's packets."""
        if link not in self._rng:
            self._rng[link] = random.Random(f"{self._seed}/{link}")
        return self._rng[link]

    def of(self, link: str) -> LinkErrors:
        """The counters of a link."""
        if link not in self._counts:
            self._counts[link] = LinkErrors(link, 0, 0, 0)
        return self._counts[link]

    def take(self) -> list[LinkErrors]:
        """The counters since the last time."""
        taken, self._counts = list(self._counts.values()), {}
        return taken


class Hazards:
    """The bad links of one flow's path, in order. `replays`: whether the link layer replays what it damaged."""

    def __init__(self, links: Sequence[Hazard], counts: LinkErrorCounts, *, replays: bool) -> None:
        self._links = links
        self._counts = counts
        self._replays = replays

    def loses(self, nbytes: int, mtu: int) -> bool:
        """Whether a frame of `nbytes` of payload in packets of `mtu` bytes is lost."""
        whole, rest = divmod(nbytes, mtu)
        packets = whole + (rest > 0) or 1
        for hazard in self._links:
            survives = (1 - hazard.loss) ** packets
            rng = self._counts.rng(hazard.link)
            if not self._replays and hazard.bit_errors:
                damaged = _draw(rng, packets, _damage(hazard.bit_errors, min(nbytes, mtu)))
                if damaged:
                    counts = self._counts.of(hazard.link)
                    counts.symbol_errors += damaged
                    counts.frames_lost += 1
                    return True
            if survives < 1 and rng.random() >= survives:
                self._counts.of(hazard.link).frames_lost += 1
                return True
        return False

    def replay_bytes(self, nbytes: int, mtu: int, rate_bps: int) -> int:
        """How many bytes more could have been sent at `rate_bps` in the time for which links replay a frame's packets
        and are trained anew. 0 on Ethernet."""
        if not self._replays:
            return 0
        extra = 0
        packets = max(1, -(-nbytes // mtu))
        for hazard in self._links:
            if not hazard.bit_errors:
                continue
            rng = self._counts.rng(hazard.link)
            chance = _damage(hazard.bit_errors, min(nbytes, mtu))
            bad, turn = _draw(rng, packets, chance), 0
            while bad:
                counts = self._counts.of(hazard.link)
                counts.symbol_errors += bad
                turn += 1
                extra += bad * (min(nbytes, mtu) + REPLAY_NS * rate_bps // (8 * 10**9))
                if turn == MAX_REPLAYS:
                    counts.link_error_recoveries += 1
                    extra += RECOVERY_NS * rate_bps // (8 * 10**9)
                    break
                bad = _draw(rng, bad, chance)
        return extra


def _damage(bit_errors: float, payload: int) -> float:
    """The probability that a packet of so many bytes of payload has a wrong bit."""
    return 1.0 - (1.0 - bit_errors) ** (8 * (payload + _HEADER_BYTES))


def _draw(rng: random.Random, count: int, chance: float) -> int:
    """How many of `count` independent events of this probability happen."""
    draw: Callable[[], float] = rng.random
    return sum(draw() < chance for _ in range(count))
