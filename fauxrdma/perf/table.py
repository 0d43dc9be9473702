"""The lines that perftest prints, column for column (perftest_parameters.h: RESULT_FMT, REPORT_FMT and those with _G
and _LAT), so that what reads its output reads this, too."""

from __future__ import annotations

from fauxrdma.perf.figures import BandwidthFigures
from fauxrdma.perf.measuring import Row

__all__ = ["RULE", "heading", "line"]

RULE = "-" * 87

_BANDWIDTH = " #bytes     #iterations    BW peak[{unit}/sec]    BW average[{unit}/sec]   MsgRate[Mpps]"
_LATENCY = (
    " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]"
    "   99% percentile[usec]   99.9% percentile[usec] "
)
_GBIT_OF_MB = (1 << 20) * 8 / 1e9


def heading(is_latency: bool, gbits: bool) -> str:
    """The line above the figures. `gbits`: bandwidth in 10^9 bits a second, else in 2^20 bytes (--report_gbits)."""
    return _LATENCY if is_latency else _BANDWIDTH.format(unit="Gb" if gbits else "MB")


def line(row: Row, gbits: bool) -> str:
    """One size's figures."""
    f = row.figures
    if isinstance(f, BandwidthFigures):
        scale = _GBIT_OF_MB if gbits else 1
        peak, average = f.peak_mb_per_s * scale, f.average_mb_per_s * scale
        return (
            f" {row.size:<7d}    {row.iterations:<10d}       {peak:<7.2f}            {average:<7.2f}\t\t"
            f"   {f.message_rate_mpps:<7.6f}"
        )
    return (
        f" {row.size:<7d} {row.iterations:d}          {f.t_min_us:<7.2f}        {f.t_max_us:<7.2f}      "
        f"{f.t_typical_us:<7.2f}  \t       {f.t_avg_us:<7.2f}     \t{f.t_stdev_us:<7.2f}\t\t{f.p99_us:<7.2f} \t\t"
        f"{f.p99_9_us:<7.2f}"
    )
