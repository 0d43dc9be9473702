"""What ranks put in reduces without rounding, and what must come out is worked out right: against whole numbers and
fractions of Python, element by element, and against the plans themselves over an in-memory fabric."""

from __future__ import annotations

import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fauxrdma.collectives.algorithms import plan_for
from fauxrdma.collectives.request import Request
from fauxrdma.perf.coll.element_types import ELEMENT_TYPES, REDUCTIONS, ElementType
from fauxrdma.perf.coll.expectation import combine, count_different, count_wrong, expected, fill
from fauxrdma.perf.coll.operations import OPERATIONS, Buffers, Case
from fauxrdma.perf.coll.patterns import bfloat16_of, bfloat16_to_float, values

sys.path.insert(0, str(Path(__file__).parent.parent / "collectives"))
from memory_world import MemoryWorld

TYPES = st.sampled_from(list(ELEMENT_TYPES.values()))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    operation = draw(st.sampled_from(list(OPERATIONS.values())))
    n = draw(st.integers(2 if operation.name == "sendrecv" else 1, 9))
    element = draw(TYPES)
    reduction = draw(st.sampled_from(element.reductions)) if operation.reduces else ""
    root = draw(st.integers(0, n - 1)) if operation.rooted else -1
    return Case(operation, element, reduction, root, draw(st.integers(0, 40)), n)


def all_values(case: Case, seed: int) -> list[np.ndarray[Any, Any]]:
    return [
        values(case.element, case.reduction, rank, case.world_size, 0, case.send_count, seed)
        for rank in range(case.world_size)
    ]


def as_number(element: ElementType, carried: Any) -> Any:
    """Exactly, as Python has numbers."""
    if element.kind == "bfloat16":
        return Fraction(float(bfloat16_to_float(np.array([carried]))[0]))
    if element.kind == "float":
        return Fraction(float(carried))
    return carried.item()


def reduce_exactly(element: ElementType, reduction: str, terms: list[Any]) -> Any:
    numbers = [as_number(element, term) for term in terms]
    if element.kind == "bool":
        return {
            "sum": any(numbers), "bor": any(numbers), "max": any(numbers), "prod": all(numbers),
            "band": all(numbers), "min": all(numbers), "bxor": sum(numbers) % 2 == 1,
        }[reduction]  # fmt: skip
    if reduction in ("max", "min"):
        return max(numbers) if reduction == "max" else min(numbers)
    result = numbers[0]
    for number in numbers[1:]:
        match reduction:
            case "prod":
                result = result * number
            case "band":
                result &= number
            case "bor":
                result |= number
            case "bxor":
                result ^= number
            case _:
                result = result + number
    if element.kind in ("int", "uint"):
        if reduction == "avg":
            return abs(result) // len(terms) * (1 if result >= 0 else -1)
        bits = 8 * element.itemsize
        result %= 1 << bits
        return result - (1 << bits) if element.kind == "int" and result >> (bits - 1) else result
    return result / len(terms) if reduction == "avg" else result


@given(case=cases().filter(lambda case: case.operation.name == "all_reduce"), seed=st.integers(0, 1000))
def test_combining_is_exact(case: Case, seed: int) -> None:
    terms = all_values(case, seed)
    found = combine(case.element, case.reduction, terms)
    for place in range(case.count):
        exact = reduce_exactly(case.element, case.reduction, [term[place] for term in terms])
        if case.reduction == "avg" and case.element.kind in ("float", "bfloat16"):
            # Rounded once: no closer than half a unit in the last place.
            off = abs(as_number(case.element, found[place]) - exact)
            assert off <= abs(exact) * Fraction(1, 1 << case.element.precision)
        elif case.reduction == "avg" and case.element.kind == "complex":
            assert found[place] == pytest.approx(exact, rel=2.0**-23)
        else:
            assert as_number(case.element, found[place]) == exact


@given(element=TYPES, n=st.integers(1, 400), seed=st.integers(0, 99), data=st.data())
def test_any_order_gives_the_same(element: ElementType, n: int, seed: int, data: st.DataObject) -> None:
    """Which is what lets every algorithm be held to one expectation: nothing rounds or overflows on the way."""
    reduction = data.draw(st.sampled_from([one for one in element.reductions if one != "avg"]))
    terms = [values(element, reduction, rank, n, 0, 7, seed) for rank in range(n)]
    arithmetic = element.arithmetic(REDUCTIONS[reduction], element.dtype, n)
    right = combine(element, reduction, terms)
    order = data.draw(st.permutations(range(min(n, 12))))
    order = [*order, *range(min(n, 12), n)]
    total = terms[order[0]].copy()
    for rank in order[1:]:
        arithmetic.reduce(total, total, terms[rank])
    assert count_different(total, right) == 0
    if element.kind in ("float", "complex"):
        assert np.isfinite(right).all()


def run_in_memory(case: Case, in_place: bool, seed: int) -> list[Buffers]:
    """The case by the plan of its first algorithm, all ranks in this process."""
    n, count, name = case.world_size, case.count, case.operation.name
    counts: Any = count
    if name == "all_to_all":
        counts = ((count,) * n,) * n
    elif case.operation.by_blocks:
        counts = (count,) * n
    plan = plan_for(Request(name, n, counts, case.element.itemsize, 256, 2, max(0, case.root)))
    everyone = [case.buffers(rank, in_place) for rank in range(n)]
    for rank, buffers in enumerate(everyone):
        fill(case, rank, buffers, seed)
    own = []
    for rank, buffers in enumerate(everyone):
        if "data" in plan.buffers:
            # What a communicator does: reduces and broadcasts in place, after a copy where that is asked for.
            takes = name == "all_reduce" or rank == case.root
            if takes and not in_place:
                buffers.receive[...] = buffers.send
            data = buffers.receive if takes or name == "broadcast" else buffers.send.copy()
            own.append({"data": data})
        else:
            wanted = plan.lengths(rank)
            source = buffers.send.copy() if wanted["input"] else np.empty(0, case.element.dtype)
            target = buffers.receive if wanted["output"] else np.empty(0, case.element.dtype)
            own.append({"input": source, "output": target})
    world = MemoryWorld(n, slots=8, slot_bytes=256, choose=lambda moves: 0)
    make = case.element.arithmetic
    world.run(
        plan,
        own,
        lambda: make(REDUCTIONS.get(case.reduction, "sum"), case.element.dtype, n) if case.reduction else None,
    )
    return everyone


@settings(deadline=None)
@given(
    case=cases().filter(lambda case: case.operation.name != "sendrecv"), in_place=st.booleans(), seed=st.integers(0, 99)
)
def test_plans_bring_what_is_expected(case: Case, in_place: bool, seed: int) -> None:
    everyone = run_in_memory(case, in_place, seed)
    assert [count_wrong(case, rank, buffers, seed) for rank, buffers in enumerate(everyone)] == [0] * case.world_size


@given(case=cases(), in_place=st.booleans(), seed=st.integers(0, 99), data=st.data())
def test_one_flipped_bit_is_one_wrong_element(case: Case, in_place: bool, seed: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, case.world_size - 1))
    buffers = right_buffers(case, rank, in_place, seed)
    assert count_wrong(case, rank, buffers, seed) == 0
    if not buffers.receive.size:
        return
    raw = buffers.receive.view(np.uint8)
    place = data.draw(st.integers(0, raw.size - 1))
    bit = 1 if case.element.kind == "bool" else 1 << data.draw(st.integers(0, 7))
    raw[place] ^= bit
    element = buffers.receive[place // case.element.itemsize]
    of_zero = (
        case.element.kind in ("float", "complex") and bit == 0x80 and (element == 0 or element.real * element.imag == 0)
    )
    assert count_wrong(case, rank, buffers, seed) == 1 or of_zero  # -0 is 0


def right_buffers(case: Case, rank: int, in_place: bool, seed: int) -> Buffers:
    """As they must be after the operation."""
    buffers = case.buffers(rank, in_place)
    fill(case, rank, buffers, seed)
    for offset, chunk in expected(case, rank, in_place, seed):
        buffers.receive[offset : offset + chunk.size] = chunk
    return buffers


@given(case=cases(), in_place=st.booleans(), data=st.data())
def test_every_received_element_is_covered_once(case: Case, in_place: bool, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, case.world_size - 1))
    seen = np.zeros(case.receive_count, int)
    for offset, chunk in expected(case, rank, in_place, 0):
        seen[offset : offset + chunk.size] += 1
        assert chunk.dtype == case.element.dtype
    assert (seen == 1).all()


def test_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    from fauxrdma.perf.coll import expectation

    case = Case(OPERATIONS["all_to_all"], ELEMENT_TYPES["double"], "", -1, 1000, 3)
    whole = right_buffers(case, 1, False, 5)
    monkeypatch.setattr(expectation, "_CHUNK", 77)
    small = right_buffers(case, 1, False, 5)
    assert (whole.send == small.send).all()
    assert count_different(whole.receive, small.receive) == 0


def test_ranks_elements_and_seeds_differ() -> None:
    element = ELEMENT_TYPES["int32"]
    columns = [values(element, "", rank, 4, 0, 10_000, seed) for rank in range(4) for seed in range(4)]
    assert len(np.unique(np.concatenate(columns))) > 0.99 * 16 * 10_000


@given(st.floats(-1e30, 1e30).filter(lambda x: abs(x) > 1e-30))
def test_rounding_to_bfloat16_is_to_the_nearest(number: float) -> None:
    found = float(bfloat16_to_float(bfloat16_of(np.array([number])))[0])
    assert abs(Fraction(found) - Fraction(number)) <= abs(Fraction(number)) / 256
    from fauxrdma.collectives.bfloat16 import bfloat16_bits

    single = np.array([number], np.float32)
    assert bfloat16_bits(single)[0] == bfloat16_of(single.astype(np.float64))[0]
