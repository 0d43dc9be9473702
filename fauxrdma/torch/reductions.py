"""torch's ReduceOp in the communicator's words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from fauxrdma.errors import LocalProtocolError
from fauxrdma.torch.tensors import ArithmeticFactory, Array, arithmetic_for, as_array

__all__ = ["Reduction", "reduction_for"]

_NAMES = {
    "SUM": "sum",
    "AVG": "avg",
    "PRODUCT": "product",
    "MIN": "min",
    "MAX": "max",
    "BAND": "band",
    "BOR": "bor",
    "BXOR": "bxor",
    "PREMUL_SUM": "sum",
}


@dataclass(frozen=True, slots=True)
class Reduction:
    """An operation of the communicator, the arithmetic for a dtype, and what every rank's values are multiplied by
    before (PREMUL_SUM)."""

    op: str
    arithmetic: ArithmeticFactory
    factor: Any = None

    def scaled(self, tensor: torch.Tensor) -> Array:
        """`tensor` as an array; a multiplied copy of it where there is a factor."""
        return as_array(tensor if self.factor is None else tensor.detach() * self.factor)

    def scale(self, tensor: torch.Tensor) -> Array:
        """`tensor` as an array over its own memory, after multiplying it in place where there is a factor."""
        if self.factor is not None:
            tensor.detach().mul_(self.factor)
        return as_array(tensor)


def reduction_for(opts: Any, dtype: torch.dtype) -> Reduction:
    """The reduction that an options object (or a ReduceOp, or None for a sum) asks for, of tensors of `dtype`.

    Raises LocalProtocolError for an operation the dtype does not have.
    """
    arithmetic = arithmetic_for(dtype)
    if opts is None:
        return Reduction("sum", arithmetic)
    op = getattr(opts, "reduceOp", opts)
    kind = str(getattr(op, "op", op)).rpartition(".")[2]  # a ReduceOp holds a RedOpType
    name = _NAMES.get(kind)
    if name is None:
        raise LocalProtocolError(f"fauxrdma does not reduce with {kind}: use one of {', '.join(_NAMES)}")
    factor = None
    if kind == "PREMUL_SUM":
        factor = op.__getstate__()[1]
        if not dtype.is_floating_point:
            raise LocalProtocolError(f"PREMUL_SUM multiplies floating-point tensors, not those of {dtype}")
    return Reduction(name, arithmetic, factor)
