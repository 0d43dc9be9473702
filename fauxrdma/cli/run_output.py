"""What a single run prints: its table, its notes, its report, and the exit code by its thresholds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fauxrdma.cli.options import Format

if TYPE_CHECKING:
    from fauxrdma.report.results import RunResult
    from fauxrdma.topology.graph import Topology

__all__ = ["print_result"]


def print_result(
    result: RunResult, topology: Topology, output: Path | None, format_: Format, *, strict: bool = False
) -> None:
    """What `run` and `lab up --run` print of a job, and their exit code by its thresholds."""
    from rich.text import Text

    from fauxrdma.cli.output import console
    from fauxrdma.cli.threshold_exit import fail_unless_met
    from fauxrdma.report.files import compare_runs, write_report
    from fauxrdma.report.table import comparison_table

    comparison = compare_runs([result])
    paths = write_report(comparison, {result.name: topology}, output) if output is not None else None
    if format_ is Format.JSON:
        print(comparison.model_dump_json(indent=2))
        fail_unless_met([result], strict=strict)
        return
    out = console()
    out.print(comparison_table([result]))
    for note in result.notes:
        out.print(Text.assemble(("note ", "bold red"), note))
    if paths is not None:
        print(f"report: {paths[1]}   data: {paths[0]}")
    fail_unless_met([result], strict=strict)
