"""CPU tensors as numpy arrays that share their memory, and arithmetic for the dtypes numpy lacks or is slow at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fauxrdma.collectives import Arithmetic, numpy_arithmetic
from fauxrdma.errors import LocalProtocolError

__all__ = ["ArithmeticFactory", "Array", "arithmetic_for", "as_array"]

Array = NDArray[Any]
ArithmeticFactory = Callable[[str, np.dtype[Any], int], Arithmetic]

_BINARY: dict[str, Callable[..., torch.Tensor]] = {
    "sum": torch.add,
    "avg": torch.add,
    "product": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
}
_CARRIERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def as_array(tensor: torch.Tensor) -> Array:
    """`tensor` as a numpy array over the same memory, strides and all. Dtypes numpy lacks (bfloat16, float8) appear as
    integers of the same size. Raises LocalProtocolError for tensors that are not dense CPU memory."""
    if tensor.device.type != "cpu":
        raise LocalProtocolError(f"fauxrdma moves CPU tensors, got one on {tensor.device}: move it with .cpu() first")
    if tensor.layout != torch.strided:
        raise LocalProtocolError(f"fauxrdma moves dense tensors, got layout {tensor.layout}: use .to_dense() first")
    if tensor.is_conj() or tensor.is_neg():
        raise LocalProtocolError("this tensor is a lazy conjugate or negative view: pass .resolve_conj().resolve_neg()")
    plain = tensor.detach()
    try:
        array: Array = plain.numpy()
    except TypeError:
        carrier = _CARRIERS.get(plain.element_size())
        if carrier is None:
            raise LocalProtocolError(f"fauxrdma cannot move tensors of {tensor.dtype}") from None
        array = plain.view(carrier).numpy()
    return array


class _TorchArithmetic:
    """Reductions of `dtype` by torch, on arrays that carry its bits. Half and bfloat16 sums are computed in float32 and
    rounded at each step, as gloo does."""

    __slots__ = ("_divisor", "_dtype", "_function")

    def __init__(self, op: str, dtype: torch.dtype, world_size: int) -> None:
        if op not in _BINARY:
            raise LocalProtocolError(f"{dtype} has no {op}: use one of {', '.join(_BINARY)}")
        self._function = _BINARY[op]
        self._dtype = dtype
        self._divisor = world_size if op == "avg" and world_size > 1 else None

    def _tensor(self, array: Array) -> torch.Tensor:
        return torch.from_numpy(array).view(self._dtype)

    def reduce(self, dst: Array, local: Array, arrived: Array) -> None:
        """dst = local op arrived."""
        self._function(self._tensor(local), self._tensor(arrived), out=self._tensor(dst))

    def finish(self, dst: Array) -> None:
        """Divide for avg, nothing otherwise."""
        if self._divisor is not None:
            self._tensor(dst).div_(self._divisor)


def arithmetic_for(dtype: torch.dtype) -> ArithmeticFactory:
    """How to reduce tensors of `dtype` seen through `as_array`. Raises LocalProtocolError for float8, which torch
    itself does not add."""
    if dtype in (torch.bfloat16, torch.float16):
        return lambda op, _, world_size: _TorchArithmetic(op, dtype, world_size)
    if dtype.is_floating_point and dtype.itemsize == 1:
        raise LocalProtocolError(f"{dtype} cannot be reduced without scales: convert to bfloat16 or float32 first")
    return numpy_arithmetic
