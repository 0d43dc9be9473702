"""Thresholds: read, judged on a run with known figures, and refused with what was meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fauxrdma.errors import ConfigError
from fauxrdma.report.results import RunResult
from fauxrdma.report.thresholds import METRICS, Unit, judge, parse_threshold

RunMaker = Callable[..., tuple[RunResult, Any]]


@pytest.fixture
def run(make_run: RunMaker) -> RunResult:
    return make_run("fat-tree", mean_ns=14_000)[0]


def met(run: RunResult, text: str) -> bool:
    (outcome,) = judge(run, [parse_threshold(text)])
    assert outcome.text == text
    assert outcome.why
    return outcome.met


def test_times_rates_and_values_around_the_measured_figure(run: RunResult) -> None:
    main = run.main_all_reduce
    assert main is not None
    assert main.bus_bandwidth_gb_per_s is not None
    mean, busbw = main.duration.mean_ns, main.bus_bandwidth_gb_per_s
    assert met(run, f"all_reduce.mean < {mean + 1:.0f}ns")
    assert not met(run, f"all_reduce.mean < {mean - 1:.0f}ns")
    assert met(run, f"all_reduce.busbw >= {busbw - 0.01:.3f}GBps")
    assert not met(run, f"all_reduce.busbw >= {busbw + 0.01:.3f}GBps")
    assert met(run, f"all_reduce.busbw >= {(busbw - 0.01) * 8:.3f}Gbps")
    assert met(run, "value.loss < 0.13")
    assert not met(run, "value.loss < 0.12")
    assert met(run, "value.steps == 55")
    assert met(run, "debt.p99 <= 3%")
    assert not met(run, "debt.p99 <= 2%")
    assert met(run, "retransmits == 0")
    assert met(run, "spine_bytes < 1M")
    assert met(run, "route.switches <= 3")


def test_line_rate_is_that_of_the_hcas_cables(make_run: RunMaker) -> None:
    run = make_run("fat-tree:ndr")[0]
    busbw = run.main_all_reduce.bus_bandwidth_gb_per_s  # type: ignore[union-attr]
    share = busbw / 50  # NDR: 400 Gb/s
    assert met(run, f"all_reduce.busbw >= {share * 0.99:.4f} * line_rate")
    assert not met(run, f"all_reduce.busbw >= {share * 1.01:.4f} * line_rate")
    assert met(run, "all_reduce.busbw < line_rate")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("all_gather.busbw > 1GBps", "the job called no all_gather (it called all_reduce)"),
        ("value.perplexity < 3", "rank 0 printed no perplexity=..."),
        ("value.params_sha256 < 3", "which is no number"),
    ],
)
def test_what_has_no_figure_is_not_met_and_says_why(run: RunResult, text: str, why: str) -> None:
    (outcome,) = judge(run, [parse_threshold(text)])
    assert not outcome.met
    assert outcome.measured is None
    assert why in outcome.why


def test_without_a_used_cable_there_is_no_line_rate_and_without_pacing_no_debt(make_run: RunMaker) -> None:
    run = make_run(clock="none")[0].model_copy(update={"links": [], "debt": None})
    texts = ("all_reduce.busbw > line_rate", "debt.p99 < 5%", "link.utilisation < 90%")
    outcomes = judge(run, [parse_threshold(text) for text in texts])
    assert [outcome.met for outcome in outcomes] == [False, False, False]
    assert "no HCA's cable was used" in outcomes[0].why
    assert "--clock none" in outcomes[1].why


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("all_reduce.busbw", "not of the form METRIC >= LIMIT"),
        ("all_reduce.busbandwidth > 1GBps", "did you mean all_reduce.busbw"),
        ("al_reduce.mean < 1us", "did you mean all_reduce.mean"),
        ("speed > 3", "there are step, communication"),
        ("all_reduce.busbw > 3", "a rate (20GBps, 160Gbps) or a multiple of line_rate"),
        ("all_reduce.mean < 3", "a time (30us, 1.5ms)"),
        ("step < line_rate", "step is no rate"),
        ("debt.p99 < 5", "a percentage (5%)"),
        ("spine_bytes < much", "a size (64K, 1MB)"),
        ("value.loss < low", "a number"),
        ("all_reduce.busbw >= line_rate * 0.9", "a multiple of line_rate"),
    ],
)
def test_nonsense_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_threshold(text)
    assert complaint in str(caught.value)


@pytest.mark.parametrize("metric", METRICS)
def test_every_metric_of_the_table_can_be_judged(run: RunResult, metric: str) -> None:
    limit = {Unit.TIME: "100s", Unit.PERCENT: "1000%", Unit.BYTES: "1TB", Unit.NUMBER: "1000", Unit.RATE: "1GBps"}
    assert met(run, f"{metric} < {limit[METRICS[metric][0]]}")
