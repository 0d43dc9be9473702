"""Thresholds: what a run must reach for a command to succeed, as `all_reduce.busbw >= 0.85 * line_rate`.

A threshold is METRIC OPERATOR LIMIT. Metrics and their units are in `METRICS`; `OP.busbw` and `OP.mean`, `.p50`,
`.p99`, `.min`, `.max` are of the collective `OP` that moved most bytes, `value.NAME` is what rank 0 printed. A limit
has the metric's unit (25GBps, 30us, 5%, 0.5), or is a multiple of `line_rate`: the rate of the fastest HCA port in use.
"""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from fauxrdma.errors import ConfigError
from fauxrdma.report.results import Collective, RunResult, ThresholdOutcome
from fauxrdma.units import Rate, format_bytes, format_ns, parse_byte_count, parse_rate, parse_time_ns

__all__ = ["METRICS", "Threshold", "Unit", "judge", "parse_threshold"]


class Unit(Enum):
    """What a metric is measured in."""

    RATE = "GB/s"
    TIME = "ns"
    PERCENT = "%"
    BYTES = "bytes"
    NUMBER = ""


METRICS: dict[str, tuple[Unit, str]] = {
    "step": (Unit.TIME, "time per step"),
    "communication": (Unit.TIME, "collectives per step"),
    "elapsed": (Unit.TIME, "from the fabric's start to the report"),
    "debt.p50": (Unit.PERCENT, "fidelity debt, median"),
    "debt.p99": (Unit.PERCENT, "fidelity debt, 99th percentile"),
    "link.utilisation": (Unit.PERCENT, "of the busiest link"),
    "spine_bytes": (Unit.BYTES, "payload that left a leaf for another switch"),
    "retransmits": (Unit.NUMBER, "frames sent again"),
    "route.switches": (Unit.NUMBER, "switches on the way of a byte, mean"),
}
"""Metrics of a whole run, by name: unit and meaning."""

_OF_A_COLLECTIVE = {"busbw": Unit.RATE, **dict.fromkeys(("mean", "p50", "p99", "min", "max"), Unit.TIME)}
_COLLECTIVES = (
    "all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "gather", "scatter", "barrier",
)  # fmt: skip
_LINE_RATE = "line_rate"
_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
_FORM = re.compile(r"^\s*([\w.]+)\s*(>=|<=|==|!=|>|<)\s*(.+?)\s*$")
_MULTIPLE = re.compile(rf"^(?:([0-9]*\.?[0-9]+)\s*\*\s*)?{_LINE_RATE}$")
_HCA_END = re.compile(r"^n\d+\.hca\d+$")


@dataclass(frozen=True, slots=True)
class Threshold:
    """One condition. `limit` is in the metric's unit (rates in GB/s, times in ns), or a factor if `of_line_rate`."""

    text: str
    metric: str
    unit: Unit
    comparison: str
    limit: float
    of_line_rate: bool


def parse_threshold(text: str) -> Threshold:
    """Read one. Raises ConfigError that says what is wrong with it, and what was perhaps meant."""
    form = _FORM.match(text)
    if form is None:
        raise ConfigError(
            f"threshold {text!r} is not of the form METRIC >= LIMIT, as in 'all_reduce.busbw >= 0.85 * line_rate'"
        )
    metric, comparison, limit = form.groups()
    unit = _unit_of(metric, text)
    multiple = _MULTIPLE.match(limit)
    if multiple is not None and unit is not Unit.RATE:
        raise ConfigError(f"threshold {text!r}: {metric} is no rate, and cannot be compared with {_LINE_RATE}")
    if multiple is not None:
        return Threshold(text, metric, unit, comparison, float(multiple[1] or 1), True)
    try:
        return Threshold(text, metric, unit, comparison, _limit(limit, unit), False)
    except (ConfigError, ValueError) as error:
        wanted = {
            Unit.RATE: "a rate (20GBps, 160Gbps) or a multiple of line_rate (0.85 * line_rate)",
            Unit.TIME: "a time (30us, 1.5ms)",
            Unit.PERCENT: "a percentage (5%)",
            Unit.BYTES: "a size (64K, 1MB)",
            Unit.NUMBER: "a number",
        }[unit]
        raise ConfigError(f"threshold {text!r}: the limit of {metric} is {wanted}, not {limit!r}") from error


def _unit_of(metric: str, text: str) -> Unit:
    if metric in METRICS:
        return METRICS[metric][0]
    owner, _, what = metric.partition(".")
    if owner == "value" and what:
        return Unit.NUMBER
    if owner in _COLLECTIVES and what in _OF_A_COLLECTIVE:
        return _OF_A_COLLECTIVE[what]
    known = [*METRICS, *(f"{op}.{part}" for op in _COLLECTIVES for part in _OF_A_COLLECTIVE), "value.NAME"]
    close = difflib.get_close_matches(metric, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(METRICS)}, OP.busbw, OP.mean, value.NAME"
    raise ConfigError(f"threshold {text!r}: there is no metric {metric!r}; {hint}")


def _limit(text: str, unit: Unit) -> float:
    match unit:
        case Unit.RATE:
            return parse_rate(text).bytes_per_ns
        case Unit.TIME:
            return parse_time_ns(text)
        case Unit.PERCENT:
            number, sign, rest = text.partition("%")
            if not sign or rest:
                raise ValueError(text)
            return float(number)
        case Unit.BYTES:
            return parse_byte_count(text)
        case Unit.NUMBER:
            return float(text)


def judge(run: RunResult, thresholds: Sequence[Threshold]) -> list[ThresholdOutcome]:
    """Whether `run` meets each. What the run has no figure for is not met, and the outcome says why."""
    return [_judge(run, threshold) for threshold in thresholds]


def _judge(run: RunResult, threshold: Threshold) -> ThresholdOutcome:
    measured, missing = _measured(run, threshold.metric)
    limit = threshold.limit
    if threshold.of_line_rate:
        line_rate = _line_rate(run)
        if line_rate is None:
            missing = missing or "no HCA's cable was used, so there is no line rate"
        else:
            limit *= line_rate.bytes_per_ns
    if measured is None or missing:
        return ThresholdOutcome(text=threshold.text, met=False, measured=None, limit=None, why=missing)
    met = _COMPARISONS[threshold.comparison](measured, limit)
    shown, wanted = _show(measured, threshold.unit), _show(limit, threshold.unit)
    why = f"{threshold.metric} is {shown}, wanted {threshold.comparison} {wanted}"
    return ThresholdOutcome(text=threshold.text, met=met, measured=measured, limit=limit, why=why)


def _measured(run: RunResult, metric: str) -> tuple[float | None, str]:
    """The figure in its unit, or None and why there is none."""
    owner, _, what = metric.partition(".")
    if owner == "value":
        text = run.values.get(what)
        try:
            return (None, f"rank 0 printed no {what}=...") if text is None else (float(text), "")
        except ValueError:
            return None, f"rank 0 printed {what}={text}, which is no number"
    if owner in _COLLECTIVES and what in _OF_A_COLLECTIVE:
        return _of_collective(run, owner, what)
    found: float | None = None
    match metric:
        case "step":
            found, why = run.timing.step_ns, "the script printed no steps=N"
        case "communication":
            found, why = run.timing.communication_ns, "the script printed no steps=N"
        case "elapsed":
            found, why = run.elapsed_ns, ""
        case "debt.p50" | "debt.p99":
            why = "nothing was shaped (--clock none), so there is no fidelity debt"
            if run.debt is not None:
                found = run.debt.p50_percent if what == "p50" else run.debt.p99_percent
        case "link.utilisation":
            found, why = max((link.utilisation * 100 for link in run.links), default=None), "no link carried anything"
        case "spine_bytes":
            found, why = run.spine_bytes, ""
        case "retransmits":
            found, why = run.retransmits, ""
        case _:
            found, why = (run.route.switches_mean if run.route is not None else None), "no payload crossed the fabric"
    return found, "" if found is not None else why


def _of_collective(run: RunResult, op: str, what: str) -> tuple[float | None, str]:
    of_op = [each for each in run.collectives if each.op == op]
    if not of_op:
        called = ", ".join(dict.fromkeys(each.op for each in run.collectives)) or "none"
        return None, f"the job called no {op} (it called {called})"
    main = max(of_op, key=_total_bytes)
    if what == "busbw":
        busbw = main.bus_bandwidth_gb_per_s
        return busbw, "" if busbw is not None else f"bus bandwidth of {op} is undefined for this run"
    return float(getattr(main.duration, f"{what}_ns")), ""


def _total_bytes(collective: Collective) -> int:
    return collective.nbytes * collective.duration.count


def _line_rate(run: RunResult) -> Rate | None:
    rates = [link.rate_bps for link in run.links if link.kind == "cable" and _HCA_END.match(link.src)]
    return Rate(max(rates)) if rates else None


def _show(value: float, unit: Unit) -> str:
    match unit:
        case Unit.RATE:
            return f"{value:.4g} GB/s"
        case Unit.TIME:
            return format_ns(value)
        case Unit.PERCENT:
            return f"{value:.4g} %"
        case Unit.BYTES:
            return format_bytes(value)
        case Unit.NUMBER:
            return f"{value:g}"
