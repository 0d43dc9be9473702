"""The one sentence under the table: which fabric was faster, by how much, and why."""

from __future__ import annotations

from collections.abc import Sequence

from fauxrdma.report.building import DEBT_LIMIT_PERCENT
from fauxrdma.report.results import LinkLoad, RunResult
from fauxrdma.units import format_ns

__all__ = ["busiest_cable", "verdict"]

_SAME = 0.03
"""Relative difference below which two fabrics are called equal."""


def verdict(runs: Sequence[RunResult]) -> str:
    """Compare the fastest run with the slowest, by the median of the main all-reduce."""
    timed = [(run, run.main_all_reduce.duration.p50_ns) for run in runs if run.main_all_reduce is not None]
    if len(runs) < 2:
        return ""
    if len(timed) < len(runs):
        lacking = ", ".join(run.fabric for run in runs if run.main_all_reduce is None)
        return f"No comparison: no all-reduce was recorded on {lacking}."
    (fast, fast_ns), *_, (slow, slow_ns) = sorted(timed, key=lambda pair: pair[1])
    clock = fast.time_name
    if fast_ns <= 0 or slow_ns / fast_ns < 1 + _SAME:
        names = " and ".join(run.fabric for run in runs) if len(runs) == 2 else f"All {len(runs)} fabrics"
        text = f"{names} are equal within {_SAME:.0%} ({format_ns(fast_ns)} of {clock} per all-reduce)."
    else:
        text = (
            f"{fast.fabric} was {slow_ns / fast_ns:.2f}x as fast as {slow.fabric} "
            f"({format_ns(fast_ns)} against {format_ns(slow_ns)} of {clock} per all-reduce, median)"
            f"{_why(fast, slow)}."
        )
    return text + _caution(runs, fast_ns, slow_ns)


def busiest_cable(run: RunResult) -> LinkLoad | None:
    """The busiest link between a NIC and a switch or two switches; a PCIe link only when no cable was used."""
    return next((link for link in run.links if link.kind == "cable"), run.links[0] if run.links else None)


def _why(fast: RunResult, slow: RunResult) -> str:
    """The reasons that the data supports, in a clause; empty when there is none."""
    if fast.clock != "paced":
        return "; nothing was shaped, so this is the host's doing"
    reasons = []
    if fast.route is not None and slow.route is not None:
        more_latency = slow.route.latency_mean_ns / max(1.0, fast.route.latency_mean_ns)
        if slow.route.switches_mean > fast.route.switches_mean * (1 + _SAME):
            reasons.append(
                f"its bytes cross {fast.route.switches_mean:.1f} switches on average, not "
                f"{slow.route.switches_mean:.1f} (path latency {format_ns(fast.route.latency_mean_ns)} against "
                f"{format_ns(slow.route.latency_mean_ns)})"
            )
        elif more_latency > 1 + _SAME:
            reasons.append(
                f"its paths have {format_ns(fast.route.latency_mean_ns)} of latency, not "
                f"{format_ns(slow.route.latency_mean_ns)}"
            )
    ours, theirs = busiest_cable(fast), busiest_cable(slow)
    if ours is not None and theirs is not None:
        if theirs.rate_bps < ours.rate_bps:
            reasons.append(
                f"the busiest link of {slow.fabric}, {theirs.name}, runs at {theirs.rate_bps / 1e9:g} Gb/s, not "
                f"{ours.rate_bps / 1e9:g}"
            )
        elif theirs.utilisation > ours.utilisation + 0.05:
            reasons.append(
                f"the busiest link of {slow.fabric}, {theirs.name}, was {theirs.utilisation:.0%} used against "
                f"{ours.utilisation:.0%}"
            )
    return ": " + ", and ".join(reasons) if reasons else ""


def _caution(runs: Sequence[RunResult], fast_ns: float, slow_ns: float) -> str:
    debts = [run.debt.p99_percent for run in runs if run.debt is not None]
    worst = max(debts, default=0.0)
    if worst <= DEBT_LIMIT_PERCENT:
        return ""
    difference = (slow_ns / fast_ns - 1) * 100 if fast_ns > 0 else 0.0
    if difference < worst:
        return f" Do not trust the difference: the fidelity debt (p99 {worst:.0f} %) is larger than it."
    return f" The fidelity debt (p99 {worst:.0f} %) is above {DEBT_LIMIT_PERCENT:g} %: take the numbers with care."
