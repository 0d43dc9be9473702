"""What a comparison in several dimensions says: which combination was fastest, what each dimension does, and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fauxrdma.report.building import DEBT_LIMIT_PERCENT
from fauxrdma.report.dimensions import value_of, varied
from fauxrdma.report.results import RunResult
from fauxrdma.units import format_bytes, format_ns

__all__ = ["effect_of", "spine_sentence"]

_SAME = 0.03
"""Relative difference below which two are called equal."""


def effect_of(dimension: str, runs: Sequence[RunResult]) -> str:
    """One sentence: which value of `dimension` was the fastest, all else equal, in how many cases and by how much, and
    the bytes or latencies that explain it. Where the host was too slow for its measurements to be trusted, times are
    the model's. Empty where no case has all values."""
    measured = not any(run.debt is not None and run.debt.p99_percent > DEBT_LIMIT_PERCENT for run in runs)
    wins: dict[str, list[float]] = {}
    for case in _cases(dimension, runs):
        times = (_measured_ns(run) if measured else run.modelled_all_reduce_ns for run in case)
        timed = sorted((ns, value_of(run, dimension)) for ns, run in zip(times, case, strict=True) if ns is not None)
        if len(timed) == len(case):
            factor = timed[-1][0] / timed[0][0] if timed[0][0] else 1.0
            wins.setdefault(timed[0][1] if factor >= 1 + _SAME else "", []).append(factor)
    if not wins:
        return ""
    total = sum(map(len, wins.values()))
    parts = [
        f"{winner} is the fastest in {len(factors)} of {total} cases ({_range(factors)} as fast as the slowest)"
        if winner
        else f"all are equal within {_SAME:.0%} in {len(factors)} of {total}"
        for winner, factors in sorted(wins.items(), key=lambda item: (item[0] == "", -len(item[1]), item[0]))
    ]
    why = _explained(dimension, runs)
    by_whom = "" if measured else ", by the model alone"
    return f"By {dimension}{by_whom}: {'; '.join(parts)}{f' ({why})' if why else ''}."


def _measured_ns(run: RunResult) -> float | None:
    return None if run.main_all_reduce is None else run.main_all_reduce.duration.p50_ns


def spine_sentence(dimension: str, runs: Sequence[RunResult]) -> str:
    """One sentence on the bytes that crossed spines by value of `dimension`; empty where they are the same."""
    found = _by_value(dimension, runs, lambda run: run.spine_bytes, lambda nbytes: format_bytes(int(nbytes)))
    return f"Over spines: {found}." if found else ""


def _cases(dimension: str, runs: Sequence[RunResult]) -> list[list[RunResult]]:
    """The runs that differ in `dimension` only, together."""
    others = [name for name in varied(runs) if name != dimension]
    cases: dict[tuple[str, ...], list[RunResult]] = {}
    for run in runs:
        cases.setdefault(tuple(value_of(run, name) for name in others), []).append(run)
    return [case for case in cases.values() if len(case) > 1]


def _range(factors: Sequence[float]) -> str:
    low, high = f"{min(factors):.2f}x", f"{max(factors):.2f}x"
    return low if low == high else f"{low} to {high}"


def _explained(dimension: str, runs: Sequence[RunResult]) -> str:
    if dimension in ("placement", "algorithm"):
        found = _by_value(dimension, runs, lambda run: run.spine_bytes, lambda nbytes: format_bytes(int(nbytes)))
        return f"over spines: {found}" if found else ""
    found = _by_value(dimension, runs, lambda run: run.route.latency_mean_ns if run.route else None, format_ns)
    return f"path latency: {found}" if found else ""


def _by_value(
    dimension: str,
    runs: Sequence[RunResult],
    measure: Callable[[RunResult], float | None],
    show: Callable[[float], str],
) -> str:
    """``rail-aligned 0 B, cyclic 21.5 MiB to 43.0 MiB``, least first; empty when there is nothing to tell apart."""
    found: dict[str, list[float]] = {}
    for run in runs:
        measured = measure(run)
        if measured is not None:
            found.setdefault(value_of(run, dimension), []).append(measured)
    texts = {}
    for value, measures in sorted(found.items(), key=lambda item: (min(item[1]), item[0])):
        low, high = show(min(measures)), show(max(measures))
        texts[value] = low if low == high else f"{low} to {high}"
    if len(set(texts.values())) < 2:
        return ""
    return ", ".join(f"{value} {text}" for value, text in texts.items())
