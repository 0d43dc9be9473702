"""Algorithms by operation and name, each with the chunk that suits it: the one place that turns a request into a plan.

To add an algorithm, write a function of a Request that makes the plan and enter it in :data:`ALGORITHMS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from fauxrdma.collectives.barrier import dissemination_barrier
from fauxrdma.collectives.bcube import bcube_all_reduce
from fauxrdma.collectives.direct import all_to_all, direct_all_gather, direct_reduce_scatter, gather, scatter
from fauxrdma.collectives.hierarchical import (
    hierarchical_all_gather,
    hierarchical_all_reduce,
    hierarchical_reduce_scatter,
)
from fauxrdma.collectives.partition import SMALLEST_PIPELINED_BYTES, chunk_elements, gloo_blocks
from fauxrdma.collectives.plan import Plan
from fauxrdma.collectives.pxn import pxn_all_to_all
from fauxrdma.collectives.rail_order import align_rails, common_rails
from fauxrdma.collectives.recursive import halving_doubling_all_reduce, recursive_doubling_all_reduce
from fauxrdma.collectives.request import FILE_PREFIX, Request
from fauxrdma.collectives.ring import ring_all_gather, ring_all_reduce, ring_broadcast, ring_reduce_scatter
from fauxrdma.collectives.stepwise_rings import (
    bidirectional_ring_all_reduce,
    scatter_all_gather_broadcast,
    uneven_ring_all_gather,
)
from fauxrdma.collectives.trees import double_tree_all_reduce, tree_broadcast, tree_reduce
from fauxrdma.errors import LocalProtocolError

__all__ = [
    "ALGORITHMS",
    "ALL_REDUCE",
    "DEFAULTS",
    "NEED_NODES",
    "PIPELINED",
    "PIPELINE_CHUNKS",
    "algorithms_for",
    "all_reduce_plan",
    "chunk_for",
    "plan_for",
]

PIPELINE_CHUNKS = 16
"""Into how many chunks a pipeline's buffer is cut, sizes permitting: one of n ranks then takes (n + 14) / 16 times the
data's own time."""

Builder = Callable[[Request], Plan]


def chunk_for(request: Request, block: int) -> int:
    """Elements per message where blocks of `block` elements travel, `lanes` messages at a time."""
    return chunk_elements(block, request.itemsize, request.slot_bytes, request.lanes)


def _pipelined(request: Request, block: int) -> int:
    """The same where chunks follow each other through a pipeline of ranks."""
    return chunk_elements(
        block,
        request.itemsize,
        request.slot_bytes,
        request.pieces or PIPELINE_CHUNKS,
        smallest_bytes=SMALLEST_PIPELINED_BYTES,
    )


# All-reduce.


def _ring(request: Request) -> Plan:
    count, n, itemsize = request.count, request.world_size, request.itemsize
    chunk = chunk_for(request, gloo_blocks(count, n, itemsize).block)
    return ring_all_reduce(count, n, itemsize=itemsize, chunk=chunk, lanes=request.lanes)


def _bidirectional(request: Request) -> Plan:
    count, n = request.count, request.world_size
    return bidirectional_ring_all_reduce(count, n, chunk=chunk_for(request, -(-count // (2 * n))), lanes=request.lanes)


def _doubling(request: Request) -> Plan:
    count = request.count
    return recursive_doubling_all_reduce(
        count, request.world_size, chunk=chunk_for(request, count), lanes=request.lanes
    )


def _halving(request: Request) -> Plan:
    count = request.count
    chunk = chunk_for(request, (count + 1) // 2)
    return halving_doubling_all_reduce(count, request.world_size, chunk=chunk, lanes=request.lanes)


def _bcube(request: Request) -> Plan:
    count = request.count
    chunk = chunk_for(request, count // 2 + 1)
    return bcube_all_reduce(count, request.world_size, chunk=chunk, lanes=request.lanes)


def _direct(request: Request) -> Plan:
    count, n = request.count, request.world_size
    return bcube_all_reduce(count, n, base=max(2, n), chunk=chunk_for(request, -(-count // n)), lanes=request.lanes)


def _double_tree(request: Request) -> Plan:
    count = request.count
    return double_tree_all_reduce(count, request.world_size, chunk=_pipelined(request, (count + 1) // 2))


# From one, to one.


def _chain_broadcast(request: Request) -> Plan:
    count = request.count
    return ring_broadcast(count, request.world_size, request.root, chunk=_pipelined(request, count))


def _tree_broadcast(request: Request) -> Plan:
    count = request.count
    return tree_broadcast(count, request.world_size, request.root, chunk=_pipelined(request, count))


def _scatter_all_gather(request: Request) -> Plan:
    count, n = request.count, request.world_size
    chunk = chunk_for(request, -(-count // n))
    return scatter_all_gather_broadcast(count, n, request.root, chunk=chunk, lanes=request.lanes)


def _tree_reduce(request: Request) -> Plan:
    count = request.count
    return tree_reduce(count, request.world_size, request.root, chunk=_pipelined(request, count))


def _gather(request: Request) -> Plan:
    blocks = request.blocks
    return gather(blocks, request.root, chunk=chunk_for(request, max(blocks)), lanes=request.lanes)


def _scatter(request: Request) -> Plan:
    blocks = request.blocks
    return scatter(blocks, request.root, chunk=chunk_for(request, max(blocks)), lanes=request.lanes)


# Blocks of every rank.


def _ring_all_gather(request: Request) -> Plan:
    blocks, n = request.blocks, request.world_size
    chunk = chunk_for(request, max(blocks))
    if min(blocks) == max(blocks):
        return ring_all_gather(blocks[0], n, chunk=chunk, lanes=request.lanes)
    return uneven_ring_all_gather(blocks, chunk=chunk, lanes=request.lanes)


def _ring_reduce_scatter(request: Request) -> Plan:
    blocks, n = request.blocks, request.world_size
    if min(blocks) != max(blocks):
        return _pairwise_reduce_scatter(request)
    return ring_reduce_scatter(blocks[0], n, chunk=chunk_for(request, blocks[0]), lanes=request.lanes)


def _pairwise_reduce_scatter(request: Request) -> Plan:
    return direct_reduce_scatter(request.blocks, chunk=chunk_for(request, max(request.blocks)), lanes=request.lanes)


def _direct_reduce_scatter(request: Request) -> Plan:
    chunk = chunk_for(request, max(request.blocks))
    return direct_reduce_scatter(request.blocks, chunk=chunk, lanes=request.lanes, pairwise=False)


def _pairwise_all_gather(request: Request) -> Plan:
    chunk = chunk_for(request, max(request.blocks))
    return direct_all_gather(request.blocks, chunk=chunk, lanes=request.lanes, pairwise=True)


def _direct_all_gather(request: Request) -> Plan:
    return direct_all_gather(request.blocks, chunk=chunk_for(request, max(request.blocks)), lanes=request.lanes)


def _all_to_all(request: Request, *, pairwise: bool) -> Plan:
    table = request.table
    # Ranks that do not know the whole table must still cut their messages alike: by the slot alone.
    whole_slot = request.slot_bytes // request.itemsize
    chunk = whole_slot if request.partial else chunk_for(request, max(map(max, table)))
    return all_to_all(table, chunk=chunk, lanes=request.lanes, pairwise=pairwise)


# By nodes and rails.


def _nodes_by_rail(request: Request, algorithm: str) -> tuple[list[list[int]], int]:
    """The ranks of each node, those on rails that all nodes have first, and how many of these rails there are; without
    a common one, as many as the smallest node has ranks."""
    if request.nodes is None:
        raise LocalProtocolError(f"the {algorithm} {request.operation} goes by nodes, and it is not known who is where")
    if request.rails is None:
        return [list(ranks) for ranks in request.nodes], min(map(len, request.nodes))
    nodes = align_rails(request.nodes, request.rails)
    return nodes, common_rails(nodes, request.rails) or min(map(len, nodes))


def _hierarchical_all_reduce(inner: str) -> Builder:
    def build(request: Request) -> Plan:
        nodes, rails = _nodes_by_rail(request, "hierarchical")

        def between(count: int, ranks: int) -> Plan:
            return plan_for(replace(request, world_size=ranks, counts=count, nodes=None, rails=None), inner)

        chunk = chunk_for(request, -(-request.count // rails))
        return hierarchical_all_reduce(
            request.count, nodes, chunk=chunk, lanes=request.lanes, inner=between, rails=rails
        )

    return build


def _hierarchical_reduce_scatter(request: Request) -> Plan:
    block, *others = set(request.blocks)
    if others:
        return _pairwise_reduce_scatter(request)
    nodes, rails = _nodes_by_rail(request, "hierarchical")
    chunk = chunk_for(request, block)
    return hierarchical_reduce_scatter(block, nodes, chunk=chunk, lanes=request.lanes, rails=rails)


def _hierarchical_all_gather(request: Request) -> Plan:
    block, *others = set(request.blocks)
    if others:
        return _ring_all_gather(request)
    nodes, rails = _nodes_by_rail(request, "hierarchical")
    return hierarchical_all_gather(block, nodes, chunk=chunk_for(request, block), lanes=request.lanes, rails=rails)


def _pxn(request: Request) -> Plan:
    if request.partial:
        raise LocalProtocolError("pxn all-to-all hands on what others send, so it needs the counts of all ranks")
    nodes, _ = _nodes_by_rail(request, "pxn")
    table = request.table
    chunk = chunk_for(request, max(map(max, table)))
    return pxn_all_to_all(table, nodes, chunk=chunk, lanes=request.lanes, rails=request.rails)


ALGORITHMS: dict[str, dict[str, Builder]] = {
    "all_reduce": {
        "ring": _ring,
        "bidirectional-ring": _bidirectional,
        "recursive-doubling": _doubling,
        "halving-doubling": _halving,
        "double-tree": _double_tree,
        "bcube": _bcube,
        "direct": _direct,
        "hierarchical": _hierarchical_all_reduce("ring"),
        "hierarchical-tree": _hierarchical_all_reduce("double-tree"),
    },
    "broadcast": {
        "chain": _chain_broadcast,
        "binomial-tree": _tree_broadcast,
        "scatter-all-gather": _scatter_all_gather,
    },
    "reduce": {"binomial-tree": _tree_reduce},
    "reduce_scatter": {
        "ring": _ring_reduce_scatter,
        "pairwise": _pairwise_reduce_scatter,
        "direct": _direct_reduce_scatter,
        "hierarchical": _hierarchical_reduce_scatter,
    },
    "all_gather": {
        "ring": _ring_all_gather,
        "pairwise": _pairwise_all_gather,
        "direct": _direct_all_gather,
        "hierarchical": _hierarchical_all_gather,
    },
    "gather": {"direct": _gather},
    "scatter": {"direct": _scatter},
    "all_to_all": {
        "pairwise": lambda request: _all_to_all(request, pairwise=True),
        "direct": lambda request: _all_to_all(request, pairwise=False),
        "pxn": _pxn,
    },
    "barrier": {"dissemination": lambda request: dissemination_barrier(request.world_size)},
}
"""The algorithms of each operation by name. The `direct` all-reduce is bcube in one stage; the `ring` reduce-scatter of
unequal blocks is pairwise, and so is the `hierarchical` one; the `hierarchical` all-gather of such is a ring."""

NEED_NODES = frozenset({"hierarchical", "hierarchical-tree", "pxn"})
"""Algorithms whose Request must say which ranks are on which node."""

PIPELINED = frozenset({"chain", "binomial-tree", "double-tree", "hierarchical-tree"})
"""Algorithms that pass a buffer on in pieces: more of them keep more ranks busy, fewer need fewer messages."""

DEFAULTS = {operation: next(iter(algorithms)) for operation, algorithms in ALGORITHMS.items()}
"""The algorithm taken when none is named: the first of each."""

ALL_REDUCE = {name: build for name, build in ALGORITHMS["all_reduce"].items() if name not in NEED_NODES}
"""All-reduce algorithms that go by the number of ranks alone."""


def algorithms_for(request: Request) -> list[str]:
    """The names of the algorithms that make sense for `request`: those that go by nodes only where several nodes have
    several ranks. Raises LocalProtocolError for an operation there is not."""
    nodes = request.nodes
    by_nodes = nodes is not None and len(nodes) > 1 and min(map(len, nodes)) > 1
    return [name for name in _of_operation(request.operation) if by_nodes or name not in NEED_NODES]


def _of_operation(operation: str) -> dict[str, Builder]:
    algorithms = ALGORITHMS.get(operation)
    if algorithms is None:
        raise LocalProtocolError(f"there is no operation {operation!r}: choose {', '.join(ALGORITHMS)}")
    return algorithms


@lru_cache(maxsize=512)
def plan_for(request: Request, algorithm: str | None = None) -> Plan:
    """The plan for `request` by `algorithm` (default: :data:`DEFAULTS`; ``file:PATH``: a file's, see docs/plans.md).
    Kept, as sizes repeat in training.

    Raises LocalProtocolError for an operation or algorithm there is not, or sizes that make no sense; ConfigError for a
    file that has a mistake.
    """
    algorithms = _of_operation(request.operation)
    if not 0 <= request.root < request.world_size:
        raise LocalProtocolError(f"{request.operation}: root {request.root} is not a rank of {request.world_size}")
    if algorithm is not None and algorithm.startswith(FILE_PREFIX):
        from fauxrdma.collectives.plan_file import plan_of_file  # brings a YAML parser, which others do not need

        return plan_of_file(algorithm.removeprefix(FILE_PREFIX), request)
    build = algorithms.get(algorithm or DEFAULTS[request.operation])
    if build is None:
        name = request.operation.replace("_", "-")
        raise LocalProtocolError(f"there is no {name} algorithm {algorithm!r}: choose {', '.join(algorithms)}")
    return build(request)


def all_reduce_plan(algorithm: str, count: int, n: int, itemsize: int, slot_bytes: int, lanes: int) -> Plan:
    """The plan of an all-reduce over `n` ranks. Raises LocalProtocolError for an unknown algorithm."""
    return plan_for(Request("all_reduce", n, count, itemsize, slot_bytes, lanes), algorithm)
