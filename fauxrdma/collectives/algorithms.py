"""Algorithms by name, each with the chunk that suits it: what a communicator chooses from.

The tables hold functions of (elements, ranks, bytes per element, bytes per staging slot, lanes) that make a plan.
"""

from __future__ import annotations

from collections.abc import Callable

from fauxrdma.collectives.bcube import bcube_all_reduce
from fauxrdma.collectives.partition import SMALLEST_PIPELINED_BYTES, chunk_elements, gloo_blocks
from fauxrdma.collectives.plan import Plan
from fauxrdma.collectives.recursive import halving_doubling_all_reduce, recursive_doubling_all_reduce
from fauxrdma.collectives.ring import ring_all_reduce
from fauxrdma.collectives.stepwise_rings import bidirectional_ring_all_reduce
from fauxrdma.collectives.trees import double_tree_all_reduce
from fauxrdma.errors import LocalProtocolError

__all__ = ["ALL_REDUCE", "PIPELINE_CHUNKS", "all_reduce_plan"]

PIPELINE_CHUNKS = 16
"""Into how many chunks a pipeline's buffer is cut, sizes permitting: one of n ranks then takes (n + 14) / 16 times the
data's own time."""

Builder = Callable[[int, int, int, int, int], Plan]


def _ring(count: int, n: int, itemsize: int, slot_bytes: int, lanes: int) -> Plan:
    chunk = chunk_elements(gloo_blocks(count, n, itemsize).block, itemsize, slot_bytes, lanes)
    return ring_all_reduce(count, n, itemsize=itemsize, chunk=chunk, lanes=lanes)


def _bidirectional(count: int, n: int, itemsize: int, slot_bytes: int, lanes: int) -> Plan:
    chunk = chunk_elements(-(-count // (2 * n)), itemsize, slot_bytes, lanes)
    return bidirectional_ring_all_reduce(count, n, chunk=chunk, lanes=lanes)


def _doubling(count: int, n: int, itemsize: int, slot_bytes: int, lanes: int) -> Plan:
    return recursive_doubling_all_reduce(
        count, n, chunk=chunk_elements(count, itemsize, slot_bytes, lanes), lanes=lanes
    )


def _halving(count: int, n: int, itemsize: int, slot_bytes: int, lanes: int) -> Plan:
    chunk = chunk_elements((count + 1) // 2, itemsize, slot_bytes, lanes)
    return halving_doubling_all_reduce(count, n, chunk=chunk, lanes=lanes)


def _bcube(count: int, n: int, itemsize: int, slot_bytes: int, lanes: int) -> Plan:
    return bcube_all_reduce(count, n, chunk=chunk_elements(count // 2 + 1, itemsize, slot_bytes, lanes), lanes=lanes)


def _direct(count: int, n: int, itemsize: int, slot_bytes: int, lanes: int) -> Plan:
    chunk = chunk_elements(-(-count // n), itemsize, slot_bytes, lanes)
    return bcube_all_reduce(count, n, base=max(2, n), chunk=chunk, lanes=lanes)


def _tree(count: int, n: int, itemsize: int, slot_bytes: int, lanes: int) -> Plan:
    chunk = chunk_elements(
        (count + 1) // 2, itemsize, slot_bytes, PIPELINE_CHUNKS, smallest_bytes=SMALLEST_PIPELINED_BYTES
    )
    return double_tree_all_reduce(count, n, chunk=chunk)


ALL_REDUCE: dict[str, Builder] = {
    "ring": _ring,
    "bidirectional-ring": _bidirectional,
    "recursive-doubling": _doubling,
    "halving-doubling": _halving,
    "double-tree": _tree,
    "bcube": _bcube,
    "direct": _direct,
}
"""All-reduce algorithms by name; `direct` is bcube in one stage."""


def all_reduce_plan(algorithm: str, count: int, n: int, itemsize: int, slot_bytes: int, lanes: int) -> Plan:
    """The plan of an algorithm of :data:`ALL_REDUCE`. Raises LocalProtocolError for another name."""
    build = ALL_REDUCE.get(algorithm)
    if build is None:
        raise LocalProtocolError(f"there is no all-reduce algorithm {algorithm!r}: choose {', '.join(ALL_REDUCE)}")
    return build(count, n, itemsize, slot_bytes, lanes)
