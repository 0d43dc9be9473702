"""A comparison in more than fabrics: a row for each combination."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from fauxrdma.report.building import DEBT_LIMIT_PERCENT
from fauxrdma.report.dimensions import value_of, varied
from fauxrdma.report.results import Collective, RunResult
from fauxrdma.units import format_bytes, format_ns

__all__ = ["Column", "product_columns", "product_table"]

_MISSING = "-"


@dataclass(frozen=True, slots=True)
class Column:
    """One metric over all combinations, a cell for each. `best` are the rows that win among those of the same script,
    `warn` those whose value must not be overlooked; `text` columns hold words."""

    name: str
    cells: list[str]
    best: frozenset[int] = frozenset()
    warn: frozenset[int] = frozenset()
    text: bool = False


def product_columns(runs: Sequence[RunResult]) -> list[Column]:
    """What the runs differ in, then the metrics that any of them has."""
    words = [Column(name, [value_of(run, name) or _MISSING for run in runs], text=True) for name in varied(runs)]
    clock = "fabric" if all(run.clock != "none" for run in runs) else "wall"

    def of_main(pick: Callable[[Collective], float | None]) -> Callable[[RunResult], float | None]:
        return lambda run: None if run.main_all_reduce is None else pick(run.main_all_reduce)

    doubtful = frozenset(
        row for row, run in enumerate(runs) if run.debt is not None and run.debt.p99_percent > DEBT_LIMIT_PERCENT
    )
    metrics = [
        _metric("time per step", runs, lambda run: run.timing.step_ns, format_ns),
        _metric("all-reduce", runs, of_main(lambda main: main.nbytes), lambda n: format_bytes(int(n)), prefer=None),
        _metric(f"{clock} time, p50", runs, of_main(lambda main: main.duration.p50_ns), format_ns),
        _metric("modelled", runs, lambda run: run.modelled_all_reduce_ns, format_ns),
        _metric("bus bandwidth", runs, of_main(lambda main: main.bus_bandwidth_gb_per_s), _bandwidth, prefer=max),
        _metric("over spines", runs, lambda run: run.spine_bytes, lambda n: format_bytes(int(n))),
        _metric("switches", runs, lambda run: run.route.switches_mean if run.route else None, lambda n: f"{n:.2f}"),
        Column(
            "debt p99",
            [_MISSING if run.debt is None else f"{run.debt.p99_percent:.1f} %" for run in runs],
            warn=doubtful,
        ),
        Column("job, wall", ["-" if run.wall_s is None else f"{run.wall_s:.1f} s" for run in runs]),
    ]
    return [*words, *(column for column in metrics if any(cell != _MISSING for cell in column.cells))]


def product_table(runs: Sequence[RunResult]) -> Table:
    """The columns as a rich table; the best value of a column is green, doubtful ones are red."""
    columns = product_columns(runs)
    table = Table(header_style="bold")
    for column in columns:
        words = column.text and column.name != "script"
        table.add_column(column.name, justify="left" if column.text else "right", no_wrap=words, overflow="fold")
    for row in range(len(runs)):
        table.add_row(*(_cell(column, row) for column in columns))
    return table


def _cell(column: Column, row: int) -> Text:
    style = "bold red" if row in column.warn else "green" if row in column.best else ""
    return Text(column.cells[row], style=style)


def _bandwidth(gb_per_s: float) -> str:
    return f"{gb_per_s:.3g} GB/s"


def _metric(
    name: str,
    runs: Sequence[RunResult],
    value: Callable[[RunResult], float | None],
    show: Callable[[float], str],
    prefer: Callable[[Sequence[float]], float] | None = min,
) -> Column:
    values = [value(run) for run in runs]
    cells = [_MISSING if found is None else show(found) for found in values]
    best: set[int] = set()
    for script in {value_of(run, "script") for run in runs} if prefer is not None else ():
        rows = [row for row, run in enumerate(runs) if value_of(run, "script") == script]
        known = [found for row in rows if (found := values[row]) is not None]
        if known and prefer is not None and len({cells[row] for row in rows}) > 1:
            winner = show(prefer(known))
            best.update(row for row in rows if cells[row] == winner)
    return Column(name, cells, best=frozenset(best))
