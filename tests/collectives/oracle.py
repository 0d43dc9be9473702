"""What each operation must give, by numpy alone; and values for which every order of reduction gives the same bits."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from fauxrdma.collectives import OPS, numpy_arithmetic
from fauxrdma.errors import LocalProtocolError

DTYPES = "?bBhHiIqQefdFD"
FUNCTIONS = {
    "sum": np.add, "avg": np.add, "product": np.multiply, "min": np.minimum, "max": np.maximum,
    "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor,
}  # fmt: skip


def ops_of(dtype: np.dtype[Any]) -> list[str]:
    """The operations a dtype has."""
    found = []
    for op in OPS:
        try:
            numpy_arithmetic(op, dtype, 2)
        except LocalProtocolError:
            continue
        found.append(op)
    return found


def values(chance: np.random.Generator, count: int, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Small whole numbers: what is made of them by a few ranks is exact in any dtype, or wraps around alike."""
    numbers = chance.integers(-2 if dtype.kind in "ifc" else 0, 3, count)
    return (numbers + (1j * chance.integers(-1, 2, count) if dtype.kind == "c" else 0)).astype(dtype)


def reduced(parts: list[np.ndarray[Any, Any]], op: str) -> np.ndarray[Any, Any]:
    """The reduction over ranks."""
    whole = reduce(FUNCTIONS[op], parts).astype(parts[0].dtype)
    if op == "avg" and len(parts) > 1:
        if whole.dtype.kind in "iu":
            wide = [abs(int(x)) // len(parts) * (-1 if x < 0 else 1) for x in whole]
            return np.array(wide, whole.dtype)
        if whole.dtype.kind == "c":  # each part rounded once, where numpy multiplies by the inverse
            whole.real, whole.imag = whole.real / len(parts), whole.imag / len(parts)
            return whole
        whole = (whole / whole.dtype.type(len(parts))).astype(whole.dtype)
    return whole
