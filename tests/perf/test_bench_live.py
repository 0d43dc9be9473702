"""Every operation measured over real daemons: the program that ranks run, and the whole command."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fauxrdma.communicator import Communicator
from fauxrdma.errors import CollectiveError
from fauxrdma.lab.local import LocalLab
from fauxrdma.perf.coll.element_types import ELEMENT_TYPES, REDUCTIONS
from fauxrdma.perf.coll.measuring import Bench
from fauxrdma.perf.coll.operations import OPERATIONS, Buffers, Case
from fauxrdma.perf.coll.results import MeasuredRow
from fauxrdma.perf.coll.sweep import Sweep

sys.path.insert(0, str(Path(__file__).parent.parent / "communicator"))
from rank_threads import all_well, run_ranks

from fauxrdma.lab.rank_threads import ThreadStore


@pytest.fixture(scope="module")
def lab() -> Any:
    with LocalLab("seed-rail8", nodes=2, gpus=2, clock="none") as running:
        yield running


def measure(lab: LocalLab, sweep: Sweep, world_size: int = 4, on_call: Any = None) -> list[MeasuredRow]:
    """The rows that rank 0 reports; `on_call(rank, case, buffers)` after every call."""
    rows: list[MeasuredRow] = []
    store = ThreadStore()

    def work(communicator: Communicator) -> None:
        Bench(sweep, communicator, store, rows.append).run()

    if on_call is None:
        all_well(run_ranks(lab, world_size, work))
        return rows
    original = Case.call

    def call(case: Case, communicator: Communicator, buffers: Buffers) -> None:
        original(case, communicator, buffers)
        on_call(communicator.rank, case, buffers)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Case, "call", call)
        all_well(run_ranks(lab, world_size, work))
    return rows


def sweep_of(operation: str, **options: Any) -> Sweep:
    what = OPERATIONS[operation]
    options.setdefault("sizes", [0, 8, 1000, 70_000])
    options.setdefault("types", ["float"])
    options.setdefault("reductions", ["sum"] if what.reduces else [])
    options.setdefault("roots", [1] if what.rooted else [-1])
    options.setdefault("iterations", 2)
    return Sweep(operation=operation, **options)


@pytest.mark.parametrize("operation", list(OPERATIONS))
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_every_operation(lab: LocalLab, operation: str, world_size: int) -> None:
    rows = measure(lab, sweep_of(operation), world_size)
    assert [row.size for row in rows] == [
        row.count * 4 * (world_size if OPERATIONS[operation].by_blocks else 1) for row in rows
    ]
    for row in rows:
        assert row.out_of_place.wrong == 0
        assert row.in_place.wrong == (None if operation == "sendrecv" else 0)
        assert row.out_of_place.time_us > 0
        assert row.out_of_place.iterations == 2
        bandwidth = row.size / row.out_of_place.time_us / 1e3
        assert row.out_of_place.algbw_gb_per_s == pytest.approx(bandwidth)


@pytest.mark.parametrize("operation", list(OPERATIONS))
def test_every_type_reduction_and_root(lab: LocalLab, operation: str) -> None:
    what = OPERATIONS[operation]
    rows = measure(
        lab,
        sweep_of(
            operation, sizes=[960], iterations=1, types=list(ELEMENT_TYPES),
            reductions=list(REDUCTIONS) if what.reduces else [], roots=[0, 2] if what.rooted else [-1],
        ),
        3,
    )  # fmt: skip
    kinds = sum(len(one.reductions) for one in ELEMENT_TYPES.values()) if what.reduces else len(ELEMENT_TYPES)
    assert len(rows) == kinds * (2 if what.rooted else 1)
    assert [(row.type, row.redop, row.root) for row in rows if row.out_of_place.wrong or row.in_place.wrong] == []


@pytest.mark.parametrize("operation", list(OPERATIONS))
def test_a_corrupted_byte_is_counted(lab: LocalLab, operation: str) -> None:
    """On one rank, after every call: what the wire or the memory might do."""

    def corrupt(rank: int, case: Case, buffers: Buffers) -> None:
        if rank == 1:
            buffers.receive.view(np.uint8)[-2] ^= 0x10

    rows = measure(lab, sweep_of(operation, sizes=[4096]), 2, corrupt)
    assert [row.out_of_place.wrong for row in rows] == [1]
    assert [row.in_place.wrong for row in rows] == [None if operation == "sendrecv" else 1]


def test_several_wrong_elements_on_several_ranks_add_up(lab: LocalLab) -> None:
    def corrupt(rank: int, case: Case, buffers: Buffers) -> None:
        buffers.receive[:5] += 1

    (row,) = measure(lab, sweep_of("all_reduce", sizes=[4096], check=3), 3, corrupt)
    assert (row.out_of_place.wrong, row.in_place.wrong) == (15, 15)


def test_what_was_sent_must_stay(lab: LocalLab) -> None:
    def corrupt(rank: int, case: Case, buffers: Buffers) -> None:
        buffers.send[0] = 99.5

    (row,) = measure(lab, sweep_of("all_gather", sizes=[4096]), 2, corrupt)
    assert row.out_of_place.wrong == 2


def test_without_checks_nothing_is_said(lab: LocalLab) -> None:
    (row,) = measure(lab, sweep_of("all_reduce", sizes=[64], check=0), 2)
    assert (row.out_of_place.wrong, row.in_place.wrong) == (None, None)


def test_one_call_at_a_time(lab: LocalLab) -> None:
    (row,) = measure(lab, sweep_of("broadcast", sizes=[1000], iterations=5, blocking=True), 4)
    times = row.out_of_place.iterations_us
    assert times is not None
    assert len(times) == 5
    assert row.out_of_place.time_us == pytest.approx(sum(times) / 5)
    assert min(times) > 0


def test_long_calls_are_repeated_less_often(lab: LocalLab) -> None:
    (row,) = measure(lab, sweep_of("all_reduce", sizes=[8], iterations=0), 2)
    assert row.out_of_place.iterations == 20
    (row,) = measure(lab, sweep_of("all_reduce", sizes=[8], iterations=0, budget_s=0.0), 2)
    assert row.out_of_place.iterations == 1


@pytest.mark.parametrize("operation", ["all_reduce", "reduce", "reduce_scatter"])
def test_against_float64(lab: LocalLab, operation: str) -> None:
    types = ["half", "bfloat16", "float", "double", "int32"]
    rows = measure(lab, sweep_of(operation, sizes=[30_000], types=types, reductions=["sum", "avg", "max"], verify=True))
    verified = {(row.type, row.redop): row.verify for row in rows if row.verify is not None}
    assert set(verified) == {(name, op) for name in ("half", "bfloat16", "float") for op in ("sum", "avg")}
    for (name, _), found in verified.items():
        assert found.beyond == 0
        assert 0 < found.error <= found.bound
        assert found.bound == pytest.approx(3 * 2.0 ** -ELEMENT_TYPES[name].precision, rel=0.5)
        assert found.same_again
        assert found.same_everywhere is (True if operation == "all_reduce" else None)


def test_a_sum_that_is_off_fails_verification(lab: LocalLab) -> None:
    def corrupt(rank: int, case: Case, buffers: Buffers) -> None:
        if rank == 1:
            buffers.receive[3] *= 1.001

    (row,) = measure(lab, sweep_of("all_reduce", sizes=[4096], check=0, verify=True), 4, corrupt)
    assert row.verify is not None
    assert row.verify.beyond == 1
    assert row.verify.failed
    assert row.verify.same_everywhere is False


def test_a_rank_that_fails_ends_it(lab: LocalLab) -> None:
    def corrupt(rank: int, case: Case, buffers: Buffers) -> None:
        if rank == 1:
            raise CollectiveError("enough")

    with pytest.raises(CollectiveError):
        measure(lab, sweep_of("all_reduce", sizes=[64]), 2, corrupt)
