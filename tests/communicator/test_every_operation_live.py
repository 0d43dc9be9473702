"""A random sample of operations, dtypes, layouts and sizes over real daemons equals numpy."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rank_threads import all_well, run_ranks

from fauxrdma.collectives import Bfloat16Arithmetic
from fauxrdma.collectives.bfloat16 import bfloat16_bits, bfloat16_values
from fauxrdma.communicator import Communicator
from fauxrdma.errors import LocalProtocolError
from fauxrdma.lab.local import LocalLab

sys.path.insert(0, str(Path(__file__).parent.parent / "collectives"))
from oracle import DTYPES, ops_of, reduced, values

OPERATIONS = (
    "all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "gather", "scatter", "all_to_all",
)  # fmt: skip
SIZES = (0, 1, 7, 1000, 70_001)


def laid_out(chance: np.random.Generator, flat: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """`flat` in a layout of its own: as it is, every other element of a larger array, backwards, transposed, 0-d."""
    kind = chance.integers(0, 5)
    if kind == 1:
        wide = np.zeros(2 * flat.size, flat.dtype)
        wide[::2] = flat
        return wide[::2]
    if kind == 2:
        return flat[::-1].copy()[::-1]
    if kind == 3 and flat.size % 10 == 0:
        return np.asfortranarray(flat.reshape(10, -1))
    if kind == 4 and flat.size == 1:
        return flat.copy().reshape(())
    return flat.copy()


def one(communicator: Communicator, number: int) -> None:
    """Operation `number`: all ranks draw the same, and the layout each on its own."""
    rank, n = communicator.rank, communicator.world_size
    chance, own = np.random.default_rng(number), np.random.default_rng([number, rank])
    operation = OPERATIONS[number % len(OPERATIONS)]
    dtype = np.dtype(DTYPES[chance.integers(len(DTYPES))])
    op = ops_of(dtype)[chance.integers(len(ops_of(dtype)))]
    root, size = int(chance.integers(n)), SIZES[chance.integers(len(SIZES))]
    counts = [int(chance.integers(0, size + 1)) for _ in range(n)] if number % 3 else [size] * n
    parts = [
        values(chance, sum(counts) if operation in ("reduce_scatter", "scatter") else size, dtype) for _ in range(n)
    ]
    starts = np.cumsum([0, *counts])
    mine = slice(starts[rank], starts[rank + 1])
    array = laid_out(own, parts[rank])
    if operation == "all_reduce":
        communicator.all_reduce(array, op)
        right = reduced(parts, op)
    elif operation == "reduce":
        communicator.reduce(array, root, op)
        right = reduced(parts, op) if rank == root else parts[rank]
    elif operation == "broadcast":
        communicator.broadcast(array, root)
        right = parts[root]
    elif operation in ("all_gather", "gather"):
        source = laid_out(own, values(np.random.default_rng([number, 99, rank]), counts[rank], dtype))
        right = np.concatenate([values(np.random.default_rng([number, 99, r]), counts[r], dtype) for r in range(n)])
        array = laid_out(own, np.zeros(sum(counts), dtype))
        if operation == "all_gather":
            communicator.all_gather(array, source, counts=counts)
        else:
            communicator.gather(array if rank == root else None, source, root, counts=counts)
            right = right if rank == root else array.copy()
    elif operation in ("reduce_scatter", "scatter"):
        source, array = array, laid_out(own, np.zeros(counts[rank], dtype))
        if operation == "reduce_scatter":
            communicator.reduce_scatter(array, source, op, counts=counts)
            right = reduced(parts, op)[mine]
        else:
            communicator.scatter(array, source if rank == root else None, root, counts=counts)
            right = parts[root][mine]
    else:
        table = np.random.default_rng([number, 5]).integers(0, 50, (n, n))
        whole = [values(np.random.default_rng([number, 7, r]), int(table[r].sum()), dtype) for r in range(n)]
        array = laid_out(own, np.zeros(int(table[:, rank].sum()), dtype))
        source = laid_out(own, whole[rank])
        if number % 2:
            communicator.all_to_all(array, source, table.tolist())
        else:
            communicator.all_to_all_uneven(array, source, table[rank].tolist(), table[:, rank].tolist())
        at = [np.cumsum([0, *table[r]]) for r in range(n)]
        right = np.concatenate([whole[r][at[r][rank] : at[r][rank + 1]] for r in range(n)])
    note = f"{number}: {operation} {dtype} {op} size {size} counts {counts} root {root}"
    assert np.array_equal(array.reshape(-1), right.reshape(-1)), note


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_equal_to_numpy(lab: LocalLab, world_size: int) -> None:
    def work(communicator: Communicator) -> None:
        for number in range(64):
            one(communicator, 1000 * world_size + number)

    all_well(run_ranks(lab, world_size, work))


def test_bfloat16_in_uint16(lab: LocalLab) -> None:
    inputs = [bfloat16_bits(np.random.default_rng(r).standard_normal(999).astype(np.float32)) for r in range(3)]

    def work(communicator: Communicator) -> np.ndarray[Any, Any]:
        array = inputs[communicator.rank].copy()
        communicator.all_reduce(array, "avg", algorithm="recursive-doubling", arithmetic=Bfloat16Arithmetic)
        return array

    first, *others = all_well(run_ranks(lab, 3, work))
    exact = np.mean([bfloat16_values(x) for x in inputs], axis=0)
    assert np.allclose(bfloat16_values(first), exact, rtol=2e-2, atol=2e-2)
    assert all(np.array_equal(first, other) for other in others)


def test_in_place_and_overlapping_arrays(lab: LocalLab) -> None:
    def work(communicator: Communicator) -> None:
        rank, n = communicator.rank, communicator.world_size
        whole = np.full(n * 10, -1.0)
        whole[rank * 10 : (rank + 1) * 10] = rank
        communicator.all_gather(whole, whole[rank * 10 : (rank + 1) * 10])
        assert np.array_equal(whole, np.repeat(np.arange(n), 10))
        table = np.arange(n * 5.0) + 100 * rank
        communicator.all_to_all(table, table)
        block = np.arange(rank * 5, rank * 5 + 5)
        assert np.array_equal(table, np.concatenate([block + 100 * r for r in range(n)]))
        scattered = np.arange(n * 4.0)
        communicator.reduce_scatter(scattered[1:5], scattered)  # not its own block
        assert np.array_equal(scattered[1:5], n * np.arange(rank * 4, rank * 4 + 4))

    all_well(run_ranks(lab, 3, work))


def test_wrong_arguments_leave_nothing_behind(lab: LocalLab) -> None:
    def work(communicator: Communicator) -> None:
        n = communicator.world_size
        for call, text in (
            (lambda: communicator.all_gather(np.ones(3), np.ones(1), counts=[1, 1, 1]), "2 numbers of elements"),
            (lambda: communicator.all_gather(np.ones(3), np.ones(1), counts=[1, 1]), "ask for 2 elements in all"),
            (lambda: communicator.all_to_all_uneven(np.ones(2), np.ones(2), [1, 2], [1, 1]), "sends must be 2 numbers"),
            (lambda: communicator.all_to_all(np.ones(2), np.ones(2), [[2, 1], [0, 1]]), "by counts rank"),
            (lambda: communicator.all_reduce(np.ones(2), "band"), "has no band"),
            (lambda: communicator.all_reduce(np.ones(2, "M8[s]"), "sum"), "has no sum"),
            (lambda: communicator.gather(None, np.ones(2), communicator.rank), "must give the whole array"),
            (lambda: communicator.scatter(np.ones(2), None, n), "not a rank of 2"),
            (lambda: communicator.all_reduce([1.0, 2.0]), "a numpy array is needed"),  # type: ignore[arg-type]
            (lambda: communicator.broadcast(np.zeros(3, "V0")), "no bytes"),
        ):
            with pytest.raises(LocalProtocolError, match=text):
                call()
        array = np.ones(3)
        communicator.all_reduce(array)
        assert array.tolist() == [n] * 3

    all_well(run_ranks(lab, 2, work))
