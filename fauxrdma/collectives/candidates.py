"""Sizes as users give them, turned into requests: what the selector compares algorithms for.

Sizes are bytes as nccl-tests counts them: the buffer of an all_reduce, broadcast or reduce; the whole of the larger
side of the operations with a block per rank. Requests are made of single bytes, so that one choice serves every dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fauxrdma.collectives.request import Counts, Request
from fauxrdma.errors import ConfigError
from fauxrdma.topology.graph import Topology
from fauxrdma.topology.rails import rails_of
from fauxrdma.topology.rank_places import RankPlace, ranks_by_node

__all__ = ["LANES", "OPERATIONS", "SLOT_BYTES", "Ranks", "request_of"]

SLOT_BYTES, LANES = 2 << 20, 2
"""What a Communicator stages with unless told otherwise."""

_WHOLE = ("all_reduce", "broadcast", "reduce")
_BLOCKS = ("all_gather", "reduce_scatter", "gather", "scatter")
_TABLE = ("all_to_all",)
OPERATIONS = (*_WHOLE, *_BLOCKS, *_TABLE)
"""The operations that have a size; those with a root have rank 0."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """What a plan depends on besides its size. `nodes` lists the ranks of each node, `rails` is each rank's rail."""

    nodes: tuple[tuple[int, ...], ...]
    rails: tuple[int, ...] | None = None
    slot_bytes: int = SLOT_BYTES
    lanes: int = LANES

    @classmethod
    def of(cls, topology: Topology, places: Sequence[RankPlace], slot_bytes: int, lanes: int) -> Ranks:
        """Ranks at `places`. Rails are the fabric's; without, the numbers of the HCAs."""
        rail_of = rails_of(topology)
        rails = (rail_of.get(place.hca_name, place.hca - 1) for place in places)
        return cls(tuple(map(tuple, ranks_by_node(places))), tuple(rails), slot_bytes, lanes)

    @property
    def number(self) -> int:
        """How many ranks there are."""
        return sum(map(len, self.nodes))


def request_of(operation: str, nbytes: int, ranks: Ranks) -> Request:
    """The request for `operation` on `nbytes` bytes, blocks rounded up to whole bytes. Raises ConfigError for an
    operation that is none of :data:`OPERATIONS`."""
    n = ranks.number
    block = -(-nbytes // n)
    counts: Counts
    if operation in _WHOLE:
        counts = nbytes
    elif operation in _BLOCKS:
        counts = (block,) * n
    elif operation in _TABLE:
        counts = ((block,) * n,) * n
    else:
        raise ConfigError(f"there is nothing to choose for {operation!r}: it is one of {', '.join(OPERATIONS)}")
    return Request(operation, n, counts, 1, ranks.slot_bytes, ranks.lanes, nodes=ranks.nodes, rails=ranks.rails)
