"""The reductions, on numpy arrays. Another array library can stand in by giving the same two methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fauxrdma.collectives.bfloat16 import NUMBER_FUNCTIONS, Bfloat16Arithmetic
from fauxrdma.errors import LocalProtocolError

__all__ = ["OPS", "Arithmetic", "Array", "NumpyArithmetic", "numpy_arithmetic"]

Array = NDArray[Any]

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **NUMBER_FUNCTIONS,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}

OPS = tuple(_FUNCTIONS)
"""The operations a reduction can apply."""

_BITS = ("band", "bor", "bxor")
_KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "b": ("bool", ("sum", "product", "min", "max", *_BITS)),
    "i": ("an integer", OPS),
    "u": ("an integer", OPS),
    "f": ("floating-point", ("sum", "avg", "product", "min", "max")),
    "c": ("complex", ("sum", "avg", "product")),
    "m": ("a time difference", ("sum", "min", "max")),
    "M": ("a time", ("min", "max")),
}
"""By dtype.kind: what to call it, and the operations it has."""


class Arithmetic(Protocol):
    """What an executor computes with. All arrays are one-dimensional, contiguous, of one dtype and length."""

    def reduce(self, dst: Array, local: Array, arrived: Array) -> None:
        """dst = local op arrived; `dst` may be `local`."""

    def finish(self, dst: Array) -> None:
        """What happens to a completely reduced value (avg divides by the number of ranks)."""


class NumpyArithmetic:
    """One operation over arrays of `dtype`, as numpy does it.

    bool: sum is or, product is and. `avg` is the sum in the plan's order, divided once at the end; integers are divided
    towards zero, as NCCL does. Integers wrap around. Complex numbers have no order, so no min and max; times have no
    sum. Raises LocalProtocolError for an unknown operation, or one the dtype does not have.
    """

    __slots__ = ("_divide", "_function")

    def __init__(self, op: str, dtype: np.dtype[Any], world_size: int) -> None:
        function = _FUNCTIONS.get(op)
        if function is None:
            raise LocalProtocolError(f"unknown reduction {op!r}; known: {', '.join(OPS)}")
        if dtype.kind not in _KINDS:
            raise LocalProtocolError(
                f"arrays of dtype {dtype} cannot be reduced; use bool, an integer, float or complex"
            )
        what, known = _KINDS[dtype.kind]
        if op not in known:
            raise LocalProtocolError(f"{dtype} is {what} and has no {op}: use one of {', '.join(known)}")
        self._function = function
        self._divide = _divider(dtype, world_size) if op == "avg" and world_size > 1 else None

    def reduce(self, dst: Array, local: Array, arrived: Array) -> None:
        """dst = local op arrived."""
        with np.errstate(all="ignore"):  # overflow is the user's business, as with any other backend
            self._function(local, arrived, out=dst)

    def finish(self, dst: Array) -> None:
        """Divide for avg, nothing otherwise."""
        if self._divide is not None:
            self._divide(dst)


def _divider(dtype: np.dtype[Any], divisor: int) -> Callable[[Array], None]:
    """What divides arrays of `dtype` by `divisor` in place."""
    if dtype.kind in "fc":

        def exact(dst: Array) -> None:
            # numpy would multiply a complex by the inverse of the divisor, which rounds twice.
            parts = dst.view(dst.real.dtype)
            np.divide(parts, divisor, out=parts)

        return exact

    def towards_zero(dst: Array) -> None:
        wide = dst if dst.itemsize == 8 else dst.astype(np.int64)  # a small dtype may not hold the divisor
        quotient, remainder = np.divmod(wide, wide.dtype.type(divisor))
        np.add(quotient, (remainder != 0) & (quotient < 0), out=dst, casting="unsafe")

    return towards_zero


def numpy_arithmetic(op: str, dtype: np.dtype[Any], world_size: int) -> Arithmetic:
    """The arithmetic for any dtype numpy shows: NumpyArithmetic, and for ml_dtypes' bfloat16 that of this package."""
    if dtype.name == "bfloat16":
        return Bfloat16Arithmetic(op, dtype, world_size)
    return NumpyArithmetic(op, dtype, world_size)
