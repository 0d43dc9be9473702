"""What every rank must have after an operation, worked out from what the ranks put in, without a communicator or its
arithmetic; and how many elements are otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce

import numpy as np

from fauxrdma.collectives.arithmetic import Array
from fauxrdma.perf.coll.element_types import ElementType
from fauxrdma.perf.coll.operations import Buffers, Case
from fauxrdma.perf.coll.patterns import bfloat16_of, bfloat16_to_float, values

__all__ = ["combine", "count_different", "count_wrong", "expected", "fill"]

_CHUNK = 1 << 19
"""Elements that are worked out at a time."""

_REDUCED, _UNTOUCHED = -1, -2


@dataclass(frozen=True, slots=True)
class _Piece:
    """`count` elements at `offset` of what a rank receives: elements `at`, and on, of rank `source`; or of the
    reduction over all ranks; or as they were."""

    offset: int
    count: int
    source: int
    at: int = 0


def fill(case: Case, rank: int, buffers: Buffers, seed: int) -> None:
    """Put into `buffers` (full of zeros) what rank `rank` sends."""
    for start in range(0, case.send_count, _CHUNK):
        stop = min(start + _CHUNK, case.send_count)
        buffers.send[start:stop] = _of_rank(case, rank, start, stop, seed)


def expected(case: Case, rank: int, in_place: bool, seed: int) -> Iterator[tuple[int, Array]]:
    """What rank `rank` must have received, in order: the offset of each chunk and its elements."""
    for piece in _pieces(case, rank, in_place):
        for start in range(0, piece.count, _CHUNK):
            count = min(_CHUNK, piece.count - start)
            first, last = piece.at + start, piece.at + start + count
            if piece.source == _UNTOUCHED:
                chunk: Array = np.zeros(count, case.element.dtype)
            elif piece.source == _REDUCED:
                terms = [_of_rank(case, other, first, last, seed) for other in range(case.world_size)]
                chunk = combine(case.element, case.reduction, terms)
            else:
                chunk = _of_rank(case, piece.source, first, last, seed)
            yield piece.offset + start, chunk


def count_wrong(case: Case, rank: int, buffers: Buffers, seed: int) -> int:
    """The elements of rank `rank` that are not as they must be: of what it received, and, out of place, of what it sent
    and must still have."""
    wrong = 0
    for offset, chunk in expected(case, rank, buffers.in_place, seed):
        wrong += count_different(buffers.receive[offset : offset + chunk.size], chunk)
    if not buffers.in_place:
        for start in range(0, case.send_count, _CHUNK):
            stop = min(start + _CHUNK, case.send_count)
            wrong += count_different(buffers.send[start:stop], _of_rank(case, rank, start, stop, seed))
    return wrong


def count_different(found: Array, right: Array) -> int:
    """How many elements differ, bit by bit; only zeros of either sign are the same."""
    size = right.dtype.itemsize
    if size <= 8:
        differ = np.ascontiguousarray(found).view(f"u{size}") != right.view(f"u{size}")
    else:
        differ = (np.ascontiguousarray(found).view("u8") != right.view("u8")).reshape(right.size, -1).any(axis=1)
    if right.dtype.kind in "fc" and differ.any():
        with np.errstate(invalid="ignore"):
            differ &= ~((found == 0) & (right == 0)) if right.dtype.kind == "f" else found != right
    return int(np.count_nonzero(differ))


def combine(element: ElementType, reduction: str, terms: list[Array]) -> Array:
    """The reduction of all ranks' `terms`, which must be such that it is exact. `avg` is the sum divided once: of
    integers towards zero, of floats to the nearest."""
    if element.kind == "bool":
        return _of_bools(reduction, terms)
    if element.kind in ("int", "uint"):
        return _of_integers(element, reduction, terms)
    if element.kind == "complex":
        exact = [term.astype(np.complex128) for term in terms]
        result = reduce(np.multiply if reduction == "prod" else np.add, exact)
        if reduction == "avg":
            result = result.real / len(terms) + 1j * (result.imag / len(terms))
        return result.astype(element.dtype)
    bfloat16 = element.kind == "bfloat16"
    numbers = [bfloat16_to_float(term) if bfloat16 else term.astype(np.float64) for term in terms]
    functions = {"prod": np.multiply, "max": np.maximum, "min": np.minimum}
    found = reduce(functions.get(reduction, np.add), numbers)
    if reduction == "avg":
        found = found / len(terms)
    return bfloat16_of(found) if bfloat16 else found.astype(element.dtype)


def _of_bools(reduction: str, terms: list[Array]) -> Array:
    stacked = np.stack(terms)
    if reduction == "bxor":
        return np.asarray(stacked.sum(axis=0) % 2 == 1)
    all_of = reduction in ("prod", "min", "band")
    return np.asarray(stacked.all(axis=0) if all_of else stacked.any(axis=0))


def _of_integers(element: ElementType, reduction: str, terms: list[Array]) -> Array:
    if reduction == "avg":
        total = sum((term.astype(np.int64) for term in terms), np.zeros(terms[0].size, np.int64))
        return np.asarray(np.sign(total) * (np.abs(total) // len(terms)), element.dtype)
    if reduction in ("max", "min"):
        return reduce(np.maximum if reduction == "max" else np.minimum, terms)
    # Modulo 2^64, and so modulo any smaller power of two.
    words = [term.astype(np.int64).view(np.uint64) for term in terms]
    functions = {
        "sum": np.add,
        "prod": np.multiply,
        "band": np.bitwise_and,
        "bor": np.bitwise_or,
        "bxor": np.bitwise_xor,
    }
    return reduce(functions[reduction], words).astype(element.dtype)


def _of_rank(case: Case, rank: int, start: int, stop: int, seed: int) -> Array:
    return values(case.element, case.reduction, rank, case.world_size, start, stop, seed)


def _pieces(case: Case, rank: int, in_place: bool) -> list[_Piece]:
    count, n, root = case.count, case.world_size, case.root
    everyone = [_Piece(source * count, count, source) for source in range(n)]
    match case.operation.name:
        case "all_reduce":
            return [_Piece(0, count, _REDUCED)]
        case "reduce":
            kept = rank if in_place else _UNTOUCHED
            return [_Piece(0, count, _REDUCED if rank == root else kept)]
        case "broadcast":
            return [_Piece(0, count, root)]
        case "all_gather":
            return everyone
        case "gather":
            if rank == root:
                return everyone
            return [
                _Piece(block * count, count, rank if in_place and block == rank else _UNTOUCHED) for block in range(n)
            ]
        case "reduce_scatter":
            return [_Piece(0, count, _REDUCED, rank * count)]
        case "scatter":
            return [_Piece(0, count, root, rank * count)]
        case "all_to_all":
            return [_Piece(source * count, count, source, rank * count) for source in range(n)]
        case _:
            return [_Piece(0, count, (rank - 1) % n)]
