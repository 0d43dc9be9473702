"""Weighted max-min rates against an exact brute-force reference and against the definition."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fauxrdma.fabric.maxmin import max_min_rates

Case = tuple[list[int], list[tuple[int, ...]], list[float]]


def vectorised(capacity: list[int], paths: list[tuple[int, ...]], weights: list[float]) -> list[float]:
    width = max((len(path) for path in paths), default=1)
    links = np.full((len(paths), width), len(capacity), dtype=np.intp)
    for row, path in enumerate(paths):
        links[row, : len(path)] = path
    rates = max_min_rates(np.array(capacity, dtype=float), links, np.array(weights, dtype=float))
    return [float(rate) for rate in rates]


def brute_force(capacity: list[int], paths: list[tuple[int, ...]], weights: list[float]) -> list[Fraction]:
    """Progressive filling in exact arithmetic: raise all levels together; freeze what meets the first full link."""
    rate: dict[int, Fraction] = {}
    while len(rate) < len(paths):
        best: tuple[Fraction, int] | None = None
        for link, total in enumerate(capacity):
            active = [f for f, path in enumerate(paths) if link in path and f not in rate]
            if active:
                used = sum((rate[f] for f, path in enumerate(paths) if link in path and f in rate), Fraction(0))
                level = (total - used) / sum(Fraction(weights[f]) for f in active)
                if best is None or level < best[0]:
                    best = (level, link)
        assert best is not None
        for f, path in enumerate(paths):
            if f not in rate and best[1] in path:
                rate[f] = Fraction(weights[f]) * best[0]
    return [rate[f] for f in range(len(paths))]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    count = draw(st.integers(1, 8))
    capacity = draw(st.lists(st.integers(1, 10**12), min_size=count, max_size=count))
    paths = draw(
        st.lists(st.lists(st.integers(0, count - 1), min_size=1, unique=True).map(tuple), min_size=1, max_size=12)
    )
    weight = st.sampled_from([0.001, 0.1, 0.5, 1.0, 1.0, 1.0, 2.0, 3.0, 1000.0])
    return capacity, paths, draw(st.lists(weight, min_size=len(paths), max_size=len(paths)))


@given(cases())
@settings(max_examples=500, deadline=None)
def test_equals_exact_progressive_filling(case: Case) -> None:
    capacity = case[0]
    for got, exact in zip(vectorised(*case), brute_force(*case), strict=True):
        # Relative to the flow where that is meaningful, else to the largest link: float64 subtracts on those.
        assert abs(got - exact) <= Fraction(1, 10**9) * max(exact, max(capacity) * Fraction(1, 10**6))


@given(cases())
@settings(max_examples=200, deadline=None)
def test_is_feasible_and_every_flow_has_a_bottleneck_where_nobody_has_more(case: Case) -> None:
    capacity, paths, weights = case
    rates = vectorised(*case)
    load = [sum(rate for rate, path in zip(rates, paths, strict=True) if link in path) for link in range(len(capacity))]
    slack = 1e-9 * max(capacity)
    assert all(used <= total + slack for used, total in zip(load, capacity, strict=True))
    for flow, path in enumerate(paths):
        mine = rates[flow] / weights[flow]
        assert any(
            load[link] >= capacity[link] - slack
            and all(
                rates[other] / weights[other] <= mine + slack / weights[other]
                for other, theirs in enumerate(paths)
                if link in theirs
            )
            for link in path
        )


@given(cases(), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_the_order_of_flows_and_the_unit_do_not_matter(case: Case, random: object) -> None:
    capacity, paths, weights = case
    rates = vectorised(*case)
    order = list(range(len(paths)))
    random.shuffle(order)  # type: ignore[attr-defined]
    shuffled = vectorised(capacity, [paths[f] for f in order], [weights[f] for f in order])
    assert shuffled == pytest.approx([rates[f] for f in order], rel=1e-9, abs=1e-9 * max(capacity))
    doubled = vectorised([2 * c for c in capacity], paths, weights)
    assert doubled == [2 * rate for rate in rates]  # a power of two is exact


def test_known_cases() -> None:
    assert vectorised([100], [(0,), (0,)], [1, 3]) == [25, 75]
    # A long flow over two links, a short one on each: the long one is held by the narrower link.
    assert vectorised([10, 100], [(0, 1), (0,), (1,)], [1, 1, 1]) == [5, 5, 95]
    assert vectorised([10, 20, 30], [(0,), (1,), (2,)], [1, 1, 1]) == [10, 20, 30]
    assert vectorised([7], [], []) == []


def test_a_thousand_flows_agree_with_the_definition_and_are_fast_enough() -> None:
    rng = np.random.default_rng(3)
    capacity = np.full(512, 200e9)
    links = rng.permuted(np.tile(np.arange(512), (1024, 1)), axis=1)[:, :8]
    rates = max_min_rates(capacity, links, np.ones(1024))
    load = np.bincount(links.ravel(), np.repeat(rates, 8), minlength=512)
    assert (load <= capacity * (1 + 1e-9)).all()
    saturated = load >= capacity * (1 - 1e-9)
    top = np.zeros(512)
    np.maximum.at(top, links, rates[:, None])
    assert ((saturated[links]) & (rates[:, None] >= top[links] * (1 - 1e-9))).any(axis=1).all()


def test_a_flow_that_is_split_takes_of_each_link_what_crosses_it() -> None:
    """Links 0 and 1 of 60 are halves of flow 0's way; flow 1 has link 0 to itself otherwise, flow 2 link 1 and 2 of 20.

    Level x of flow 0 is 2 x 1/2: link 0 gives x/2 + x1 = 60. Alone with flow 1 both get 40; flow 2 is held at 20 by
    link 2, so link 1 does not limit.
    """
    links = np.array([[0, 1], [0, 3], [1, 2]], dtype=np.intp)
    shares = np.array([[0.5, 0.5], [1.0, 1.0], [1.0, 1.0]])
    rates = max_min_rates(np.array([60.0, 60.0, 20.0]), links, np.ones(3), shares)
    assert rates.tolist() == [40.0, 40.0, 20.0]


def test_a_flow_split_evenly_over_equal_links_gets_them_all() -> None:
    links = np.array([[0, 1, 2]], dtype=np.intp)
    assert max_min_rates(np.full(3, 10.0), links, np.ones(1), np.full((1, 3), 1 / 3)).tolist() == [30.0]
