"""``--verify``: a reduction of random floats against the same in float64, and its bits against those of a second run.

A sum of n floats, added in any order, is off by at most g(n-1) times the sum of their magnitudes, where
g(k) = k u / (1 - k u) and u is half the distance from 1 to the next float: 2^-24 for float, 2^-11 for half, 2^-8 for
bfloat16 (N. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 4.2). To divide for avg is one
rounding more. The reference itself is off by some n 2^-53, which is added.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fauxrdma.collectives.arithmetic import Array
from fauxrdma.perf.coll.element_types import ElementType
from fauxrdma.perf.coll.operations import Buffers, Case
from fauxrdma.perf.coll.patterns import bfloat16_of, bfloat16_to_float, random_bits

__all__ = ["Errors", "bits_of", "error_bound", "errors_of", "fill_randomly", "verifiable"]

_CHUNK = 1 << 19
_REDUCTIONS = ("sum", "avg")
_LEAST_HALF = 2.0**-24
"""The distance between halves next to zero: what dividing may lose there whatever the magnitudes."""


@dataclass(frozen=True, slots=True)
class Errors:
    """The largest error relative to the terms' magnitudes, and how many elements exceed the bound."""

    largest: float
    beyond: int


def verifiable(element: ElementType, reduction: str) -> bool:
    """Whether float64 says more about it than it says itself."""
    return reduction in _REDUCTIONS and element.kind in ("float", "bfloat16") and element.precision < 53


def error_bound(element: ElementType, reduction: str, n: int) -> float:
    """How far a reduction over `n` ranks may be off, relative to the sum of the terms' magnitudes (for avg: to their
    mean)."""
    roundings = max(0, n - 1 + (reduction == "avg" and n > 1))
    product = roundings * 2.0**-element.precision
    rounding = product / (1 - product) if product < 1 else float("inf")
    return rounding + n * 2.0**-53


def fill_randomly(case: Case, rank: int, buffers: Buffers, seed: int) -> None:
    """Put random numbers between -1 and 1 into what rank `rank` sends."""
    for start in range(0, case.send_count, _CHUNK):
        stop = min(start + _CHUNK, case.send_count)
        buffers.send[start:stop] = _terms(case.element, rank, start, stop, seed)


def errors_of(case: Case, rank: int, received: Array, seed: int) -> Errors:
    """How far what rank `rank` received is off. Empty for a rank that receives nothing."""
    if case.operation.rooted and rank != case.root:
        return Errors(0.0, 0)
    first = rank * case.count if case.operation.send_blocks else 0
    bound = error_bound(case.element, case.reduction, case.world_size)
    share = case.world_size if case.reduction == "avg" else 1
    largest, beyond = 0.0, 0
    for start in range(0, case.receive_count, _CHUNK):
        stop = min(start + _CHUNK, case.receive_count)
        total, magnitude = np.zeros(stop - start), np.zeros(stop - start)
        for other in range(case.world_size):
            term = _numbers(case.element, _terms(case.element, other, first + start, first + stop, seed))
            total += term
            magnitude += np.abs(term)
        with np.errstate(invalid="ignore"):  # a NaN is an error like any other
            off = np.abs(_numbers(case.element, received[start:stop]) - total / share)
        allowed = bound * magnitude / share + (_LEAST_HALF if case.reduction == "avg" else 0.0)
        beyond += int(np.count_nonzero(~(off <= allowed)))
        relative = off[magnitude > 0] / (magnitude[magnitude > 0] / share)
        largest = max(largest, float(relative.max(initial=0.0)))
    return Errors(largest, beyond)


def bits_of(received: Array) -> int:
    """A check sum of the bits."""
    return zlib.crc32(np.ascontiguousarray(received).view(np.uint8).data)


def _terms(element: ElementType, rank: int, start: int, stop: int, seed: int) -> Array:
    # 24 bits with a sign are exact in float64, and rounded once to what the ranks have.
    numbers = (random_bits(rank, start, stop, seed).astype(np.float64) - 2.0**31 + 0.5) / 2.0**31
    return bfloat16_of(numbers) if element.kind == "bfloat16" else numbers.astype(element.dtype)


def _numbers(element: ElementType, carried: Array) -> NDArray[np.float64]:
    return bfloat16_to_float(carried) if element.kind == "bfloat16" else carried.astype(np.float64)
