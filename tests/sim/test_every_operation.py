"""Every operation, algorithm, dtype and reduction over emulated queue pairs equals numpy, bit for bit."""

from __future__ import annotations

import sys
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fauxrdma.collectives import Plan
from fauxrdma.collectives.algorithms import ALGORITHMS, plan_for
from fauxrdma.collectives.request import Request
from fauxrdma.sim.plan_run import run_plan
from fauxrdma.sim.world import World

sys.path.insert(0, str(Path(__file__).parent.parent / "collectives"))
from oracle import DTYPES, ops_of, reduced, values

Arrays = list[dict[str, np.ndarray[Any, Any]]]
CHOICES = [(operation, algorithm) for operation, table in ALGORITHMS.items() for algorithm in table]
ROOTED = ("broadcast", "reduce", "gather", "scatter")
SLOTS, SLOT_BYTES, LANES = 8, 512, 2


def buffers_for(plan: Plan, dtype: np.dtype[Any], chance: np.random.Generator) -> Arrays:
    return [
        {name: values(chance, length, dtype) for name, length in plan.lengths(rank).items()}
        for rank in range(plan.world_size)
    ]


def expected(operation: str, request: Request, before: Arrays, op: str) -> list[np.ndarray[Any, Any]]:
    """What each rank must hold afterwards in `data` or `output`."""
    n, root = request.world_size, request.root
    if operation == "all_reduce":
        return [reduced([b["data"] for b in before], op)] * n
    if operation == "reduce":
        return [reduced([b["data"] for b in before], op) if rank == root else before[rank]["data"] for rank in range(n)]
    if operation == "broadcast":
        return [before[root]["data"]] * n
    if operation == "all_to_all":
        table = request.table
        starts = [[0, *accumulate(row)] for row in table]
        return [
            np.concatenate([before[a]["input"][starts[a][b] : starts[a][b + 1]] for a in range(n)]) for b in range(n)
        ]
    starts_of = [0, *accumulate(request.blocks)]
    pieces = [slice(starts_of[rank], starts_of[rank + 1]) for rank in range(n)]
    if operation == "reduce_scatter":
        whole = reduced([b["input"] for b in before], op)
        return [whole[piece] for piece in pieces]
    if operation == "scatter":
        return [before[root]["input"][piece] for piece in pieces]
    together = np.concatenate([b["input"] for b in before])
    if operation == "gather":
        return [together if rank == root else together[:0] for rank in range(n)]
    assert operation == "all_gather"
    return [together] * n


@settings(max_examples=12, deadline=None)
@pytest.mark.parametrize(("operation", "algorithm"), [choice for choice in CHOICES if choice[0] != "barrier"])
@given(data=st.data(), n=st.integers(1, 7), seed=st.integers(0, 1 << 30))
def test_equal_to_numpy(operation: str, algorithm: str, data: st.DataObject, n: int, seed: int) -> None:
    chance = np.random.default_rng(seed)
    dtype = np.dtype(data.draw(st.sampled_from(DTYPES), "dtype"))
    op = data.draw(st.sampled_from(ops_of(dtype)), "op")
    root = data.draw(st.integers(0, n - 1), "root") if operation in ROOTED else 0
    size = st.sampled_from([0, 1, 2, 3, 17, 64, 100, 257])
    counts: Any
    if operation in ("all_reduce", "reduce", "broadcast"):
        counts = data.draw(size, "count")
    elif operation == "all_to_all":
        counts = tuple(tuple(data.draw(size) for _ in range(n)) for _ in range(n))
    else:
        even = data.draw(st.booleans(), "even")
        counts = (data.draw(size),) * n if even else tuple(data.draw(size) for _ in range(n))
    width = data.draw(st.integers(1, n), "ranks on a node")
    nodes = tuple(tuple(range(first, min(first + width, n))) for first in range(0, n, width))
    rails = tuple(rank % width for rank in range(n))
    request = Request(operation, n, counts, dtype.itemsize, SLOT_BYTES, LANES, root, nodes, rails)
    plan = plan_for(request, algorithm)
    before = buffers_for(plan, dtype, chance)
    after = [{name: array.copy() for name, array in buffers.items()} for buffers in before]
    run_plan(World(n, seed=seed), plan, after, op=op, slots=SLOTS, slot_bytes=SLOT_BYTES)
    for rank, right in enumerate(expected(operation, request, before, op)):
        if operation == "reduce" and rank != root:
            continue  # scratch to the plan; the communicator gives it a copy
        got = after[rank]["data" if "data" in after[rank] else "output"]
        if dtype.kind == "c":  # the sign of a zero depends on the order of complex products
            assert np.array_equal(got, right), f"rank {rank}"
        else:
            assert got.tobytes() == right.astype(dtype).tobytes(), f"rank {rank}"


@pytest.mark.parametrize("n", [2, 3, 5])
def test_the_ring_reduces_floats_in_the_documented_order(n: int) -> None:
    chance = np.random.default_rng(n)
    inputs = [chance.standard_normal(n * 50).astype(np.float32) for _ in range(n)]
    request = Request("reduce_scatter", n, (50,) * n, 4, SLOT_BYTES, LANES)
    buffers = [{"input": x.copy(), "output": np.zeros(50, np.float32)} for x in inputs]
    run_plan(World(n, seed=1), plan_for(request), buffers, op="sum", slots=SLOTS, slot_bytes=SLOT_BYTES)
    for rank in range(n):
        blocks = [x[rank * 50 : (rank + 1) * 50] for x in inputs]
        right = blocks[(rank - 1) % n]
        for k in range(2, n + 1):
            right = blocks[(rank - k) % n] + right
        assert buffers[rank]["output"].tobytes() == right.tobytes()
