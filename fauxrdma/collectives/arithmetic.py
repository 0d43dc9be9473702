"""The reductions, on numpy arrays. Another array library can stand in by giving the same three methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fauxrdma.errors import LocalProtocolError

__all__ = ["OPS", "Arithmetic", "Array", "NumpyArithmetic"]

Array = NDArray[Any]

OPS = ("sum", "avg", "product", "min", "max")
"""The operations a reduction can apply."""

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sum": np.add,
    "avg": np.add,
    "product": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


class Arithmetic(Protocol):
    """What an executor computes with. All arrays are one-dimensional, contiguous, of one dtype and length."""

    def reduce(self, dst: Array, local: Array, arrived: Array) -> None:
        """dst = local op arrived; `dst` may be `local`."""

    def finish(self, dst: Array) -> None:
        """What happens to a completely reduced value (avg divides by the number of ranks)."""


class NumpyArithmetic:
    """One operation over arrays of `dtype`. bool follows numpy: sum is or, product is and.

    `avg` is the sum in ring order, divided once at the end; it needs a floating-point or complex dtype. Raises
    LocalProtocolError for an unknown operation, or one the dtype does not have.
    """

    __slots__ = ("_divisor", "_function")

    def __init__(self, op: str, dtype: np.dtype[Any], world_size: int) -> None:
        function = _FUNCTIONS.get(op)
        if function is None:
            raise LocalProtocolError(f"unknown reduction {op!r}; known: {', '.join(OPS)}")
        if op == "avg" and dtype.kind not in "fc":
            raise LocalProtocolError(
                f"avg of {dtype} would have to round: use op='sum' and divide as you need, or a floating-point dtype"
            )
        if dtype.kind not in "biufc":
            raise LocalProtocolError(
                f"arrays of dtype {dtype} cannot be reduced; use bool, an integer, float or complex"
            )
        self._function = function
        self._divisor = world_size if op == "avg" and world_size > 1 else None

    def reduce(self, dst: Array, local: Array, arrived: Array) -> None:
        """dst = local op arrived."""
        with np.errstate(all="ignore"):  # overflow is the user's business, as with any other backend
            self._function(local, arrived, out=dst)

    def finish(self, dst: Array) -> None:
        """Divide for avg, nothing otherwise."""
        if self._divisor is not None:
            np.divide(dst, self._divisor, out=dst)
