"""bfloat16 on machines whose numpy has none: the upper half of a float32, as uint16 or as ml_dtypes' own dtype.

Every operation is computed in float32 and rounded to the nearest bfloat16, ties to even, as processors and torch do it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fauxrdma.errors import LocalProtocolError

__all__ = ["NUMBER_FUNCTIONS", "Bfloat16Arithmetic", "bfloat16_bits", "bfloat16_values"]

Array = NDArray[Any]

NUMBER_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sum": np.add,
    "avg": np.add,
    "product": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}
_QUIET_NAN = np.uint16(0x7FC0)


def bfloat16_values(bits: Array) -> NDArray[np.float32]:
    """The float32 values of an array of bfloat16 (dtype of two bytes); exact."""
    return (bits.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def bfloat16_bits(values: Array) -> NDArray[np.uint16]:
    """float32 `values` rounded to bfloat16, to nearest, ties to even, as uint16. Every NaN becomes the quiet one."""
    exact = np.ascontiguousarray(values, np.float32)
    word = exact.view(np.uint32)
    rounded = ((word + (((word >> 16) & 1) + np.uint32(0x7FFF))) >> 16).astype(np.uint16)
    not_numbers = np.isnan(exact)
    if not_numbers.any():
        rounded[not_numbers] = _QUIET_NAN
    return rounded


class Bfloat16Arithmetic:
    """Reductions of arrays that carry bfloat16 in two bytes per element: an `arithmetic` for a Communicator.

    Raises LocalProtocolError for an operation bfloat16 does not have, or elements of another size.
    """

    __slots__ = ("_divisor", "_function")

    def __init__(self, op: str, dtype: np.dtype[Any], world_size: int) -> None:
        if dtype.itemsize != 2:
            raise LocalProtocolError(f"bfloat16 travels in elements of two bytes, such as uint16, not in {dtype}")
        function = NUMBER_FUNCTIONS.get(op)
        if function is None:
            raise LocalProtocolError(f"bfloat16 has no {op!r}; known: {', '.join(NUMBER_FUNCTIONS)}")
        self._function = function
        self._divisor = np.float32(world_size) if op == "avg" and world_size > 1 else None

    def reduce(self, dst: Array, local: Array, arrived: Array) -> None:
        """dst = local op arrived."""
        with np.errstate(all="ignore"):
            result = self._function(bfloat16_values(local), bfloat16_values(arrived))
        dst.view(np.uint16)[...] = bfloat16_bits(result)

    def finish(self, dst: Array) -> None:
        """Divide for avg, nothing otherwise."""
        if self._divisor is not None:
            dst.view(np.uint16)[...] = bfloat16_bits(bfloat16_values(dst) / self._divisor)
