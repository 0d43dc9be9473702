"""perftest's arithmetic on known times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fauxrdma.perf.figures import MIN_ITERATIONS, bandwidth_figures, latency_figures

MB = 1 << 20


def test_latency_of_an_even_beat() -> None:
    figures = latency_figures([i * 4000 for i in range(100)], halved=True)
    assert (figures.t_min_us, figures.t_typical_us, figures.t_avg_us, figures.t_max_us) == (2.0, 2.0, 2.0, 2.0)
    assert (figures.t_stdev_us, figures.p99_us, figures.p99_9_us) == (0.0, 2.0, 2.0)


def test_a_read_is_not_halved() -> None:
    assert latency_figures([i * 4000 for i in range(10)], halved=False).t_typical_us == 4.0


def test_the_two_largest_are_left_out_of_the_average_and_the_second_is_the_maximum() -> None:
    taken = [1000] * 97 + [3000, 50_000, 90_000]
    times = [0]
    for each in taken:
        times.append(times[-1] + each)
    figures = latency_figures(times, halved=False)
    assert figures.t_max_us == 50.0
    assert figures.t_avg_us == pytest.approx((97 * 1 + 3) / 98)
    assert figures.p99_us == 50.0  # index ceil(98 * 0.99) of 100
    assert figures.t_typical_us == 1.0


def test_too_few_iterations_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 5"):
        latency_figures([0, 1, 2], halved=True)


@given(st.lists(st.integers(0, 10**9), min_size=MIN_ITERATIONS, max_size=60), st.booleans())
def test_latency_figures_are_in_order(steps: list[int], halved: bool) -> None:
    times = [sum(steps[:i]) for i in range(len(steps))]
    figures = latency_figures(times, halved)
    assert figures.t_min_us <= figures.t_typical_us <= figures.t_max_us
    assert figures.t_min_us <= figures.t_avg_us * (1 + 1e-12)
    assert figures.p99_us <= figures.p99_9_us


def test_average_is_from_the_first_post_to_the_last_completion() -> None:
    figures = bandwidth_figures([0, 0, 500, 500], [(1, 1000), (2, 1000), (3, 2000), (4, 4000)], MB)
    assert figures.average_mb_per_s == pytest.approx(4 / 4000e-9)
    assert figures.message_rate_mpps == pytest.approx(4 / 4)  # 4 messages in 4 us


def test_peak_is_the_best_stretch() -> None:
    # Two in the first microsecond; the later ones are slower.
    figures = bandwidth_figures([0, 0, 500, 500], [(2, 1000), (4, 9000)], MB)
    assert figures.peak_mb_per_s == pytest.approx(2 / 1000e-9)


@given(st.data())
def test_peak_equals_that_of_all_pairs(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 20))
    posted = sorted(data.draw(st.lists(st.integers(0, 1000), min_size=count, max_size=count)))
    done = sorted(data.draw(st.lists(st.integers(1001, 3000), min_size=count, max_size=count)))
    completed = [(j + 1, time) for j, time in enumerate(done)]
    figures = bandwidth_figures(posted, completed, MB)
    pairs = [(j - i + 1) / (done[j] - posted[i]) for i in range(count) for j in range(i, count)]
    assert figures.peak_mb_per_s == pytest.approx(max(pairs) * 1e9)
    assert figures.average_mb_per_s <= figures.peak_mb_per_s * (1 + 1e-12)


def test_both_directions_add_up() -> None:
    one = bandwidth_figures([0], [(1, 1000)], MB)
    assert (one + one).average_mb_per_s == 2 * one.average_mb_per_s
