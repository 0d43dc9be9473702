"""The packets of one flow, dealt out over the ways that packet spray gives it.

A frame stands for many packets; they take the ways of the flow's cycle (`fauxrdma.fabric.routing.spray`) in turn, going
on where the last frame stopped. So how many bytes went which way follows from what was sent, and from nothing else.
Packets without payload (acknowledgements, READ requests, atomics) take turns of their own: how many there are depends
on the moment.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["PacketDealer", "mtu_bytes"]

_SMALLEST_MTU = 128
"""Times two to the power of an Mtu code: the MTU in bytes."""
_USUAL_MTU_CODE = 5
"""Of frames that do not tell theirs: a datagram, which is one packet in any case."""


def mtu_bytes(mtu_code: int) -> int:
    """The MTU in bytes that a frame's Mtu code says."""
    return _SMALLEST_MTU << (mtu_code or _USUAL_MTU_CODE)


class PacketDealer:
    """`nbytes[k]`: what has gone the k-th way of the cycle and was not taken yet."""

    __slots__ = ("_lost", "_next", "_next_empty", "nbytes")

    def __init__(self, ways: int) -> None:
        self.nbytes = [0] * ways
        self._lost: frozenset[int] = frozenset()
        self._next = 0
        self._next_empty = 0

    def set_ways(self, ways: int, lost: Iterable[int]) -> None:
        """The cycle has `ways` ways, of which those numbered `lost` lose what they are given. Another number of ways
        begins a new cycle: what went by the old one must have been taken."""
        self._lost = frozenset(lost)
        if ways != len(self.nbytes):
            self.nbytes = [0] * ways
            self._next = self._next_empty = 0

    def deal(self, nbytes: int, mtu_code: int) -> bool:
        """Deal a frame of `nbytes` of payload in packets of the MTU that the Mtu code says. Returns whether it is lost:
        all of it is when one of its packets is, since a receiver that waits for that one takes none behind it."""
        ways = len(self.nbytes)
        if not nbytes:
            at = self._next_empty
            self._next_empty = (at + 1) % ways
            return at in self._lost
        mtu = mtu_bytes(mtu_code)
        whole, rest = divmod(nbytes, mtu)
        rounds, odd = divmod(whole, ways)
        at = self._next
        counts = self.nbytes
        if rounds:
            counts[:] = [count + rounds * mtu for count in counts]
        for place in range(at, at + odd):
            counts[place % ways] += mtu
        if rest:
            counts[(at + odd) % ways] += rest
        packets = whole + (rest > 0)
        self._next = (at + packets) % ways
        if not self._lost:
            return False
        return packets >= ways or any(place % ways in self._lost for place in range(at, at + packets))

    def extra_bytes(self, nbytes: int, mtu_code: int) -> int:
        """As in ImpairedFlow: a healthy link replays nothing."""
        return 0

    def take(self) -> list[int]:
        """What went which way since the last time."""
        taken, self.nbytes = self.nbytes, [0] * len(self.nbytes)
        return taken
