"""What a daemon sent and received, and how late: counters handed to the subnet manager when it asks."""

from __future__ import annotations

import random
from collections.abc import Iterable

from fauxrdma.memory.location import HOST_MEMORY, Extent
from fauxrdma.runtime.packet_dealer import PacketDealer
from fauxrdma.wire.fabric_messages import Counters, LandedCounter, PairCounter, SprayCounter

__all__ = ["TrafficMeter"]

_SAMPLES = 4096
_NO_DATA: tuple[Extent, ...] = ((HOST_MEMORY, 0),)


class TrafficMeter:
    """Bytes, frames and time under way by (source LID, destination LID, label of the flow, memory they come from,
    virtual lane); bytes by (LID, memory they go to); a bounded, fair sample of fidelity debts. Memories are numbered as
    in `fauxrdma.memory.location`."""

    def __init__(self) -> None:
        self._pairs: dict[tuple[int, int, int, int, int], list[int]] = {}
        self._landed: dict[tuple[int, int], int] = {}
        self._dealers: dict[tuple[int, int, int], PacketDealer] = {}
        self._dealt: list[SprayCounter] = []
        self._debts: list[int] = []
        self._debts_seen = 0
        # Which samples to keep is no part of the emulation, so a fixed private generator serves.
        self._rng = random.Random(0)
        self._retransmits_reported = 0

    def sent(
        self,
        slid: int,
        dlid: int,
        extents: tuple[Extent, ...],
        started_ns: int = 0,
        departed_ns: int = 0,
        label: int = 0,
        vl: int = 0,
    ) -> None:
        """A frame left, with `extents` of payload. When shaped: it was submitted at `started_ns` and its last bit left
        at `departed_ns`."""
        frames = 1
        for memory, nbytes in extents or _NO_DATA:
            key = (slid, dlid, label, memory, vl)
            pair = self._pairs.get(key)
            if pair is None:
                pair = self._pairs[key] = [0, 0, 0, 0]
            pair[0] += nbytes
            pair[1] += frames
            # Frames depart in order, so time up to the last departure is counted already.
            pair[2] += max(0, departed_ns - max(started_ns, pair[3]))
            pair[3] = max(departed_ns, pair[3])
            frames = 0

    def landed(self, lid: int, memory: int, nbytes: int) -> None:
        """Payload that came to the HCA with `lid` is in `memory` now."""
        key = (lid, memory)
        self._landed[key] = self._landed.get(key, 0) + nbytes

    def dealer(self, slid: int, dlid: int, label: int, ways: int, lost: Iterable[int]) -> PacketDealer:
        """Who deals the packets of a sprayed flow: one for all flows that the fabric cannot tell apart."""
        dealer = self._dealers.get((slid, dlid, label))
        if dealer is None:
            dealer = self._dealers[slid, dlid, label] = PacketDealer(ways)
        dealer.set_ways(ways, lost)
        return dealer

    def drop_dealer(self, slid: int, dlid: int, label: int) -> None:
        """The flow is gone; what it sent is still to be reported."""
        dealer = self._dealers.pop((slid, dlid, label), None)
        if dealer is not None and any(dealer.nbytes):
            self._dealt.append(SprayCounter(slid, dlid, label, dealer.take()))

    def debt(self, late_ns: int, modelled_ns: int) -> None:
        """A frame arrived `late_ns` after the model's instant; the model gave it `modelled_ns` in all (fabric time)."""
        permille = max(0, late_ns) * 1000 // modelled_ns
        self._debts_seen += 1
        if len(self._debts) < _SAMPLES:
            self._debts.append(permille)
        elif (slot := self._rng.randrange(self._debts_seen)) < _SAMPLES:
            self._debts[slot] = permille

    def report(self, retransmits: int) -> Counters:
        """Everything since the last report. `retransmits` is the engines' total so far."""
        for flow, dealer in self._dealers.items():
            if any(dealer.nbytes):
                self._dealt.append(SprayCounter(*flow, dealer.take()))
        counters = Counters(
            [
                PairCounter(slid, dlid, nbytes, frames, busy_ns, label, memory, vl)
                for (slid, dlid, label, memory, vl), (nbytes, frames, busy_ns, _) in self._pairs.items()
            ],
            self._debts,
            retransmits - self._retransmits_reported,
            self._dealt,
            [LandedCounter(lid, memory, nbytes) for (lid, memory), nbytes in self._landed.items()],
        )
        self._dealt = []
        self._pairs = {}
        self._landed = {}
        self._debts = []
        self._debts_seen = 0
        self._retransmits_reported = retransmits
        return counters
