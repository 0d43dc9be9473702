"""The one sentence under the table: which fabric was faster, by how much, and why."""

from __future__ import annotations

from collections.abc import Sequence

from fauxrdma.report.building import DEBT_LIMIT_PERCENT
from fauxrdma.report.dimensions import is_product, value_of, varied
from fauxrdma.report.product_verdict import effect_of, spine_sentence
from fauxrdma.report.results import LinkLoad, RunResult
from fauxrdma.units import format_ns

__all__ = ["busiest_cable", "differing_values", "verdict"]

_SAME = 0.03
"""Relative difference below which two fabrics are called equal."""


def verdict(runs: Sequence[RunResult]) -> str:
    """Compare the fastest run with the slowest, by the median of the main all-reduce.

    Where the two differ by less than the host's own lateness, the measurement does not decide and the model does. Runs
    that differ in more than their fabrics are compared script by script, and what each dimension does is said, too.
    """
    if len(runs) < 2:
        return ""
    if not is_product(runs):
        return _fastest_and_slowest(runs)
    scripts = dict.fromkeys(value_of(run, "script") for run in runs)
    if len(scripts) == 1:
        return _product(runs)
    told = [(name, _product([run for run in runs if value_of(run, "script") == name])) for name in scripts]
    return " ".join(f"{name}: {text}" for name, text in told if text)


def _product(runs: Sequence[RunResult]) -> str:
    """The verdict on runs of one script."""
    if len(runs) < 2:
        return ""
    dimensions = varied(runs)
    sentences = [_fastest_and_slowest(runs)]
    shaped = all(run.clock != "none" for run in runs)
    if shaped and len(dimensions) > 1:
        sentences += [effect_of(dimension, runs) for dimension in dimensions]
    else:
        sentences += [spine_sentence(name, runs) for name in dimensions if name in ("placement", "algorithm")]
    return " ".join(sentence for sentence in sentences if sentence)


def _fastest_and_slowest(runs: Sequence[RunResult]) -> str:
    timed = [(run, run.main_all_reduce.duration.p50_ns) for run in runs if run.main_all_reduce is not None]
    if len(timed) < len(runs):
        lacking = ", ".join(run.name for run in runs if run.main_all_reduce is None)
        return f"No comparison: no all-reduce was recorded on {lacking}."
    (fast, fast_ns), *_, (slow, slow_ns) = sorted(timed, key=lambda pair: pair[1])
    what = "combinations" if is_product(runs) else "fabrics"
    return _measured(fast, slow, fast_ns, slow_ns, f"Both {what}" if len(runs) == 2 else f"All {len(runs)} {what}") + (
        _same_results(runs)
    )


def _measured(fast: RunResult, slow: RunResult, fast_ns: float, slow_ns: float, all_of_them: str) -> str:
    clock = fast.time_name
    debts = [run.debt for run in (fast, slow) if run.debt is not None]
    median = max((debt.p50_percent for debt in debts), default=0.0)
    tail = max((debt.p99_percent for debt in debts), default=0.0)
    factor = slow_ns / fast_ns if fast_ns > 0 else 1.0
    figures = f"{format_ns(fast_ns)} of {clock} per all-reduce on {fast.name} and {format_ns(slow_ns)} on {slow.name}"
    if tail > DEBT_LIMIT_PERCENT and (factor - 1) * 100 < median:
        return (
            f"The medians measured ({figures}) differ by less than the fidelity debt (p50 {median:.0f} %), so they do "
            f"not decide{_by_model(fast, slow, why=True)}."
        )
    caution = ""
    if tail > DEBT_LIMIT_PERCENT:
        caution = f" The tails are the host's (fidelity debt p99 {tail:.0f} %){_by_model(fast, slow)}."
    if factor < 1 + _SAME:
        return f"{all_of_them} are equal within {_SAME:.0%} ({figures}).{caution}"
    return (
        f"{fast.name} was {factor:.2f}x as fast as {slow.name} ({format_ns(fast_ns)} against {format_ns(slow_ns)} "
        f"of {clock} per all-reduce, median){_why(fast, slow)}.{caution}"
    )


def busiest_cable(run: RunResult) -> LinkLoad | None:
    """The busiest link between a NIC and a switch or two switches; a PCIe link only when no cable was used."""
    return next((link for link in run.links if link.kind == "cable"), run.links[0] if run.links else None)


def _why(fast: RunResult, slow: RunResult) -> str:
    """The reasons that the data supports, in a clause; empty when there is none."""
    if fast.clock == "none":
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
                f"the busiest link of {slow.name}, {theirs.name}, runs at {theirs.rate_bps / 1e9:g} Gb/s, not "
                f"{ours.rate_bps / 1e9:g}"
            )
        elif not reasons and theirs.utilisation > ours.utilisation + 0.05:
            reasons.append(
                f"the busiest link of {slow.name}, {theirs.name}, was {theirs.utilisation:.0%} used against "
                f"{ours.utilisation:.0%}"
            )
    return ": " + ", and ".join(reasons) if reasons else ""


def differing_values(runs: Sequence[RunResult]) -> list[str]:
    """Names of the job's results that are not the same in every run of the same script."""
    names = dict.fromkeys(name for run in runs for name in run.values)
    results: dict[tuple[str, str], set[str | None]] = {}
    for run in runs:
        for name in names:
            results.setdefault((name, value_of(run, "script")), set()).add(run.values.get(name))
    return list(dict.fromkeys(name for (name, _), values in results.items() if len(values) > 1))


def _same_results(runs: Sequence[RunResult]) -> str:
    if not any(run.values for run in runs):
        return ""
    differing = differing_values(runs)
    if differing:
        return f" The job's results differ in {', '.join(differing)}."
    return " The job's results are identical on " + ("both." if len(runs) == 2 else f"all {len(runs)}.")


def _by_model(one: RunResult, other: RunResult, why: bool = False) -> str:
    """What the model says of the two, in a clause that can follow any sentence."""
    if not one.modelled_all_reduce_ns or not other.modelled_all_reduce_ns:
        return ""
    fast, slow = sorted((one, other), key=lambda run: run.modelled_all_reduce_ns or 0.0)
    factor = (slow.modelled_all_reduce_ns or 0.0) / (fast.modelled_all_reduce_ns or 1.0)
    if factor < 1 + _SAME:
        return "; by the model alone they are equal"
    reason = _why(fast, slow) if why else ""
    return f"; by the model alone {fast.name} is {factor:.2f}x as fast as {slow.name}{reason}"
