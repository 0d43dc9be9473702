"""What --threshold does to a command's exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from fauxrdma.report.results import RunResult

__all__ = ["fail_unless_met"]


def fail_unless_met(runs: Sequence[RunResult]) -> None:
    """Say on standard error what became of every threshold; exit with code 1 if one is not met."""
    failed = False
    for run in runs:
        for outcome in run.thresholds:
            state = "met" if outcome.met else "NOT MET"
            print(f"fauxrdma: {run.name}: threshold {state}: {outcome.text} ({outcome.why})", file=sys.stderr)
            failed = failed or not outcome.met
    if failed:
        raise typer.Exit(1)
