"""Virtual lanes by source and destination. The service level is the lane: SL to VL maps are the identity."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fauxrdma.fabric.routing.switch_graph import SwitchGraph
from fauxrdma.ib.attributes import DATA_LANES

__all__ = ["DATA_LANES", "IslandLanes", "Lanes"]


class Lanes:
    """`needed` lanes keep the routes free of deadlock; all of `available` are used, to spread the load.

    `lane[source row, destination column]` is the lane that deadlock freedom asks for, `load` the pairs of HCAs on each.
    Lanes that would be idle go, one by one, to the lane with the most pairs for each lane that it has.
    """

    def __init__(
        self,
        graph: SwitchGraph,
        sources: npt.NDArray[np.intp],
        lids: npt.NDArray[np.intp],
        lane: npt.NDArray[np.uint8],
        load: npt.NDArray[np.float64],
        available: int,
    ) -> None:
        self.available = available
        self.needed = len(load)
        self.load = load.astype(int).tolist()
        rows = {int(switch): row for row, switch in enumerate(sources)}
        self._row = {end.lid: rows[end.switch] for end in graph.endpoints}
        self._column = {int(lid): column for column, lid in enumerate(lids)}
        self._lane = lane
        self._share = [1] * self.needed
        for _ in range(available - self.needed):
            fullest = max(range(self.needed), key=lambda at: load[at] / self._share[at])
            self._share[fullest] += 1
        self._first = [sum(self._share[:at]) for at in range(self.needed)]

    def __contains__(self, lid: object) -> bool:
        """Whether an HCA with this LID has lanes here."""
        return lid in self._row

    def lane(self, slid: int, dlid: int) -> int:
        """The lane of traffic between two HCAs, 0 for LIDs that are none. OpenSM draws lots among those that share a
        load; here both LIDs decide."""
        row, column = self._row.get(slid), self._column.get(dlid)
        if row is None or column is None:
            return 0
        base = int(self._lane[row, column])
        return self._first[base] + (slid + dlid) % self._share[base]


class IslandLanes:
    """The lanes of a fabric whose islands have lanes of their own, None for those on lane 0 alone."""

    def __init__(self, parts: Sequence[Lanes | IslandLanes | None]) -> None:
        self._parts = [part for part in parts if part is not None]
        self.needed: int = max((part.needed for part in self._parts), default=1)
        self.available: int = max((part.available for part in self._parts), default=1)

    def __contains__(self, lid: object) -> bool:
        """Whether an HCA with this LID has lanes here."""
        return any(lid in part for part in self._parts)

    def lane(self, slid: int, dlid: int) -> int:
        """The lane of traffic between two HCAs, 0 for LIDs that are none or on different islands."""
        return next((part.lane(slid, dlid) for part in self._parts if slid in part), 0)
