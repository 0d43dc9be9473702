"""Which algorithms an operation has, each as a function from a size to a plan: what the selector chooses among.

Sizes are bytes as nccl-tests counts them: the buffer of an all_reduce, broadcast or reduce; the whole of the larger
side of an all_gather, reduce_scatter or all_to_all. Plans are made of single bytes, so that one choice serves every
dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fauxrdma.collectives.algorithms import ALL_REDUCE, PIPELINE_CHUNKS, all_reduce_plan
from fauxrdma.collectives.direct import all_to_all, direct_all_gather, direct_reduce_scatter
from fauxrdma.collectives.hierarchical import (
    hierarchical_all_gather,
    hierarchical_all_reduce,
    hierarchical_reduce_scatter,
)
from fauxrdma.collectives.partition import SMALLEST_PIPELINED_BYTES, chunk_elements
from fauxrdma.collectives.plan import Plan
from fauxrdma.collectives.pxn import pxn_all_to_all
from fauxrdma.collectives.ring import ring_all_gather, ring_broadcast, ring_reduce_scatter
from fauxrdma.collectives.stepwise_rings import scatter_all_gather_broadcast
from fauxrdma.collectives.trees import tree_broadcast, tree_reduce
from fauxrdma.errors import ConfigError

__all__ = ["LANES", "OPERATIONS", "SLOT_BYTES", "Candidate", "Ranks", "candidates"]

SLOT_BYTES, LANES = 2 << 20, 2
"""What a Communicator stages with unless told otherwise."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """What a plan may depend on besides its size. `nodes` lists the ranks of each node, by rail."""

    nodes: tuple[tuple[int, ...], ...]
    slot_bytes: int = SLOT_BYTES
    lanes: int = LANES

    @classmethod
    def on(cls, nodes: Sequence[Sequence[int]], slot_bytes: int = SLOT_BYTES, lanes: int = LANES) -> Ranks:
        """From lists."""
        return cls(tuple(map(tuple, nodes)), slot_bytes, lanes)

    @property
    def number(self) -> int:
        """How many ranks there are."""
        return sum(map(len, self.nodes))

    def chunk(self, block: int) -> int:
        """Bytes per message for blocks of `block` bytes."""
        return chunk_elements(block, 1, self.slot_bytes, self.lanes)

    def pipeline_chunk(self, nbytes: int) -> int:
        """Bytes per message where ranks pass a buffer of `nbytes` on."""
        return chunk_elements(nbytes, 1, self.slot_bytes, PIPELINE_CHUNKS, smallest_bytes=SMALLEST_PIPELINED_BYTES)


Candidate = Callable[[int, Ranks], Plan]


def _all_reduce(algorithm: str) -> Candidate:
    return lambda nbytes, ranks: all_reduce_plan(algorithm, nbytes, ranks.number, 1, ranks.slot_bytes, ranks.lanes)


def _hierarchical(inner: str) -> Candidate:
    def build(nbytes: int, ranks: Ranks) -> Plan:
        def between(count: int, nodes: int) -> Plan:
            return all_reduce_plan(inner, count, nodes, 1, ranks.slot_bytes, ranks.lanes)

        chunk = ranks.chunk(-(-nbytes // min(map(len, ranks.nodes))))
        return hierarchical_all_reduce(nbytes, ranks.nodes, chunk=chunk, lanes=ranks.lanes, inner=between)

    return build


def _hierarchical_reduce_scatter(nbytes: int, ranks: Ranks) -> Plan:
    block = _blocks(nbytes, ranks)
    return hierarchical_reduce_scatter(block, ranks.nodes, chunk=ranks.chunk(block), lanes=ranks.lanes)


def _hierarchical_all_gather(nbytes: int, ranks: Ranks) -> Plan:
    block = _blocks(nbytes, ranks)
    return hierarchical_all_gather(block, ranks.nodes, chunk=ranks.chunk(block), lanes=ranks.lanes)


def _blocks(nbytes: int, ranks: Ranks) -> int:
    return -(-nbytes // ranks.number)


def _ring_all_gather(nbytes: int, ranks: Ranks) -> Plan:
    block = _blocks(nbytes, ranks)
    return ring_all_gather(block, ranks.number, chunk=ranks.chunk(block), lanes=ranks.lanes)


def _all_gather(pairwise: bool) -> Candidate:
    def build(nbytes: int, ranks: Ranks) -> Plan:
        block = _blocks(nbytes, ranks)
        counts = [block] * ranks.number
        return direct_all_gather(counts, chunk=ranks.chunk(block), lanes=ranks.lanes, pairwise=pairwise)

    return build


def _ring_reduce_scatter(nbytes: int, ranks: Ranks) -> Plan:
    block = _blocks(nbytes, ranks)
    return ring_reduce_scatter(block, ranks.number, chunk=ranks.chunk(block), lanes=ranks.lanes)


def _reduce_scatter(pairwise: bool) -> Candidate:
    def build(nbytes: int, ranks: Ranks) -> Plan:
        block = _blocks(nbytes, ranks)
        counts = [block] * ranks.number
        return direct_reduce_scatter(counts, chunk=ranks.chunk(block), lanes=ranks.lanes, pairwise=pairwise)

    return build


def _all_to_all(pairwise: bool) -> Candidate:
    def build(nbytes: int, ranks: Ranks) -> Plan:
        block = _blocks(nbytes, ranks)
        counts = [[block] * ranks.number for _ in range(ranks.number)]
        return all_to_all(counts, chunk=ranks.chunk(block), lanes=ranks.lanes, pairwise=pairwise)

    return build


def _pxn(nbytes: int, ranks: Ranks) -> Plan:
    block = _blocks(nbytes, ranks)
    counts = [[block] * ranks.number for _ in range(ranks.number)]
    return pxn_all_to_all(counts, ranks.nodes, chunk=ranks.chunk(block), lanes=ranks.lanes)


def _chain(nbytes: int, ranks: Ranks) -> Plan:
    return ring_broadcast(nbytes, ranks.number, 0, chunk=ranks.pipeline_chunk(nbytes))


def _tree_broadcast(nbytes: int, ranks: Ranks) -> Plan:
    return tree_broadcast(nbytes, ranks.number, 0, chunk=ranks.pipeline_chunk(nbytes))


def _scatter_all_gather(nbytes: int, ranks: Ranks) -> Plan:
    chunk = ranks.chunk(_blocks(nbytes, ranks))
    return scatter_all_gather_broadcast(nbytes, ranks.number, 0, chunk=chunk, lanes=ranks.lanes)


def _tree_reduce(nbytes: int, ranks: Ranks) -> Plan:
    return tree_reduce(nbytes, ranks.number, 0, chunk=ranks.pipeline_chunk(nbytes))


_CANDIDATES: dict[str, dict[str, Candidate]] = {
    "all_reduce": {
        **{name: _all_reduce(name) for name in ALL_REDUCE},
        "hierarchical": _hierarchical("ring"),
        "hierarchical-tree": _hierarchical("double-tree"),
    },
    "all_gather": {
        "ring": _ring_all_gather,
        "pairwise": _all_gather(True),
        "direct": _all_gather(False),
        "hierarchical": _hierarchical_all_gather,
    },
    "reduce_scatter": {
        "ring": _ring_reduce_scatter,
        "pairwise": _reduce_scatter(True),
        "direct": _reduce_scatter(False),
        "hierarchical": _hierarchical_reduce_scatter,
    },
    "all_to_all": {"pairwise": _all_to_all(True), "direct": _all_to_all(False), "pxn": _pxn},
    "broadcast": {"ring": _chain, "binomial-tree": _tree_broadcast, "scatter-all-gather": _scatter_all_gather},
    "reduce": {"binomial-tree": _tree_reduce},
}
OPERATIONS = tuple(_CANDIDATES)
"""The operations there is something to choose for; broadcast and reduce from and to rank 0."""
_NEEDS_NODES = ("hierarchical", "hierarchical-tree", "pxn")


def candidates(operation: str, ranks: Ranks) -> dict[str, Candidate]:
    """The algorithms that `operation` has for these ranks, by name; those that go by nodes only where several nodes
    have several ranks. Raises ConfigError for an unknown operation."""
    found = _CANDIDATES.get(operation)
    if found is None:
        raise ConfigError(f"there is no choice of algorithms for {operation!r}: it is one of {', '.join(OPERATIONS)}")
    if len(ranks.nodes) > 1 and min(map(len, ranks.nodes)) > 1:
        return found
    return {name: candidate for name, candidate in found.items() if name not in _NEEDS_NODES}
