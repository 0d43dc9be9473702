"""The comparison as rows of text, and as a rich table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rich.table import Table
from rich.text import Text

from fauxrdma.report.building import DEBT_LIMIT_PERCENT
from fauxrdma.report.results import Collective, RunResult
from fauxrdma.units import format_bytes, format_ns

__all__ = ["Row", "comparison_rows", "comparison_table"]

_MISSING = "-"
_BUSIEST = 3
_LONG_VALUE = 16


@dataclass(frozen=True, slots=True)
class Row:
    """One metric over all runs. `best` are the columns that win (empty where winning means nothing or all are equal);
    `warn` those whose value must not be overlooked; `section` starts a new group of rows."""

    name: str
    cells: list[str]
    best: frozenset[int] = frozenset()
    warn: frozenset[int] = frozenset()
    section: bool = False


def comparison_rows(runs: Sequence[RunResult]) -> list[Row]:
    """The rows that hold anything, for one run or many."""
    clock = "fabric" if all(run.clock != "none" for run in runs) else "wall"
    groups = [_result_rows(runs), _time_rows(runs, clock), _fabric_rows(runs), _trust_rows(runs)]
    known = [[row for row in group if any(cell != _MISSING for cell in row.cells)] for group in groups]
    return [replace(row, section=place == 0) for group in known for place, row in enumerate(group)]


def comparison_table(runs: Sequence[RunResult], title: str | None = None) -> Table:
    """The rows as a rich table, a column per run; the best value of a row is green, doubtful ones are red."""
    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("")
    for run in runs:
        table.add_column(run.name, justify="right", overflow="fold")
    rows = comparison_rows(runs)
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        cells = [
            Text(cell, style="bold red" if i in row.warn else "green" if i in row.best else "")
            for i, cell in enumerate(row.cells)
        ]
        table.add_row(Text(row.name), *cells, end_section=following is not None and following.section)
    return table


def _result_rows(runs: Sequence[RunResult]) -> list[Row]:
    names = list(dict.fromkeys(name for run in runs for name in run.values))
    return [Row(f"result: {name}", [_shorten(run.values.get(name)) for run in runs]) for name in names]


def _shorten(value: str | None) -> str:
    if value is None:
        return _MISSING
    return value if len(value) <= _LONG_VALUE else value[: _LONG_VALUE - 4] + "..."


def _metric(
    name: str,
    runs: Sequence[RunResult],
    value: Callable[[RunResult], float | None],
    show: Callable[[float], str],
    prefer: Callable[[Sequence[float]], float] = min,
) -> Row:
    values = [value(run) for run in runs]
    cells = [_MISSING if v is None else show(v) for v in values]
    known = [v for v in values if v is not None]
    best: frozenset[int] = frozenset()
    if len(runs) > 1 and len(set(cells)) > 1 and known:
        winner = show(prefer(known))
        best = frozenset(i for i, cell in enumerate(cells) if cell == winner)
    return Row(name, cells, best=best)


def _time_rows(runs: Sequence[RunResult], clock: str) -> list[Row]:
    def of_main(pick: Callable[[Collective], float | None]) -> Callable[[RunResult], float | None]:
        return lambda run: None if run.main_all_reduce is None else pick(run.main_all_reduce)

    sizes = {run.main_all_reduce.nbytes for run in runs if run.main_all_reduce is not None}
    what = f"all-reduce of {format_bytes(sizes.pop())}" if len(sizes) == 1 else "all-reduce"
    calls = [_MISSING if run.main_all_reduce is None else str(run.main_all_reduce.duration.count) for run in runs]
    return [
        _metric(f"{clock} time per step", runs, lambda run: run.timing.step_ns, format_ns),
        _metric("  of it communication", runs, lambda run: run.timing.communication_ns, format_ns),
        Row(f"{what}: calls", calls),
        _metric("  modelled, host aside", runs, lambda run: run.modelled_all_reduce_ns, format_ns),
        _metric(f"  {clock} time, mean", runs, of_main(lambda main: main.duration.mean_ns), format_ns),
        _metric(f"  {clock} time, p50", runs, of_main(lambda main: main.duration.p50_ns), format_ns),
        _metric(f"  {clock} time, p99", runs, of_main(lambda main: main.duration.p99_ns), format_ns),
        _metric(
            "  bus bandwidth",
            runs,
            of_main(lambda main: main.bus_bandwidth_gb_per_s),
            lambda gb_per_s: f"{gb_per_s:.3g} GB/s",
            prefer=max,
        ),
    ]


def _fabric_rows(runs: Sequence[RunResult]) -> list[Row]:
    rows = [
        Row(
            "switches crossed, mean / most",
            [f"{run.route.switches_mean:.2f} / {run.route.switches_max}" if run.route else _MISSING for run in runs],
        ),
        _metric("path latency, mean", runs, lambda run: run.route.latency_mean_ns if run.route else None, format_ns),
    ]
    for place in range(_BUSIEST):
        cells = [_link_cell(run, place) for run in runs]
        if any(cell != _MISSING for cell in cells):
            rows.append(Row("busiest links" if place == 0 else "", cells))
    return rows


def _link_cell(run: RunResult, place: int) -> str:
    if place >= len(run.links):
        return _MISSING
    link = run.links[place]
    load = f"{link.utilisation:.0%}, " if run.clock != "none" else ""
    return f"{link.name} {load}{format_bytes(link.nbytes)}"


def _trust_rows(runs: Sequence[RunResult]) -> list[Row]:
    debts = [
        _MISSING if run.debt is None else f"{run.debt.p50_percent:.1f} % / {run.debt.p99_percent:.1f} %" for run in runs
    ]
    doubtful = frozenset(
        i for i, run in enumerate(runs) if run.debt is not None and run.debt.p99_percent > DEBT_LIMIT_PERCENT
    )
    return [
        Row("fidelity debt, p50 / p99", debts, warn=doubtful),
        Row("wall ns per fabric ns (k)", [f"{run.dilation:g}" if run.clock == "paced" else _MISSING for run in runs]),
        Row("wall time of the job", [_MISSING if run.wall_s is None else f"{run.wall_s:.1f} s" for run in runs]),
    ]
