"""From times of posts and completions to perftest's figures.

The arithmetic is perftest's (perftest_parameters.c, print_report_lat and print_report_bw): latencies are differences of
consecutive posts, of which the two largest are left out; MB is 2^20 bytes. Its standard deviation is computed from
deviations cut to whole microseconds; ours is not.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["MIN_ITERATIONS", "BandwidthFigures", "LatencyFigures", "bandwidth_figures", "latency_figures"]

MIN_ITERATIONS = 5
"""perftest's least: what is left without the first post and the two largest differences must be something."""

_TAIL = 2
_MB = 1 << 20


@dataclass(frozen=True, slots=True)
class LatencyFigures:
    """Microseconds of fabric time."""

    t_min_us: float
    t_max_us: float
    t_typical_us: float
    t_avg_us: float
    t_stdev_us: float
    p99_us: float
    p99_9_us: float


@dataclass(frozen=True, slots=True)
class BandwidthFigures:
    """Rates in fabric time; MB_per_s is 2^20 bytes a second, as perftest's."""

    peak_mb_per_s: float
    average_mb_per_s: float
    message_rate_mpps: float

    def __add__(self, other: BandwidthFigures) -> BandwidthFigures:
        """Both directions together, as --bidirectional reports them."""
        return BandwidthFigures(
            self.peak_mb_per_s + other.peak_mb_per_s,
            self.average_mb_per_s + other.average_mb_per_s,
            self.message_rate_mpps + other.message_rate_mpps,
        )


def latency_figures(posted_ns: Sequence[int], halved: bool) -> LatencyFigures:
    """Of the times at which each iteration's request was posted. Raises ValueError below MIN_ITERATIONS."""
    if len(posted_ns) < MIN_ITERATIONS:
        raise ValueError(f"{len(posted_ns)} iterations are not enough for figures: at least {MIN_ITERATIONS}")
    to_us = 1e-3 / (2 if halved else 1)
    taken = sorted((later - earlier) * to_us for earlier, later in itertools.pairwise(posted_ns))
    counted = taken[:-_TAIL]
    count = len(counted)
    return LatencyFigures(
        counted[0],
        taken[count],
        statistics.median(counted),
        statistics.fmean(counted),
        statistics.pstdev(counted),
        taken[math.ceil(count * 0.99)],
        taken[math.ceil(count * 0.999)],
    )


def bandwidth_figures(
    posted_ns: Sequence[int] | npt.NDArray[np.int64], completed: Sequence[tuple[int, int]], size: int
) -> BandwidthFigures:
    """Of when each message was posted, in that order, and of `(messages, time)`: so many had completed by then.

    The average is from the first post to the last completion; the peak is the best stretch from a post to a later
    completion, `j - i + 1` messages after it.
    """
    posted = np.asarray(posted_ns, np.int64)
    counts = np.array([count for count, _ in completed], np.int64)
    times = np.array([time for _, time in completed], np.int64)
    messages_per_ns = len(posted) / max(1, int(times[-1] - posted[0]))
    best = 0.0
    for first, began in enumerate(posted):
        since = np.searchsorted(counts, first + 1)
        best = max(best, float(np.max((counts[since:] - first) / np.maximum(1, times[since:] - began))))
    mb_per_s = size * 1e9 / _MB
    return BandwidthFigures(best * mb_per_s, messages_per_ns * mb_per_s, messages_per_ns * 1e3)
