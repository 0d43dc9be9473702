"""Sizes, counts, factors and the table, by nccl-tests' rules; what users may ask for; the schema of the JSON."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fauxrdma.collectives.bus_bandwidth import bus_factor
from fauxrdma.errors import ConfigError
from fauxrdma.perf.coll.accuracy import error_bound, errors_of, fill_randomly, verifiable
from fauxrdma.perf.coll.choices import choose_operation, choose_reductions, choose_roots, choose_sizes, choose_types
from fauxrdma.perf.coll.element_types import ELEMENT_TYPES
from fauxrdma.perf.coll.operations import OPERATIONS, Case
from fauxrdma.perf.coll.results import BenchResult, Half, Row, Verification
from fauxrdma.perf.coll.sweep import Sweep
from fauxrdma.perf.coll.table import column_lines, fixed_width, footer_lines, row_line, setup_line

HALF = Half(time_us=12.345, wall_us=99.0, algbw_gb_per_s=0.123, busbw_gb_per_s=0.185, wrong=0, iterations=20)
ROW = Row(
    size=1024, count=256, type="float", redop="sum", root=-1, algorithm="ring",
    out_of_place=HALF, in_place=HALF.model_copy(update={"wrong": None}), predicted_us=12.0, ratio=1.02875,
)  # fmt: skip


class TestSizes:
    def test_by_factor_and_by_step(self) -> None:
        assert choose_sizes("8", "128M", None, 2) == [8 << k for k in range(25)]
        assert choose_sizes("1M", "4M", None, None) == [1 << 20, 2 << 20, 3 << 20, 4 << 20]
        assert choose_sizes("1K", "2K", "512", None) == [1024, 1536, 2048]
        assert choose_sizes("32M", "32M", None, None) == [32 << 20]
        assert choose_sizes("0", "1M", None, None) == [0, 1 << 20]

    @pytest.mark.parametrize(
        ("first", "last", "step", "factor", "says"),
        [
            ("1M", "8", None, 2, "-e 8 is below -b 1M"),
            ("8", "1M", None, 1, "-f 1 never gets from one size to the next: use -f 2"),
            ("8", "1M", None, 0, "-f 0 never gets"),
            ("0", "1M", None, 2, "-b 0 times -f 2 stays where it is"),
            ("8", "1M", "1K", 2, "give one of them"),
            ("8", "1M", "0", None, "-i 0 never gets"),
            ("8", "1G", "8", None, "more than 4096 sizes"),
            ("eight", "1M", None, 2, "'eight' is not a size"),
        ],
    )
    def test_what_is_refused(self, first: str, last: str, step: str | None, factor: int | None, says: str) -> None:
        with pytest.raises(ConfigError, match=re.escape(says)):
            choose_sizes(first, last, step, factor)

    @given(
        st.sampled_from(list(OPERATIONS.values())),
        st.integers(0, 10**9),
        st.sampled_from([1, 2, 4, 8, 16]),
        st.integers(1, 99),
    )
    def test_the_size_of_a_row_is_at_most_what_was_asked_for(
        self, operation, nbytes: int, itemsize: int, n: int
    ) -> None:  # type: ignore[no-untyped-def]
        count = operation.count(nbytes, itemsize, n)
        size = operation.size(count, itemsize, n)
        assert size <= nbytes < size + itemsize * (n if operation.by_blocks else 1)

    @pytest.mark.parametrize(
        ("operation", "count", "send", "receive"),
        [
            ("all_reduce", 256, 256, 256), ("reduce", 256, 256, 256), ("broadcast", 256, 256, 256),
            ("sendrecv", 256, 256, 256), ("all_gather", 64, 64, 256), ("gather", 64, 64, 256),
            ("reduce_scatter", 64, 256, 64), ("scatter", 64, 256, 64), ("all_to_all", 64, 256, 256),
        ],
    )  # fmt: skip
    def test_one_kibibyte_of_floats_over_four_ranks(self, operation: str, count: int, send: int, receive: int) -> None:
        what = OPERATIONS[operation]
        case = Case(what, ELEMENT_TYPES["float"], "sum" if what.reduces else "", 0, what.count(1024, 4, 4), 4)
        assert (case.count, case.send_count, case.receive_count, case.size) == (count, send, receive, 1024)


class TestInPlace:
    @pytest.mark.parametrize("operation", list(OPERATIONS.values()), ids=lambda one: one.name)
    def test_both_sides_are_one_buffer_by_nccls_rules(self, operation) -> None:  # type: ignore[no-untyped-def]
        case = Case(operation, ELEMENT_TYPES["int32"], "sum" if operation.reduces else "", 0, 10, 4)
        buffers = case.buffers(rank=2, in_place=True)
        assert (buffers.send.size, buffers.receive.size) == (case.send_count, case.receive_count)
        assert np.shares_memory(buffers.send, buffers.receive)
        start = [side.__array_interface__["data"][0] for side in (buffers.send, buffers.receive)]
        apart = {"all_gather": 80, "gather": 80, "reduce_scatter": -80, "scatter": -80}.get(operation.name, 0)
        assert start[0] - start[1] == apart
        separate = case.buffers(rank=2, in_place=False)
        assert not np.shares_memory(separate.send, separate.receive)

    def test_only_sendrecv_is_not_checked(self) -> None:
        assert [one.name for one in OPERATIONS.values() if not one.in_place_checked] == ["sendrecv"]


class TestChoices:
    def test_names(self) -> None:
        assert choose_operation("alltoall").name == "all_to_all"
        assert choose_operation("all_reduce_perf").name == "all_reduce"
        assert choose_operation("AllGather").name == "all_gather"
        assert [one.name for one in choose_types("float32")] == ["float"]
        assert len(choose_types("all")) == len(ELEMENT_TYPES) == 15
        assert choose_reductions("product", choose_types("half")) == ["prod"]
        assert choose_roots("all", OPERATIONS["reduce"], 3) == [0, 1, 2]
        assert choose_roots("2", OPERATIONS["reduce"], 3) == [2]
        assert choose_roots("7", OPERATIONS["all_reduce"], 3) == [-1]

    def test_what_is_refused(self) -> None:
        for refused, says in (
            (lambda: choose_operation("all_redcue"), "choose all_reduce, reduce"),
            (lambda: choose_types("fp8"), "-d fp8: there is no such type; choose int8"),
            (lambda: choose_reductions("mulsum", choose_types("float")), "-o mulsum: there is no such reduction"),
            (lambda: choose_reductions("band", choose_types("float")), "float has no band; it has sum, prod"),
            (lambda: choose_roots("4", OPERATIONS["reduce"], 4), "-r 4: the root is one of ranks 0..3, or all"),
            (lambda: choose_roots("-1", OPERATIONS["reduce"], 4), "the root is one of"),
        ):
            with pytest.raises(ConfigError, match=re.escape(says)):
                refused()

    def test_types_without_a_reduction_are_left_out(self) -> None:
        sweep = Sweep(
            operation="reduce", sizes=[64], types=list(ELEMENT_TYPES), reductions=["sum", "band"], roots=[0, 1]
        )
        found = [(case.element.name, case.reduction, case.root) for (case,) in sweep.groups(4)]
        assert ("float", "band", 0) not in found
        assert ("int8", "band", 1) in found
        assert len(found) == len(set(found)) == 2 * (15 + 9)

    def test_sizes_that_come_to_one_count_are_one_row(self) -> None:
        sweep = Sweep(operation="all_gather", sizes=[8, 16, 32, 64], types=["float"], reductions=[], roots=[-1])
        assert [[case.count for case in cases] for cases in sweep.groups(4)] == [[0, 1, 2, 4]]


@pytest.mark.parametrize(
    ("operation", "factor"),
    [
        ("all_reduce", 1.5), ("all_gather", 0.75), ("reduce_scatter", 0.75), ("all_to_all", 0.75), ("gather", 0.75),
        ("scatter", 0.75), ("broadcast", 1), ("reduce", 1), ("sendrecv", 1),
    ],
)  # fmt: skip
def test_factors_are_those_of_nccl_tests(operation: str, factor: float) -> None:
    assert bus_factor(operation, 4) == factor
    assert set(OPERATIONS) <= {operation for operation in OPERATIONS if bus_factor(operation, 2) is not None}


class TestTable:
    def test_the_columns_are_those_of_nccl_tests(self) -> None:
        titles, names, units = column_lines(verify=False)
        assert titles.index("out-of-place") < titles.index("in-place", titles.index("out-of-place") + 12)
        half = ["time", "algbw", "busbw", "#wrong"]
        assert names.split() == [
            "#",
            "size",
            "count",
            "type",
            "redop",
            "root",
            *half,
            *half,
            "algorithm",
            "time",
            "ratio",
        ]
        assert units.split()[:4] == ["#", "(B)", "(elements)", "(us)"]
        # The format of nccl-tests' writeResultHeader, up to where the prediction begins.
        theirs = "# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}  {:>7}  {:>6}  {:>6}  {:>6}  {:>7}  {:>6}  {:>6}  {:>6}"
        theirs = theirs.format("size", "count", "type", "redop", "root", *half, *half)
        assert names.startswith(theirs)

    def test_a_row(self) -> None:
        line = row_line(ROW, verify=False)
        assert line.split() == [
            "1024", "256", "float", "sum", "-1", "12.35", "0.12", "0.18", "0", "12.35", "0.12", "0.18", "N/A",
            "ring", "12.00", "1.03",
        ]  # fmt: skip
        _, names, _ = column_lines(verify=False)
        for name in ("count", "type", "redop", "root", "time", "busbw", "algorithm", "ratio"):
            end = names.index(name) + len(name)
            assert line[end - 1] != " "
            assert line[end : end + 1] in ("", " ")

    def test_a_row_without_prediction_and_with_verification(self) -> None:
        verified = Verification(error=1.5e-8, bound=1.8e-7, beyond=0, same_again=True, same_everywhere=True)
        row = ROW.model_copy(update={"predicted_us": None, "ratio": None, "verify": verified})
        assert row_line(row, verify=True).split()[-6:] == ["ring", "N/A", "N/A", "1.50e-08", "1.80e-07", "same"]
        differs = row.model_copy(update={"verify": verified.model_copy(update={"same_everywhere": False})})
        assert row_line(differs, verify=True).split()[-1] == "DIFFER"
        assert len(row_line(ROW, verify=True)) == len(column_lines(verify=True)[1])

    @pytest.mark.parametrize(
        ("value", "width", "text"),
        [(2.633, 7, "2.63"), (99999.5, 7, "99999.5"), (1234567.8, 7, "1234568"), (9.9e9, 7, "9.9e+09"), (0, 6, "0.00")],
    )
    def test_numbers_fit(self, value: float, width: int, text: str) -> None:
        assert fixed_width(value, width) == text

    def test_setup_and_footer(self) -> None:
        sweep = Sweep(operation="all_reduce", sizes=[8, 16], types=["float"], reductions=["sum"], roots=[-1])
        assert setup_line(sweep, 2, "2(factor)") == (
            "# nThread 1 nGpus 2 minBytes 8 maxBytes 16 step: 2(factor) warmup iters: 1 iters: <=20 agg iters: 1 "
            "validation: 1 graph: 0"
        )
        result = result_of(sweep)
        assert list(footer_lines(result))[:2] == ["# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 1.25 "]
        failed = result.model_copy(update={"out_of_bounds": 3})
        assert next(iter(footer_lines(failed))) == "# Out of bounds values : 3 FAILED"


def result_of(sweep: Sweep) -> BenchResult:
    return BenchResult(
        fauxrdma_version="1", operation="all_reduce", fabric="fat-tree", transport="infiniband", clock="paced",
        time="fabric time", dilation=2.0, seed=0, placement="block", places=[], sweep=sweep, rows=[ROW],
        out_of_bounds=0, average_busbw_gb_per_s=1.25, debt_p50_percent=1.0, debt_p99_percent=2.0, notes=[],
    )  # fmt: skip


def test_the_json_keeps_its_form() -> None:
    """A field that goes away or changes its name needs a new SCHEMA_VERSION."""
    sweep = Sweep(operation="all_reduce", sizes=[8], types=["float"], reductions=["sum"], roots=[-1])
    text = json.loads(result_of(sweep).model_dump_json())
    assert text["schema_version"] == 1
    assert set(text) == {
        "schema_version", "fauxrdma_version", "operation", "fabric", "transport", "clock", "time", "dilation", "seed",
        "placement", "places", "sweep", "rows", "out_of_bounds", "average_busbw_gb_per_s", "debt_p50_percent",
        "debt_p99_percent", "notes",
    }  # fmt: skip
    assert set(text["sweep"]) == {
        "operation", "sizes", "types", "reductions", "roots", "iterations", "warm_up", "check", "average", "blocking",
        "verify", "budget_s",
    }  # fmt: skip
    row = text["rows"][0]
    assert set(row) == {
        "size", "count", "type", "redop", "root", "algorithm", "out_of_place", "in_place", "verify", "predicted_us",
        "ratio",
    }  # fmt: skip
    assert set(row["in_place"]) == {
        "time_us", "wall_us", "algbw_gb_per_s", "busbw_gb_per_s", "wrong", "iterations", "iterations_us",
    }  # fmt: skip
    assert set(Verification.model_fields) == {"error", "bound", "beyond", "same_again", "same_everywhere"}


class TestAgainstFloat64:
    def test_bounds_grow_with_ranks(self) -> None:
        single = ELEMENT_TYPES["float"]
        assert error_bound(single, "sum", 1) == pytest.approx(0, abs=1e-15)
        assert error_bound(single, "sum", 2) == pytest.approx(2.0**-24, rel=1e-6)
        assert error_bound(single, "avg", 8) == pytest.approx(8 * 2.0**-24, rel=1e-6)
        assert error_bound(ELEMENT_TYPES["bfloat16"], "sum", 5) == pytest.approx(4 / 256 / (1 - 4 / 256))
        assert error_bound(ELEMENT_TYPES["bfloat16"], "sum", 300) == float("inf")

    def test_what_can_be_verified(self) -> None:
        able = {(one.name, op) for one in ELEMENT_TYPES.values() for op in one.reductions if verifiable(one, op)}
        assert able == {(name, op) for name in ("half", "bfloat16", "float") for op in ("sum", "avg")}

    @given(
        st.sampled_from(["half", "bfloat16", "float"]),
        st.sampled_from(["sum", "avg"]),
        st.integers(1, 20),
        st.integers(0, 999),
    )
    def test_sums_in_any_order_stay_within_the_bound(self, name: str, op: str, n: int, seed: int) -> None:
        element = ELEMENT_TYPES[name]
        case = Case(OPERATIONS["all_reduce"], element, op, -1, 200, n)
        order = np.random.default_rng(seed).permutation(n)
        total = None
        arithmetic = element.arithmetic(op, element.dtype, n)
        for rank in order:
            buffers = case.buffers(int(rank), False)
            fill_randomly(case, int(rank), buffers, seed)
            if total is None:
                total = buffers.send.copy()
            else:
                arithmetic.reduce(total, total, buffers.send)
        assert total is not None
        arithmetic.finish(total)
        errors = errors_of(case, 0, total, seed)
        assert errors.beyond == 0
        assert n < 3 or errors.largest > 0
        total.view(np.uint8)[total.itemsize - 1] ^= 0x40  # an exponent's bit: far off
        assert errors_of(case, 0, total, seed).beyond == 1
