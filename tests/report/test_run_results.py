"""From fabric report and records to the result, the table, the verdict and the JSON file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from fauxrdma.errors import ConfigError
from fauxrdma.report.files import check_writable, compare_runs, write_report
from fauxrdma.report.results import SCHEMA_VERSION, Comparison, RunResult
from fauxrdma.report.table import comparison_rows, comparison_table
from fauxrdma.report.verdict import verdict
from fauxrdma.topology.graph import Topology

RunMaker = Callable[..., tuple[RunResult, Topology]]


def rows_of(*runs: RunResult) -> dict[str, list[str]]:
    return {row.name.strip(): row.cells for row in comparison_rows(runs)}


class TestBuilding:
    def test_a_run_holds_what_was_measured(self, make_run: RunMaker) -> None:
        run, _ = make_run("fat-tree", mean_ns=14_000)
        assert run.main_all_reduce is not None
        assert run.main_all_reduce.nbytes == 68_000
        assert run.main_all_reduce.duration.count == 55 == len(run.main_all_reduce_ns)
        assert run.main_all_reduce.duration.p50_ns == pytest.approx(14_000, rel=0.1)
        bandwidth = 1.5 * 68_000 / run.main_all_reduce.duration.mean_ns
        assert run.main_all_reduce.bus_bandwidth_gb_per_s == pytest.approx(bandwidth)
        assert run.timing.steps == 55
        assert run.timing.step_ns == pytest.approx(200_000)
        assert run.notes == []

    def test_links_come_busiest_first_and_idle_ones_not_at_all(self, make_run: RunMaker) -> None:
        run, topology = make_run("seed-rail8")
        assert 0 < len(run.links) < len(topology.links)
        loads = [link.utilisation for link in run.links]
        assert loads == sorted(loads, reverse=True)
        assert all(link.nbytes > 0 for link in run.links)

    def test_the_route_is_weighted_by_bytes(self, make_run: RunMaker) -> None:
        run, _ = make_run("fat-tree", nodes=2, gpus=2)
        # Shortest paths within a node stay behind its PCIe switch: half of the ring's pairs cross one switch.
        assert run.route is not None
        assert (run.route.switches_mean, run.route.switches_max, run.route.pairs) == (0.5, 1, 4)

    def test_high_debt_is_said_loudly(self, make_run: RunMaker) -> None:
        run, _ = make_run(debt_p99=23.0)
        (note,) = run.notes
        assert "TOO SLOW FOR THE TAILS" in note
        assert "Raise --dilation above 1000" in note
        debt_row = next(row for row in comparison_rows([run]) if row.name.startswith("fidelity debt"))
        assert debt_row.warn == {0}

    def test_debt_of_the_median_is_said_more_loudly(self, make_run: RunMaker) -> None:
        (note,) = make_run(debt_p50=12.0, debt_p99=23.0)[0].notes
        assert note.startswith("THE HOST WAS TOO SLOW to be trusted: half of the operations took 12 %")

    def test_no_steps_is_said(self, make_run: RunMaker) -> None:
        run, _ = make_run(values={"loss": "0.5"})
        assert run.timing.step_ns is None
        assert any("steps=N" in note for note in run.notes)

    def test_unshaped_runs_say_that_their_time_is_wall_time(self, make_run: RunMaker) -> None:
        run, _ = make_run(clock="none")
        assert run.time_name == "wall time"
        assert run.debt is None
        assert any("wall time" in note for note in run.notes)
        assert "wall time per step" in rows_of(run)


class TestTable:
    def test_every_metric_of_the_issue_has_a_row(self, make_run: RunMaker) -> None:
        found = rows_of(make_run("seed-rail8")[0], make_run("fat-tree")[0])
        for name in (
            "result: loss",
            "result: accuracy",
            "fabric time per step",
            "of it communication",
            "all-reduce of 66.4 KiB: calls",
            "modelled, host aside",
            "fabric time, mean",
            "fabric time, p50",
            "fabric time, p99",
            "bus bandwidth",
            "switches crossed, mean / most",
            "busiest links",
            "fidelity debt, p50 / p99",
            "wall time of the job",
        ):
            assert all(cell not in ("", "-") for cell in found[name]), name

    def test_the_winner_of_a_row_is_marked(self, make_run: RunMaker) -> None:
        slow, _ = make_run("seed-rail8", mean_ns=30_000)
        fast, _ = make_run("fat-tree", mean_ns=10_000)
        best = {row.name.strip(): row.best for row in comparison_rows([slow, fast])}
        assert best["fabric time, mean"] == best["bus bandwidth"] == {1}
        assert best["fabric time per step"] == frozenset()  # equal

    def test_long_values_are_shortened(self, make_run: RunMaker) -> None:
        run, _ = make_run(values={"params_sha256": "ab" * 32})
        assert rows_of(run)["result: params_sha256"] == ["abababababab..."]

    def test_rows_without_any_value_are_left_out(self, make_run: RunMaker) -> None:
        found = rows_of(make_run(values={})[0])
        assert "fabric time per step" not in found
        assert not any(name.startswith("result:") for name in found)

    def test_it_prints(self, make_run: RunMaker) -> None:
        console = Console(width=140, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
        console.print(comparison_table([make_run("seed-rail8")[0], make_run("fat-tree")[0]]))
        text = console.export_text()
        assert "seed-rail8" in text
        assert "GB/s" in text


class TestVerdict:
    def test_it_names_the_faster_the_factor_and_the_cause(self, make_run: RunMaker) -> None:
        slow, _ = make_run("seed-two-switch", mean_ns=30_000)
        fast, _ = make_run("fat-tree", mean_ns=10_000)
        assert slow.route is not None
        slow.route.switches_mean, slow.route.latency_mean_ns = 2.5, 1300.0
        text = verdict([slow, fast])
        assert text.startswith("fat-tree was 3.00x as fast as seed-two-switch")
        assert "fabric time" in text
        assert "0.5 switches on average, not 2.5" in text

    def test_a_slower_link_is_a_cause(self, make_run: RunMaker) -> None:
        slow, _ = make_run("fat-tree:edr", mean_ns=20_000)
        fast, _ = make_run("fat-tree", mean_ns=10_000)
        assert "runs at 100 Gb/s, not 200" in verdict([slow, fast])

    def test_equal_is_called_equal(self, make_run: RunMaker) -> None:
        text = verdict([make_run("seed-rail8", mean_ns=14_100)[0], make_run("fat-tree", mean_ns=14_000)[0]])
        assert "equal within 3%" in text

    def test_a_difference_smaller_than_the_debt_is_not_trusted(self, make_run: RunMaker) -> None:
        runs = [make_run("seed-rail8", mean_ns=15_000, debt_p99=60.0)[0], make_run("fat-tree", mean_ns=14_000)[0]]
        assert runs[0].debt is not None
        assert "The tails are the host's (fidelity debt p99 60 %); by the model alone fat-tree is 1." in verdict(runs)
        runs[0].debt.p50_percent = 30.0
        assert "differ by less than the fidelity debt (p50 30 %), so they do not decide; by the model" in verdict(runs)

    def test_it_says_whether_the_results_are_the_same(self, make_run: RunMaker) -> None:
        one, _ = make_run("seed-rail8")
        other, _ = make_run("fat-tree")
        assert verdict([one, other]).endswith("The job's results are identical on both.")
        other.values["loss"] = "0.9"
        assert verdict([one, other]).endswith("The job's results differ in loss.")
        assert compare_runs([one, other]).differing_values == ["loss"]

    def test_one_run_has_no_verdict(self, make_run: RunMaker) -> None:
        assert verdict([make_run()[0]]) == ""

    def test_a_job_without_all_reduce_cannot_be_compared(self, make_run: RunMaker) -> None:
        lacking = make_run("seed-rail8")[0].model_copy(update={"main_all_reduce": None})
        assert "no all-reduce was recorded on seed-rail8" in verdict([lacking, make_run("fat-tree")[0]])


class TestFiles:
    def test_the_json_file_reads_back(self, make_run: RunMaker, tmp_path: Path) -> None:
        run, topology = make_run("fat-tree")
        comparison = compare_runs([run])
        json_path, html_path = write_report(comparison, {"fat-tree": topology}, tmp_path / "new" / "directory")
        raw = json.loads(json_path.read_text())
        assert raw["schema_version"] == SCHEMA_VERSION
        assert Comparison.model_validate(raw) == comparison
        assert html_path.read_text().startswith("<!doctype html>")

    def test_an_output_that_is_a_file_is_refused_before_anything_runs(self, tmp_path: Path) -> None:
        (tmp_path / "taken").touch()
        with pytest.raises(ConfigError, match=r"--output .*taken: cannot write there"):
            check_writable(tmp_path / "taken")
