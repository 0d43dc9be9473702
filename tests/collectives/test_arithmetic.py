"""The reductions against plain Python and, for bfloat16, against exhaustive rounding."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fauxrdma.collectives import OPS, Bfloat16Arithmetic, numpy_arithmetic
from fauxrdma.collectives.bfloat16 import bfloat16_bits, bfloat16_values
from fauxrdma.errors import LocalProtocolError


@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"])
@given(data=st.data(), n=st.integers(2, 300))
def test_avg_of_integers_divides_towards_zero(dtype: str, data: st.DataObject, n: int) -> None:
    info = np.iinfo(dtype)
    values = data.draw(st.lists(st.integers(int(info.min), int(info.max)), min_size=1, max_size=20))
    array = np.array(values, dtype)
    numpy_arithmetic("avg", array.dtype, n).finish(array)
    assert array.tolist() == [abs(value) // n * (-1 if value < 0 else 1) for value in values]


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("sum", [False, True, True]),
        ("product", [False, False, True]),
        ("min", [False, False, True]),
        ("max", [False, True, True]),
        ("band", [False, False, True]),
        ("bor", [False, True, True]),
        ("bxor", [False, True, False]),
    ],
)
def test_bool_is_logical(op: str, expected: list[bool]) -> None:
    one, other = np.array([False, False, True]), np.array([False, True, True])
    numpy_arithmetic(op, one.dtype, 2).reduce(one, one, other)
    assert one.dtype == bool
    assert one.tolist() == expected


REFUSED = {
    "?": {"avg"},
    "f4": {"band", "bor", "bxor"},
    "c8": {"min", "max", "band", "bor", "bxor"},
    "m8[s]": {"avg", "product", "band", "bor", "bxor"},
    "M8[s]": set(OPS) - {"min", "max"},
    "i4": set(),
}


@pytest.mark.parametrize("dtype", REFUSED)
def test_each_dtype_says_what_it_has(dtype: str) -> None:
    for op in OPS:
        if op in REFUSED[dtype]:
            with pytest.raises(LocalProtocolError, match=f"has no {op}: use one of"):
                numpy_arithmetic(op, np.dtype(dtype), 3)
        else:
            array = np.ones(4, dtype) if dtype[0] not in "mM" else np.arange(4).astype(dtype)
            numpy_arithmetic(op, array.dtype, 3).reduce(array, array, array.copy())


def test_every_bfloat16_survives_and_ties_go_to_even() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    values = bfloat16_values(bits)
    again = bfloat16_bits(values)
    numbers = ~np.isnan(values)
    assert np.array_equal(again[numbers], bits[numbers])
    assert (again[~numbers] == 0x7FC0).all()
    finite = np.flatnonzero(np.isfinite(values[:0x7F7F]) & np.isfinite(values[1:0x7F80]))
    halfway = ((finite.astype(np.uint32) << 16) | 0x8000).view(np.float32)
    assert np.array_equal(bfloat16_bits(halfway), finite + (finite & 1))


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=50))
def test_bfloat16_rounds_to_the_nearest(numbers: list[float]) -> None:
    values = np.array(numbers, np.float32)
    bits = bfloat16_bits(values)
    for value, got in zip(values, bits, strict=True):
        near = bfloat16_values(np.array([got, got - 1 if got & 0x7FFF else got, got + 1], np.uint16))
        if np.isfinite(near).all():
            errors = [abs(Fraction(float(x)) - Fraction(float(value))) for x in near]
            assert errors[0] == min(errors)


def test_bfloat16_operations_round_each_result() -> None:
    a, b = bfloat16_bits(np.array([1.0, 3.0, -2.0, 256.0])), bfloat16_bits(np.array([2.0**-9, 5.0, 7.0, 1.0]))
    expected = {
        "sum": [1.0, 8.0, 5.0, 256.0],
        "product": [2.0**-9, 15.0, -14.0, 256.0],
        "min": [2.0**-9, 3.0, -2.0, 1.0],
        "max": [1.0, 5.0, 7.0, 256.0],
    }
    for op, values in expected.items():
        dst = a.copy()
        Bfloat16Arithmetic(op, dst.dtype, 2).reduce(dst, a, b)
        assert bfloat16_values(dst).tolist() == values, op
    mean = a.copy()
    Bfloat16Arithmetic("avg", mean.dtype, 3).finish(mean)
    assert np.array_equal(mean, bfloat16_bits(bfloat16_values(a) / np.float32(3)))


def test_bfloat16_refuses_what_it_is_not() -> None:
    with pytest.raises(LocalProtocolError, match="two bytes"):
        Bfloat16Arithmetic("sum", np.dtype("f4"), 2)
    with pytest.raises(LocalProtocolError, match="has no 'band'"):
        Bfloat16Arithmetic("band", np.dtype("u2"), 2)


def test_bfloat16_of_ml_dtypes_is_recognized() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.array([1.0, 256.0], ml_dtypes.bfloat16)
    numpy_arithmetic("sum", array.dtype, 2).reduce(array, array, np.array([2.0**-9, 1.0], ml_dtypes.bfloat16))
    assert array.astype(np.float32).tolist() == [1.0, 256.0]
