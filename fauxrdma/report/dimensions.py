"""In what the runs of a comparison differ: fabric, transport, placement, algorithm, script."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence

from fauxrdma.report.results import RunResult

__all__ = ["DIMENSIONS", "is_product", "value_of", "varied"]

DIMENSIONS: dict[str, Callable[[RunResult], str]] = {
    "fabric": lambda run: run.fabric,
    "transport": lambda run: run.transport,
    "placement": lambda run: run.placement,
    "algorithm": lambda run: run.algorithm,
    "script": lambda run: shlex.join(run.command),
}


def value_of(run: RunResult, dimension: str) -> str:
    """The value that `run` has in one of `DIMENSIONS`."""
    return DIMENSIONS[dimension](run)


def varied(runs: Sequence[RunResult]) -> list[str]:
    """The dimensions in which not all runs are the same."""
    return [name for name, of in DIMENSIONS.items() if len({of(run) for run in runs}) > 1]


def is_product(runs: Sequence[RunResult]) -> bool:
    """Whether runs differ in more than their fabrics: then there is a row for each of them."""
    return len(runs) > len({run.fabric for run in runs})
