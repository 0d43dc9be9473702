"""The notes of many runs, told together."""

from __future__ import annotations

from collections.abc import Sequence

from fauxrdma.report.building import DEBT_LIMIT_PERCENT
from fauxrdma.report.dimensions import is_product
from fauxrdma.report.results import RunResult

__all__ = ["common_notes"]

_NAMED = 3


def common_notes(runs: Sequence[RunResult]) -> list[tuple[str, str]]:
    """(which runs, note) for each note. Where runs differ in more than their fabrics, what is said of several is said
    once, and of runs for which the host was too slow only the worst is told."""
    if not is_product(runs):
        return [(run.name, note) for run in runs for note in run.notes]
    about: dict[str, list[str]] = {}
    slow = [run for run in runs if run.debt is not None and run.debt.p99_percent > DEBT_LIMIT_PERCENT]
    for run in runs:
        for note in run.notes:
            if run not in slow or "TOO SLOW" not in note:
                about.setdefault(note, []).append(run.name)
    told = []
    if slow:
        worst = max(slow, key=lambda run: (run.debt.p50_percent, run.debt.p99_percent) if run.debt else (0.0, 0.0))
        loud = next((note for note in worst.notes if "TOO SLOW" in note), "")
        told.append((_names([run.name for run in slow], len(runs)), f"{loud} (the worst: {worst.name})"))
    return told + [(_names(names, len(runs)), note) for note, names in about.items()]


def _names(names: list[str], total: int) -> str:
    if len(names) == total and total > 1:
        return f"all {total}"
    return ", ".join(names) if len(names) <= _NAMED else f"{names[0]} and {len(names) - 1} more"
