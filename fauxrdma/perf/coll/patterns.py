"""The values that ranks put in, such that every reduction has one right result, whatever the order it is done in.

As in nccl-tests' verifiable data: what a rank has at an element follows from rank, element and seed alone, so that any
rank can work out what any other sent; and it is chosen so that no rounding occurs. Integers are any bits, since they
wrap around. Floats to be summed are whole numbers of which all ranks' sum still fits the significand; to be multiplied,
powers of two of either sign. Where nothing is reduced, any bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fauxrdma.collectives.arithmetic import Array
from fauxrdma.perf.coll.element_types import ElementType

__all__ = ["bfloat16_of", "bfloat16_to_float", "random_bits", "values"]

_LARGEST_TERM = 1 << 20
_DOUBLING_RANKS = 14
"""So many ranks may multiply by two or a half before a half overflows; the others by one."""


def random_bits(rank: int, start: int, stop: int, seed: int) -> NDArray[np.uint32]:
    """32 bits for each of the elements from `start` to `stop` of rank `rank`."""
    salt = (seed * 0x9E3779B1 + rank * 0x85EBCA77 + 0x165667B1) & 0xFFFFFFFF
    bits = np.arange(start, stop, dtype=np.uint64).astype(np.uint32)
    bits *= np.uint32(0x2545F491)
    bits += np.uint32(salt)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        bits ^= bits >> np.uint32(shift)
        bits *= np.uint32(factor)
    return bits ^ (bits >> np.uint32(16))


def values(element: ElementType, reduction: str, rank: int, n: int, start: int, stop: int, seed: int) -> Array:
    """Elements `start` to `stop` of what rank `rank` of `n` has, in `element.dtype`; `reduction` empty: to be moved."""
    bits = random_bits(rank, start, stop, seed)
    if element.kind == "bool":
        return (bits & np.uint32(1)).astype(bool)
    if not reduction or (element.kind in ("int", "uint") and reduction != "avg"):
        return _any_bits(element, bits, rank, start, stop, seed)
    if element.kind in ("int", "uint"):
        most = int(np.iinfo(element.dtype.name).max)
        return _small_integers(bits, min(most, 1 << 30), rank, n, signed=element.kind == "int").astype(element.dtype)
    if element.kind == "complex":
        return _complex(element, reduction, bits, rank, n, start, stop, seed)
    exact = _floats(element.precision, reduction, bits, rank, n)
    return bfloat16_of(exact) if element.kind == "bfloat16" else exact.astype(element.dtype)


def _any_bits(element: ElementType, bits: NDArray[np.uint32], rank: int, start: int, stop: int, seed: int) -> Array:
    size = element.itemsize
    if size <= 4:
        return bits.astype(f"u{size}").view(element.dtype)
    words = [bits, *(random_bits(rank, start, stop, seed + word) for word in range(1, size // 4))]
    return np.ascontiguousarray(np.stack(words, axis=1)).view(element.dtype).reshape(-1)


def _small_integers(bits: NDArray[np.uint32], most: int, rank: int, n: int, *, signed: bool) -> NDArray[np.int64]:
    """Of which the sum over `n` ranks is at most `most`, and where `signed` not less than -`most`."""
    if rank >= most:
        return np.zeros(bits.size, np.int64)
    largest = max(1, most // n)
    spread = 2 * largest + 1 if signed else largest + 1
    return (bits % np.uint32(min(spread, 0xFFFFFFFF))).astype(np.int64) - (largest if signed else 0)


def _floats(precision: int, reduction: str, bits: NDArray[np.uint32], rank: int, n: int) -> NDArray[np.float64]:
    sign = np.where(bits & np.uint32(1 << 31), -1.0, 1.0)
    if reduction == "prod":
        exponent = (bits % np.uint32(3)).astype(np.int64) - 1 if rank < _DOUBLING_RANKS else 0
        return np.asarray(sign * np.exp2(np.zeros(bits.size) + exponent), np.float64)
    if reduction in ("min", "max"):
        return np.asarray(sign * (1.0 + bits % np.uint32(1 << min(precision - 1, 20))), np.float64)
    terms = 1 << min(precision, 52)
    if rank >= terms:
        return np.zeros(bits.size)
    return np.asarray(1.0 + bits % np.uint32(min(_LARGEST_TERM, max(1, terms // n))), np.float64)


def _complex(
    element: ElementType, reduction: str, bits: NDArray[np.uint32], rank: int, n: int, start: int, stop: int, seed: int
) -> Array:
    if reduction == "prod":
        units = np.array([1, 1j, -1, -1j], element.dtype)
        return np.asarray(units[bits % np.uint32(4)])
    found = np.empty(bits.size, element.dtype)
    found.real = _floats(element.precision, reduction, bits, rank, n)
    found.imag = _floats(element.precision, reduction, random_bits(rank, start, stop, seed + 1), rank, n)
    return found


def bfloat16_of(exact: NDArray[np.float64]) -> NDArray[np.uint16]:
    """The bfloat16 nearest to normal, finite numbers, ties to even: rounded as numbers, not as bits."""
    fraction, exponent = np.frexp(exact)
    rounded = np.ldexp(np.rint(fraction * 256.0), exponent - 8)
    return np.asarray(rounded.astype(np.float32).view(np.uint32) >> np.uint32(16), np.uint16)


def bfloat16_to_float(carried: Array) -> NDArray[np.float64]:
    """The numbers that bfloat16 in two bytes stand for."""
    with np.errstate(invalid="ignore"):  # a NaN may be of the kind that signals
        return (carried.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
