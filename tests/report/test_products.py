"""Comparisons in more than fabrics: the table with a row each, the notes told together, the verdict by dimension."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from fauxrdma.report.dimensions import is_product, varied
from fauxrdma.report.files import compare_runs
from fauxrdma.report.html import render_html
from fauxrdma.report.notes import common_notes
from fauxrdma.report.product_table import product_columns, product_table
from fauxrdma.report.product_verdict import effect_of
from fauxrdma.report.results import RunResult
from fauxrdma.report.verdict import differing_values, verdict
from fauxrdma.topology.graph import Topology

RunMaker = Callable[..., tuple[RunResult, Topology]]
SpineMaker = Callable[..., RunResult]
MIB = 1 << 20


@pytest.fixture
def made(make_run: RunMaker) -> SpineMaker:
    """``made("seed-rail8", "cyclic", mean_ns=..., spine=bytes)``: a run as one of a product."""

    def make(
        fabric: str, placement: str, *, spine: int = 0, algorithm: str = "", script: str = "", **how: Any
    ) -> RunResult:
        run, _ = make_run(fabric, **how)
        run.placement, run.spine_bytes, run.algorithm = placement, spine, algorithm
        if script:
            run.command = script.split()
        run.name = f"{fabric} / {placement}" + (f" / {algorithm}" if algorithm else "")
        return run

    return make


def test_dimensions_are_those_in_which_runs_differ(made: SpineMaker) -> None:
    rail, fat = made("seed-rail8", "block"), made("fat-tree", "block")
    cyclic = made("seed-rail8", "cyclic")
    assert (varied([rail, fat]), is_product([rail, fat])) == (["fabric"], False)
    assert (varied([rail, cyclic]), is_product([rail, cyclic])) == (["placement"], True)
    assert varied([rail, fat, made("fat-tree", "cyclic", script="other.py")]) == ["fabric", "placement", "script"]


def test_a_row_each_with_the_winner_of_its_script(made: SpineMaker) -> None:
    runs = [
        made("seed-rail8", "block", mean_ns=20_000, spine=18 * MIB),
        made("seed-rail8", "rail-aligned", mean_ns=10_000),
        made("seed-rail8", "block", mean_ns=5_000, spine=1 * MIB, script="small.py", debt_p99=30.0),
        made("seed-rail8", "rail-aligned", mean_ns=6_000, script="small.py"),
    ]
    columns = {column.name: column for column in product_columns(runs)}
    assert columns["placement"].cells == ["block", "rail-aligned"] * 2
    assert columns["script"].cells[2] == "small.py"
    assert columns["over spines"].cells == ["18 MiB", "0 B", "1 MiB", "0 B"]
    assert columns["over spines"].best == {1, 3}
    assert columns["fabric time, p50"].best == columns["bus bandwidth"].best == {1, 2}
    assert columns["debt p99"].warn == {2}
    stream = io.StringIO()
    Console(file=stream, width=160).print(product_table(runs))
    assert "rail-aligned" in stream.getvalue()


def test_what_is_said_of_all_is_said_once(made: SpineMaker) -> None:
    runs = [made("seed-rail8", how, values={"loss": "1"}, debt_p50=p50, debt_p99=50.0)
            for how, p50 in (("block", 10.0), ("cyclic", 20.0), ("rail-aligned", 2.0))]  # fmt: skip
    slow, steps = common_notes(runs)
    assert slow[0] == steps[0] == "all 3"
    assert "20 % or more longer" in slow[1]
    assert slow[1].endswith("(the worst: seed-rail8 / cyclic)")
    assert "steps=N" in steps[1]


class TestVerdict:
    def test_one_dimension_names_the_bytes(self, made: SpineMaker) -> None:
        runs = [
            made("seed-rail8", "cyclic", mean_ns=20_000, spine=43 * MIB),
            made("seed-rail8", "rail-aligned", mean_ns=10_000),
        ]
        text = verdict(runs)
        assert text.startswith("seed-rail8 / rail-aligned was 2.00x as fast as seed-rail8 / cyclic")
        assert "Over spines: rail-aligned 0 B, cyclic 43 MiB." in text

    def test_each_dimension_is_judged_all_else_equal(self, made: SpineMaker) -> None:
        runs = [
            made(fabric, how, mean_ns=int(base * factor), spine=spine)
            for fabric, base in (("seed-rail8", 10_000), ("fat-tree", 20_000))
            for how, factor, spine in (("block", 1.5, 4 * MIB), ("rail-aligned", 1.0, 0))
        ]
        text = verdict(runs)
        assert text.startswith("seed-rail8 / rail-aligned was 3.00x as fast as fat-tree / block")
        assert "By fabric: seed-rail8 is the fastest in 2 of 2 cases (2.00x as fast as the slowest)" in text
        assert (
            "By placement: rail-aligned is the fastest in 2 of 2 cases (1.50x as fast as the slowest) "
            "(over spines: rail-aligned 0 B, block 4 MiB)." in text
        )

    def test_equal_cases_are_counted_as_such(self, made: SpineMaker) -> None:
        runs = [
            made("seed-rail8", "block", mean_ns=10_000),
            made("seed-rail8", "cyclic", mean_ns=10_050),
            made("fat-tree", "block", mean_ns=10_000),
            made("fat-tree", "cyclic", mean_ns=30_000),
        ]
        assert effect_of("placement", runs) == (
            "By placement: block is the fastest in 1 of 2 cases (3.00x as fast as the slowest); all are equal "
            "within 3% in 1 of 2."
        )

    def test_a_host_that_is_too_slow_leaves_it_to_the_model(self, made: SpineMaker) -> None:
        runs = [
            made("seed-rail8", "block", mean_ns=10_000, debt_p99=90.0),
            made("seed-rail8", "cyclic", mean_ns=30_000),
        ]
        runs[0].modelled_all_reduce_ns, runs[1].modelled_all_reduce_ns = 4_000.0, 2_000.0
        assert effect_of("placement", runs) == (
            "By placement, by the model alone: cyclic is the fastest in 1 of 1 cases (2.00x as fast as the slowest)."
        )

    def test_scripts_are_not_compared_with_each_other(self, made: SpineMaker) -> None:
        runs = [
            made("seed-rail8", how, mean_ns=mean_ns, script=script, values={"loss": loss, "steps": "55"})
            for script, loss in (("a.py", "1"), ("b.py", "2"))
            for how, mean_ns in (("block", 20_000), ("rail-aligned", 10_000))
        ]
        assert differing_values(runs) == []
        text = verdict(runs)
        assert text.count("was 2.00x as fast as") == 2
        assert text.startswith("a.py: ")
        assert " b.py: " in text
        assert "differ" not in text
        runs[3].values["loss"] = "3"
        assert differing_values(runs) == ["loss"]

    def test_an_algorithm_that_was_not_used_is_said(self, make_run: RunMaker) -> None:
        from fauxrdma.report.building import _notes

        run, _ = make_run("seed-rail8")
        run.algorithm = "hierarchical"
        assert "hierarchical was asked for, but the main all-reduce used ring" in _notes(run, 4, 0)


def test_the_page_has_a_row_and_a_picture_for_each(made: SpineMaker, make_run: RunMaker) -> None:
    _, topology = make_run("seed-rail8")
    runs = [made("seed-rail8", "block", mean_ns=20_000), made("seed-rail8", "cyclic", mean_ns=10_000)]
    page = render_html(compare_runs(runs), {run.name: topology for run in runs})
    assert page.count('<svg class="topo"') == 2
    assert "2 combinations: 2 placements" in page
    assert page.count("<h2>seed-rail8 / ") == 2
    assert '<table class="product">' in page
