"""Tier 0 of the fabric model: which flow gets what rate, now.

Flows come and go; after any number of changes one recomputation gives every active flow its weighted max-min fair share
of the links on its path, and the caller learns only the rates that changed.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

import numpy as np

from fauxrdma.errors import LocalProtocolError
from fauxrdma.fabric.maxmin import max_min_rates
from fauxrdma.fabric.subnet import Path, SubnetManager
from fauxrdma.units import Rate

__all__ = ["MAX_WEIGHT", "MIN_WEIGHT", "FabricModel"]

MIN_WEIGHT, MAX_WEIGHT = 1e-3, 1e3
"""Weights outside would starve others, and lose precision against each other."""

F = TypeVar("F", bound=Hashable)


class FabricModel(Generic[F]):
    """Weighted max-min fair rates over the active flows. Flows are named by any hashable key.

    Flows live in the rows of arrays, without holes: row r has the links of its path, what part of it crosses
    each, its weight and the rate last told for it (-1: never told).
    """

    def __init__(self, payload_rates: Sequence[Rate]) -> None:
        """`payload_rates`: what each link of the topology carries, by link id, headers taken off."""
        self._capacity = np.array([rate.bits_per_s for rate in payload_rates], dtype=np.float64)
        self._flows: list[F] = []
        self._row: dict[F, int] = {}
        self._links = np.full((16, 8), len(self._capacity), dtype=np.intp)
        self._shares = np.ones((16, 8))
        self._weights = np.ones(16)
        self._told = np.full(16, -1, dtype=np.int64)
        self._dirty = False

    @classmethod
    def of(cls, manager: SubnetManager) -> FabricModel[F]:
        """The model of a subnet manager's topology."""
        return cls([manager.payload_rate(link.id) for link in manager.topology.links])

    def __contains__(self, flow: object) -> bool:
        return flow in self._row

    def __len__(self) -> int:
        return len(self._flows)

    def start(self, flow: F, path: Path, weight: float = 1.0) -> None:
        """Make `flow` active on `path`. One that is active already moves there and is told its rate anew.

        Raises LocalProtocolError for a weight outside MIN_WEIGHT..MAX_WEIGHT or a path without links.
        """
        if not (math.isfinite(weight) and MIN_WEIGHT <= weight <= MAX_WEIGHT):
            raise LocalProtocolError(f"flow {flow}: weight {weight} is not between {MIN_WEIGHT:g} and {MAX_WEIGHT:g}")
        if not path.links:
            raise LocalProtocolError(f"flow {flow}: its path has no links")
        row = self._row.get(flow)
        if row is None:
            row = len(self._flows)
            self._row[flow] = row
            self._flows.append(flow)
        self._make_room(row, len(path.links))
        self._links[row] = len(self._capacity)
        self._links[row, : len(path.links)] = path.links
        self._shares[row] = 1.0
        if path.ways:
            self._shares[row, : len(path.links)] = path.shares
        self._weights[row] = weight
        self._told[row] = -1
        self._dirty = True

    def set_capacities(self, payload_bps: dict[int, int]) -> None:
        """What these links (by id) carry from now on, in bits/s; at least one."""
        for link, rate_bps in payload_bps.items():
            self._capacity[link] = max(1, rate_bps)
        self._dirty = self._dirty or bool(payload_bps)

    def stop(self, flow: F) -> None:
        """Forget `flow`; what it used is shared out at the next recomputation. Idempotent."""
        row = self._row.pop(flow, None)
        if row is None:
            return
        last = self._flows.pop()
        if last != flow:  # the last row fills the hole
            end = len(self._flows)
            self._flows[row] = last
            self._row[last] = row
            self._links[row] = self._links[end]
            self._shares[row] = self._shares[end]
            self._weights[row] = self._weights[end]
            self._told[row] = self._told[end]
        self._dirty = True

    def changes(self) -> dict[F, int]:
        """Recompute if anything changed; the rates (bits/s) that differ from what was last told, by flow."""
        if not self._dirty:
            return {}
        self._dirty = False
        count = len(self._flows)
        if not count:
            return {}
        exact = max_min_rates(self._capacity, self._links[:count], self._weights[:count], self._shares[:count])
        rates = np.maximum(np.rint(exact), 1).astype(np.int64)
        changed = np.flatnonzero(rates != self._told[:count])
        self._told[:count] = rates
        return {self._flows[row]: int(rates[row]) for row in changed.tolist()}

    def rates(self) -> dict[F, int]:
        """The rates last told, in bits/s, of every active flow that was told one."""
        told = self._told[: len(self._flows)].tolist()
        return {flow: rate for flow, rate in zip(self._flows, told, strict=True) if rate >= 0}

    def _make_room(self, row: int, hops: int) -> None:
        rows, width = self._links.shape
        if row < rows and hops <= width:
            return
        grown = np.full((max(rows, 2 * row), max(width, hops)), len(self._capacity), dtype=np.intp)
        grown[:rows, :width] = self._links
        self._links = grown
        shares = np.ones(grown.shape)
        shares[:rows, :width] = self._shares
        self._shares = shares
        extra = len(grown) - rows
        self._weights = np.append(self._weights, np.ones(extra))
        self._told = np.append(self._told, np.full(extra, -1, dtype=np.int64))
