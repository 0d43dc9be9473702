"""Column for column what perftest prints: the lines below were printed by perftest's ib_send_lat and ib_write_bw."""

from __future__ import annotations

from fauxrdma.perf.figures import BandwidthFigures, LatencyFigures
from fauxrdma.perf.measuring import Row
from fauxrdma.perf.table import heading, line

LATENCY_HEADING = (
    " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]"
    "   99% percentile[usec]   99.9% percentile[usec] "
)
LATENCY_LINE = (
    " 2       1000          14.11          1210.34      15.78    \t       22.98       \t90.04  \t\t22.37   \t\t1210.34"
)
BANDWIDTH_HEADING = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]"
BANDWIDTH_LINE = " 65536      5000             23317.65            9582.67\t\t   0.153323"


def test_latency() -> None:
    figures = LatencyFigures(14.11, 1210.34, 15.78, 22.98, 90.04, 22.37, 1210.34)
    assert heading(is_latency=True, gbits=False) == LATENCY_HEADING
    assert line(Row(2, 1000, figures, 0.1), gbits=False) == LATENCY_LINE


def test_bandwidth() -> None:
    row = Row(65536, 5000, BandwidthFigures(23317.65, 9582.67, 0.153323), 0.1)
    assert heading(is_latency=False, gbits=False) == BANDWIDTH_HEADING
    assert line(row, gbits=False) == BANDWIDTH_LINE


def test_gigabits_are_10_to_the_9() -> None:
    row = Row(65536, 5000, BandwidthFigures(23841.86, 23841.86, 0.38), 0.1)
    assert "Gb/sec" in heading(is_latency=False, gbits=True)
    assert line(row, gbits=True).split()[2] == "200.00"
