"""Writing a comparison to a directory: ``comparison.json`` and ``report.html``."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path

from fauxrdma import __version__
from fauxrdma.errors import ConfigError
from fauxrdma.report.html import render_html
from fauxrdma.report.results import Comparison, RunResult
from fauxrdma.report.verdict import differing_values, verdict
from fauxrdma.topology.graph import Topology

__all__ = ["check_writable", "compare_runs", "write_report"]


def compare_runs(runs: Sequence[RunResult]) -> Comparison:
    """The runs with their verdict, stamped with the present time unless all were in virtual time."""
    virtual = all(run.clock == "virtual" for run in runs)
    now = "" if virtual else datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return Comparison(
        fauxrdma_version=__version__,
        created=now,
        verdict=verdict(runs),
        differing_values=differing_values(runs),
        runs=list(runs),
    )


def check_writable(directory: Path) -> None:
    """Create `directory`; raises ConfigError, before anything has run, when reports could not be written there."""
    probe = directory / ".fauxrdma-write-test"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ConfigError(f"--output {directory}: cannot write there: {error.strerror}") from None


def write_report(comparison: Comparison, topologies: Mapping[str, Topology], directory: Path) -> tuple[Path, Path]:
    """Write both files and return their paths (JSON, HTML)."""
    directory.mkdir(parents=True, exist_ok=True)
    json_path, html_path = directory / "comparison.json", directory / "report.html"
    json_path.write_text(comparison.model_dump_json(indent=2) + "\n")
    html_path.write_text(render_html(comparison, topologies))
    return json_path, html_path
