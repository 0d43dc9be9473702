"""nccl-tests' table, column by column, so that what reads theirs reads ours; the prediction stands to its right."""

from __future__ import annotations

from collections.abc import Iterable

from fauxrdma.perf.coll.results import BenchResult, Half, Row
from fauxrdma.perf.coll.sweep import AUTO_ITERATIONS, Sweep

__all__ = ["column_lines", "fixed_width", "footer_lines", "row_line", "setup_line"]

_LEFT = "{:>12}  {:>12}  {:>8}  {:>6}  {:>6}"
_HALF = "  {:>7}  {:>6}  {:>6}  {:>6}"
_PREDICTED = "  {:>18}  {:>9}  {:>6}"
_VERIFIED = "  {:>9}  {:>9}  {:>5}"


def setup_line(sweep: Sweep, gpus: int, step: str) -> str:
    """``# nThread 1 nGpus 2 minBytes 8 ...``; `step` is as ``2(factor)``."""
    iterations = sweep.iterations or f"<={AUTO_ITERATIONS}"
    return (
        f"# nThread 1 nGpus {gpus} minBytes {min(sweep.sizes)} maxBytes {max(sweep.sizes)} step: {step} "
        f"warmup iters: {sweep.warm_up} iters: {iterations} agg iters: 1 validation: {sweep.check} graph: 0"
    )


def column_lines(verify: bool) -> list[str]:
    """The three lines above the rows."""
    gap = " " * 54
    names, units = ("time", "algbw", "busbw", "#wrong"), ("(us)", "(GB/s)", "(GB/s)", "")
    left = _LEFT.replace("{:>12}", "# {:>10}", 1)
    tops = f"#{gap}         out-of-place                       in-place          "
    title = f"{tops:<123}{'predicted':>22}"
    first = left.format("size", "count", "type", "redop", "root") + 2 * _HALF.format(*names)
    first += _PREDICTED.format("algorithm", "time", "ratio")
    second = left.format("(B)", "(elements)", "", "", "") + 2 * _HALF.format(*units)
    second += _PREDICTED.format("", "(us)", "")
    if verify:
        title += f"{'against float64':>28}"
        first += _VERIFIED.format("error", "bound", "bits")
    return [title.rstrip(), first.rstrip(), second.rstrip()]


def row_line(row: Row, verify: bool) -> str:
    """One line."""
    line = _LEFT.format(row.size, row.count, row.type, row.redop, row.root)
    line += _half(row.out_of_place) + _half(row.in_place)
    predicted = "N/A" if row.predicted_us is None else fixed_width(row.predicted_us, 9)
    line += _PREDICTED.format(row.algorithm, predicted, "N/A" if row.ratio is None else f"{row.ratio:.2f}")
    if verify and row.verify is None:
        line += _VERIFIED.format("N/A", "N/A", "N/A")
    elif verify and row.verify is not None:
        found = row.verify
        same = found.same_again and found.same_everywhere is not False
        line += _VERIFIED.format(f"{found.error:.2e}", f"{found.bound:.2e}", "same" if same else "DIFFER")
    return line


def _half(half: Half) -> str:
    wrong = "N/A" if half.wrong is None else f"{half.wrong:g}"
    return _HALF.format(
        fixed_width(half.time_us, 7), fixed_width(half.algbw_gb_per_s, 6), fixed_width(half.busbw_gb_per_s, 6), wrong
    )


def fixed_width(value: float, width: int) -> str:
    """`value` with as many decimals, at most two, as `width` characters have room for."""
    for decimals in (2, 1, 0):
        text = f"{value:.{decimals}f}"
        if len(text) <= width:
            return text
    return f"{value:.1e}" if width >= 7 else f"{value:.0e}"


def footer_lines(result: BenchResult) -> Iterable[str]:
    """What stands below the rows."""
    verdict = "FAILED" if result.out_of_bounds else "OK"
    yield f"# {'Out of bounds values':<20} : {result.out_of_bounds} {verdict}"
    yield f"# {'Avg bus bandwidth':<20} : {result.average_busbw_gb_per_s:g} "
    yield from (f"# note: {note}" for note in result.notes)
    yield "#"
