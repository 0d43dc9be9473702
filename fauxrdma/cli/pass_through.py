"""Passing the output of ranks through as it comes, as `run` and `lab up --run` do."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from fauxrdma.lab.launcher import RankLine
    from fauxrdma.report.results import RunResult

__all__ = ["PassThrough"]


class PassThrough:
    """A Progress that prints each rank's lines on the stream they were written to; `log_of` (rank, node) says in which
    file they are kept besides, if in any. A context manager, which closes those."""

    def __init__(
        self, prefix: bool, everything_to_stderr: bool, log_of: Callable[[int, int], Path] | None = None
    ) -> None:
        self._prefix = prefix
        self._to_stderr = everything_to_stderr
        self._log_of = log_of
        self._logs: dict[int, TextIO] = {}

    def __enter__(self) -> PassThrough:
        return self

    def __exit__(self, *_: object) -> None:
        for log in self._logs.values():
            log.close()

    def stage(self, fabric: str, what: str) -> None:
        """See Progress."""
        print(f"{fabric}: {what}", file=sys.stderr, flush=True)

    def line(self, line: RankLine) -> None:
        """See Progress."""
        if self._log_of is not None:
            if line.rank not in self._logs:
                self._logs[line.rank] = self._log_of(line.rank, line.node).open("w", buffering=1)
            self._logs[line.rank].write(line.text + "\n")
        stream = sys.stderr if self._to_stderr or line.stream == "stderr" else sys.stdout
        print(f"{line.prefix} {line.text}" if self._prefix else line.text, file=stream, flush=True)

    def notice(self, text: str) -> None:
        """See Progress."""
        print(f"fauxrdma: {text}", file=sys.stderr, flush=True)

    def tick(self) -> None:
        """See Progress."""

    def done(self, fabric: str, run: RunResult) -> None:
        """See Progress."""
