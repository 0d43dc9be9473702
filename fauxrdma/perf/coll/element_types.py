"""What the elements of a buffer can be, and how they may be reduced: the names of nccl-tests, and more."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fauxrdma.collectives import Arithmetic, Bfloat16Arithmetic, numpy_arithmetic

__all__ = ["ELEMENT_TYPES", "REDUCTIONS", "ElementType"]

REDUCTIONS = {
    "sum": "sum",
    "prod": "product",
    "max": "max",
    "min": "min",
    "avg": "avg",
    "band": "band",
    "bor": "bor",
    "bxor": "bxor",
}
"""nccl-tests' names of reductions, and the communicator's; then those that NCCL does not have."""

_NUMBERS = ("sum", "prod", "max", "min", "avg")
_BITS = ("band", "bor", "bxor")


@dataclass(frozen=True)
class ElementType:
    """One type of elements. `dtype` carries them in numpy arrays; `kind` is one of int, uint, bool, float, bfloat16,
    complex; `precision` the bits of a float's significand (of each part of a complex), the hidden one counted;
    `reductions` are those it has."""

    name: str
    dtype: np.dtype[np.generic]
    kind: str
    reductions: tuple[str, ...]
    precision: int = 0

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize

    def arithmetic(self, op: str, dtype: np.dtype[np.generic], world_size: int) -> Arithmetic:
        """What a communicator reduces these elements with."""
        make = Bfloat16Arithmetic if self.kind == "bfloat16" else numpy_arithmetic
        return make(op, dtype, world_size)


def _types() -> dict[str, ElementType]:
    integers = [f"{sign}int{bits}" for bits in (8, 16, 32, 64) for sign in ("", "u")]
    found = [ElementType(name, np.dtype(name), name.rstrip("0123456789"), _NUMBERS + _BITS) for name in integers]
    found += [
        ElementType("half", np.dtype("f2"), "float", _NUMBERS, 11),
        ElementType("bfloat16", np.dtype("u2"), "bfloat16", _NUMBERS, 8),
        ElementType("float", np.dtype("f4"), "float", _NUMBERS, 24),
        ElementType("double", np.dtype("f8"), "float", _NUMBERS, 53),
        ElementType("complex64", np.dtype("c8"), "complex", ("sum", "prod", "avg"), 24),
        ElementType("complex128", np.dtype("c16"), "complex", ("sum", "prod", "avg"), 53),
        ElementType("bool", np.dtype("?"), "bool", ("sum", "prod", "max", "min", *_BITS)),
    ]
    return {one.name: one for one in found}


ELEMENT_TYPES = _types()
"""By name. Half and double are IEEE 754 binary16 and binary64; bfloat16 travels in two bytes, without a numpy dtype."""
