"""Ways that climb first and then descend, given the rank of every switch (0 at the top)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fauxrdma.fabric.routing.minhop import BoolArray
from fauxrdma.fabric.routing.switch_graph import UNREACHED, HopArray, spread

__all__ = ["UpDownWays"]


class UpDownWays:
    """Legal next hops. Seen from the target, whose walk outwards also climbs and then descends.

    `peers[switch, port]` is the switch at the other end, -1 for none. Between switches of equal rank the one with the
    lower number is above, but between two of rank 0 every step is up.
    """

    def __init__(self, peers: npt.NDArray[np.intp], rank: npt.NDArray[np.int32]) -> None:
        self._peers = peers
        count = len(peers)
        mine = np.arange(count)[:, None]
        below = (rank[peers] > rank[:, None]) | ((rank[peers] == rank[:, None]) & (peers > mine))
        both_at_top = (rank[peers] == 0) & (rank[:, None] == 0)
        self._from_below: BoolArray = (peers >= 0) & (below | both_at_top)
        self._climbed = spread(np.where(self._from_below, peers, -1), np.eye(count, dtype=np.bool_))
        self.hops = self._then_down(np.where(self._from_below, -1, peers), rank)

    def _then_down(self, from_above: npt.NDArray[np.intp], rank: npt.NDArray[np.int32]) -> HopArray:
        """`[switch, target]`: hops of the best legal way, from the top down, since what is above comes first."""
        hops = self._climbed.copy()
        for at in np.lexsort((np.arange(len(rank)), rank)):
            above = from_above[at][from_above[at] >= 0]
            if above.size:
                hops[at] = np.minimum(hops[at], np.minimum(hops[above].min(axis=0) + 1, UNREACHED))
        return hops

    def usable_ports(self, target: int) -> BoolArray:
        """`[switch, port]`: whether the port starts a shortest legal way to switch `target`."""
        hops = self.hops[:, target]
        beyond = np.where(self._from_below, self._climbed[self._peers, target], hops[self._peers])
        reached = (hops > 0) & (hops < UNREACHED)
        return np.asarray((self._peers >= 0) & (beyond == (hops - 1)[:, None]) & reached[:, None])
