"""What a person sees while fabrics start and jobs run: a live display on a terminal, plain lines elsewhere.

All of it goes to standard error, so that standard output is only the result. Nothing here starts a thread: the display
is redrawn from the launcher's own loop.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from fauxrdma.cli.output import console
from fauxrdma.lab.launcher import RankLine
from fauxrdma.report.results import RunResult

__all__ = ["LiveProgress", "PlainProgress", "Progress", "make_progress"]

_REDRAW_S = 0.12


class Progress(Protocol):
    """Told what happens; shows what it thinks fit. A context manager around all runs."""

    def __enter__(self) -> Progress: ...

    def __exit__(self, *_: object) -> None: ...

    def stage(self, fabric: str, what: str) -> None:
        """The run on `fabric` has come to a new stage."""

    def line(self, line: RankLine) -> None:
        """A rank printed a line."""

    def notice(self, text: str) -> None:
        """The launcher has something to say at once."""

    def tick(self) -> None:
        """Some time has passed."""

    def done(self, fabric: str, run: RunResult) -> None:
        """The run on `fabric` ended well."""


def make_progress(fabrics: Sequence[str], verbose: bool) -> Progress:
    """Live when standard error is a terminal, plain otherwise. `verbose` prints every line of every rank."""
    if sys.stderr.isatty():
        return LiveProgress(fabrics, verbose, console(stderr=True))
    return PlainProgress(verbose)


def _summary(run: RunResult) -> str:
    values = " ".join(
        f"{name}={value if len(value) <= 16 else value[:12] + '...'}" for name, value in run.values.items()
    )
    took = "" if run.wall_s is None else f" in {run.wall_s:.1f} s of wall time"
    return f"done{took}" + (f": {values}" if values else "")


class PlainProgress:
    """One line per stage; for logs, pipes and CI."""

    def __init__(self, verbose: bool) -> None:
        self._verbose = verbose

    def __enter__(self) -> PlainProgress:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def _print(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def stage(self, fabric: str, what: str) -> None:
        """See Progress."""
        self._print(f"{fabric}: {what}")

    def line(self, line: RankLine) -> None:
        """See Progress."""
        if self._verbose:
            self._print(f"{line.prefix} {line.text}")

    def notice(self, text: str) -> None:
        """See Progress."""
        self._print(f"fauxrdma: {text}")

    def tick(self) -> None:
        """See Progress."""

    def done(self, fabric: str, run: RunResult) -> None:
        """See Progress."""
        self._print(f"{fabric}: {_summary(run)}")


class _Task:
    """The display's memory of one fabric."""

    def __init__(self, fabric: str) -> None:
        self.fabric = fabric
        self.what = "waiting"
        self.last_line = ""
        self.started: float | None = None
        self.ended: float | None = None
        self.spinner = Spinner("dots")

    def elapsed(self) -> str:
        """Seconds since the fabric's first stage."""
        if self.started is None:
            return ""
        return f"{(self.ended or time.monotonic()) - self.started:.1f} s"


class LiveProgress:
    """One row per fabric with its stage, the job's last line and the wall time, redrawn in place."""

    def __init__(self, fabrics: Sequence[str], verbose: bool, target: Console) -> None:
        self._tasks = {fabric: _Task(fabric) for fabric in fabrics}
        self._current: _Task | None = None
        self._verbose = verbose
        self._console = target
        self._live = Live(console=target, auto_refresh=False, transient=False)
        self._drawn = 0.0

    def __enter__(self) -> LiveProgress:
        self._live.start()
        return self

    def __exit__(self, kind: object = None, *_: object) -> None:
        self._draw(failed=kind is not None)
        self._live.stop()

    def _draw(self, failed: bool = False) -> None:
        grid = Table.grid(padding=(0, 1))
        grid.add_column(width=1)
        grid.add_column(no_wrap=True)
        grid.add_column(ratio=1, overflow="ellipsis", no_wrap=True)
        grid.add_column(justify="right", no_wrap=True)
        grid.expand = True
        for task in self._tasks.values():
            running = task.started is not None and task.ended is None
            mark: Spinner | Text = Text("✓", style="green") if task.ended is not None else Text("·", style="dim")
            if running:
                mark = Text("✗", style="red") if failed else task.spinner
            style = "" if task.started is not None else "dim"
            grid.add_row(mark, Text(task.fabric, style="bold"), Text(task.what, style=style), Text(task.elapsed()))
            if running and task.last_line:
                grid.add_row("", "", Text(task.last_line, style="dim"), "")
        self._live.update(grid, refresh=True)
        self._drawn = time.monotonic()

    def stage(self, fabric: str, what: str) -> None:
        """See Progress."""
        task = self._tasks[fabric]
        task.started = task.started or time.monotonic()
        task.what = what
        self._current = task
        self._draw()

    def line(self, line: RankLine) -> None:
        """See Progress."""
        if self._verbose:
            self._console.print(Text(f"{line.prefix} {line.text}"))
        elif self._current is not None and line.text.strip():
            self._current.last_line = f"{line.prefix} {line.text.strip()}"
        self.tick()

    def notice(self, text: str) -> None:
        """See Progress."""
        self._console.print(Text(f"fauxrdma: {text}", style="yellow"))

    def tick(self) -> None:
        """See Progress."""
        if time.monotonic() - self._drawn > _REDRAW_S:
            self._draw()

    def done(self, fabric: str, run: RunResult) -> None:
        """See Progress."""
        task = self._tasks[fabric]
        task.what = _summary(run)
        task.ended = time.monotonic()
        self._draw()
