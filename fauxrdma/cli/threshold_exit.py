"""What --threshold and --strict do to a command's exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from fauxrdma.report.results import RunResult

__all__ = ["fail_unless_met"]


def fail_unless_met(runs: Sequence[RunResult], *, strict: bool = False) -> None:
    """Say on standard error what became of every threshold; exit with code 1 if one is not met or, if `strict`, if the
    host was too slow for a run to be trusted."""
    from fauxrdma.report.building import DEBT_LIMIT_PERCENT

    failed = False
    for run in runs:
        if strict and run.debt is not None and run.debt.p99_percent > DEBT_LIMIT_PERCENT:
            failed = True
            print(
                f"fauxrdma: {run.name}: --strict: the fidelity debt is {run.debt.p99_percent:.1f} % at p99, over "
                f"{DEBT_LIMIT_PERCENT:g} %: raise --dilation above {run.dilation:g}, or use --clock virtual",
                file=sys.stderr,
            )
        for outcome in run.thresholds:
            state = "met" if outcome.met else "NOT MET"
            print(f"fauxrdma: {run.name}: threshold {state}: {outcome.text} ({outcome.why})", file=sys.stderr)
            failed = failed or not outcome.met
    if failed:
        raise typer.Exit(1)
