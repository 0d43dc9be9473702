"""Which algorithm to use: the one that is predicted to be done first on this fabric, for this size and these ranks.

A prediction plays the whole plan over the fabric's links (`fabric_cost`), so it knows of rails, shared trunks and
switches on the way, and of the transport's latencies. `Selector.choose` remembers: a size is rounded to the nearest
power of two, and each of those is computed once.

All ranks must come to the same choice. It depends only on what they share: topology, routing engine, places, staging
and size; ties go to the algorithm that is listed first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fauxrdma.collectives.algorithms import NEED_NODES, PIPELINED, algorithms_for, plan_for
from fauxrdma.collectives.candidates import LANES, SLOT_BYTES, Ranks, request_of
from fauxrdma.collectives.channelled import ChannelledPlan, over_channels
from fauxrdma.collectives.channels import ChannelRoute
from fauxrdma.collectives.fabric_cost import FabricCost, fabric_cost
from fauxrdma.collectives.plan import Plan
from fauxrdma.collectives.rank_paths import RankPaths
from fauxrdma.collectives.request import FILE_PREFIX, Request
from fauxrdma.errors import ConfigError, FabricUnhealthy

__all__ = ["PIECES", "Choice", "Crossover", "SelectionTable", "Selector", "rounded_size"]

PIECES = (4, 16, 64)
"""The numbers of pieces that are tried for algorithms that cut their buffer."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The algorithm for one size, with every candidate's predicted time in ns of fabric time. `pieces` says of those
    that cut their buffer into pieces how many were the best. `unusable` says why others cannot be used: ranks that
    they let talk have no path."""

    operation: str
    nbytes: int
    algorithm: str
    predicted_ns: Mapping[str, int]
    pieces: Mapping[str, int]
    unusable: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Crossover:
    """From `nbytes` on (as sizes were tabulated) `algorithm` is the fastest, no longer `instead_of`."""

    nbytes: int
    algorithm: str
    instead_of: str


@dataclass(frozen=True, slots=True)
class SelectionTable:
    """Choices over sizes."""

    operation: str
    choices: tuple[Choice, ...]

    @property
    def algorithms(self) -> list[str]:
        """Every candidate that some size can use, in the order of the candidates."""
        return list(dict.fromkeys(name for choice in self.choices for name in choice.predicted_ns))

    @property
    def unusable(self) -> dict[str, str]:
        """Candidates that cannot be used at all, and why."""
        return {name: why for choice in self.choices for name, why in choice.unusable.items()}

    @property
    def crossovers(self) -> list[Crossover]:
        """Where the choice changes."""
        pairs = zip(self.choices, self.choices[1:], strict=False)
        return [
            Crossover(after.nbytes, after.algorithm, before.algorithm)
            for before, after in pairs
            if before.algorithm != after.algorithm
        ]


def rounded_size(nbytes: int) -> int:
    """The power of two that is nearest to `nbytes` by ratio: sizes in between share its choice."""
    return 1 << max(0, round(math.log2(nbytes))) if nbytes > 0 else 1


class Selector:
    """Chooses algorithms for the ranks at the places of `paths`; `slot_bytes` and `lanes` as the communicator has them.

    `ranks` says which are on which node and rail where that is not as the places have it. `routes` are the ways of the
    channels over which rings and trees are cut, with staging slots of `channel_slot_bytes` each.
    """

    def __init__(
        self,
        paths: RankPaths,
        *,
        ranks: Ranks | None = None,
        slot_bytes: int = SLOT_BYTES,
        lanes: int = LANES,
        routes: tuple[ChannelRoute, ...] = (),
        channel_slot_bytes: int = SLOT_BYTES,
    ) -> None:
        self.paths = paths
        self._routes = routes
        self._channel_slot_bytes = channel_slot_bytes
        self.ranks = Ranks.of(paths.topology, paths.places, slot_bytes, lanes) if ranks is None else ranks
        self._choices: dict[tuple[str, int], Choice] = {}

    def choose(self, operation: str, nbytes: int) -> Choice:
        """The algorithm for `operation` on `nbytes`, which are rounded. Raises ConfigError for an unknown operation,
        FabricUnhealthy when no algorithm has paths for its messages."""
        key = (operation, nbytes)
        known = self._choices.get(key)
        if known is None:
            known = self._choices[key] = self._rounded(operation, rounded_size(nbytes))
        return known

    def _rounded(self, operation: str, nbytes: int) -> Choice:
        key = (operation, nbytes)
        if key not in self._choices:
            self._choices[key] = self.compare(operation, nbytes)
        return self._choices[key]

    def compare(self, operation: str, nbytes: int, algorithms: Sequence[str] | None = None) -> Choice:
        """As `choose`, for exactly this size and computed anew; of `algorithms` (among them ``file:PATH``), by default
        all that these ranks have."""
        predicted: dict[str, int] = {}
        pieces: dict[str, int] = {}
        unusable: dict[str, str] = {}
        for name in self.algorithms(operation) if algorithms is None else algorithms:
            try:
                if name in PIPELINED:
                    predicted[name], pieces[name] = self._best_pieces(operation, name, nbytes)
                else:
                    predicted[name] = self.cost(operation, name, nbytes).predicted_ns
            except FabricUnhealthy as error:
                unusable[name] = str(error)
        if not predicted:
            raise FabricUnhealthy(f"no algorithm can do {operation} here: {next(iter(unusable.values()))}")
        return Choice(operation, nbytes, min(predicted, key=predicted.__getitem__), predicted, pieces, unusable)

    def _best_pieces(self, operation: str, algorithm: str, nbytes: int) -> tuple[int, int]:
        """The least predicted time, and the number of pieces that gives it."""
        found: dict[int, tuple[int, int]] = {}
        for pieces in PIECES:
            plan = self.plan(operation, algorithm, nbytes, pieces)
            chunk = plan.chunk if isinstance(plan, Plan) else plan.parts[0].chunk
            if chunk not in found:  # small buffers are not cut as often as asked for
                found[chunk] = (fabric_cost(plan, 1, self.paths).predicted_ns, pieces)
        return min(found.values())

    def table(self, operation: str, sizes: Sequence[int], algorithms: Sequence[str] | None = None) -> SelectionTable:
        """The choices for `sizes`, each computed for exactly that size."""
        return SelectionTable(operation, tuple(self.compare(operation, size, algorithms) for size in sizes))

    def algorithms(self, operation: str) -> list[str]:
        """The names of the algorithms that these ranks have. Raises ConfigError for an unknown operation."""
        return algorithms_for(request_of(operation, 1, self.ranks))

    def plan(self, operation: str, algorithm: str, nbytes: int, pieces: int = 0) -> Plan | ChannelledPlan:
        """The plan of one algorithm, in bytes; `pieces` as in a Request. Raises ConfigError for one that these ranks do
        not have, or a mistake in a file."""
        request = request_of(operation, nbytes, self.ranks)
        names = algorithms_for(request)
        if algorithm not in names and not algorithm.startswith(FILE_PREFIX):
            raise ConfigError(
                f"there is no algorithm {algorithm!r} for {operation} by these ranks: choose {', '.join(names)}"
            )
        return self.plan_of(replace(request, pieces=pieces), algorithm)

    def plan_of(self, request: Request, algorithm: str) -> Plan | ChannelledPlan:
        """The plan for any request of these ranks, cut over their channels as a communicator does it."""
        if self._routes and algorithm not in NEED_NODES:
            smaller = replace(request, slot_bytes=self._channel_slot_bytes)
            if (cut := over_channels(smaller, algorithm, self._routes)) is not None:
                return cut
        return plan_for(request, algorithm)

    def cost(self, operation: str, algorithm: str, nbytes: int, pieces: int = 0) -> FabricCost:
        """The cost of one algorithm. Raises as `plan` and `fabric_cost`."""
        return fabric_cost(self.plan(operation, algorithm, nbytes, pieces), 1, self.paths)
