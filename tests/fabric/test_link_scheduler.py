"""LinkScheduler: exact fluid service, rate changes, order, idleness; invariants with Hypothesis."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fauxrdma.errors import LocalProtocolError
from fauxrdma.fabric.link_scheduler import Departure, LinkScheduler

GBPS = 10**9


def drain(scheduler: LinkScheduler, limit: int = 100_000) -> list[Departure]:
    """Poll at every instant the scheduler names until nothing is left."""
    out: list[Departure] = []
    for _ in range(limit):
        when = scheduler.next_ns()
        if when is None:
            return out
        out += scheduler.poll(when)
        scheduler.idle_flows(when)
    raise AssertionError("the scheduler never finishes")


def test_one_burst_departs_after_its_serialisation_and_arrives_after_the_latency() -> None:
    scheduler = LinkScheduler()
    scheduler.open(1, 8 * GBPS, 1500)  # 1 byte per ns
    scheduler.submit(1, "a", 4096, now=100)
    assert scheduler.next_ns() == 100 + 4096  # falls idle
    assert scheduler.poll(4196) == []
    assert scheduler.idle_flows(4196) == [1]
    assert scheduler.next_ns() == 5696
    assert scheduler.poll(5695) == []
    assert scheduler.poll(5696) == [Departure(1, "a", 4096, 4196, 5696, 100)]
    assert scheduler.next_ns() is None


def test_bursts_follow_each_other_without_gap_when_polled_late() -> None:
    scheduler = LinkScheduler()
    scheduler.open(1, 8 * GBPS, 10)
    for n in range(5):
        scheduler.submit(1, n, 1000, now=0)
    assert scheduler.backlog(1) == 5000
    out = scheduler.poll(10**9)
    assert [d.departed_ns for d in out] == [1000, 2000, 3000, 4000, 5000]
    assert [d.release_ns for d in out] == [1010, 2010, 3010, 4010, 5010]
    assert scheduler.backlog(1) == 0


@pytest.mark.parametrize("rate", [1, 3, 7, 198_740_000_001, 25 * GBPS, 997 * GBPS])
@pytest.mark.parametrize("nbytes", [1, 37, 4096])
def test_ten_thousand_bursts_end_within_a_nanosecond_of_the_fluid_time(rate: int, nbytes: int) -> None:
    scheduler = LinkScheduler()
    scheduler.open(1, rate, 0)
    count = 10_000
    for n in range(count):
        scheduler.submit(1, n, nbytes, now=5)
    out = scheduler.poll(10**30)
    assert [d.item for d in out] == list(range(count))
    for n, departure in enumerate(out, start=1):
        fluid = 5 + Fraction(n * nbytes * 8 * 10**9, rate)
        # The first whole ns after the fluid time; the first burst's successors were waiting, so nothing is lost.
        assert 0 <= departure.departed_ns - fluid < 1


def test_an_idle_gap_is_not_credited_to_the_next_burst_even_if_nobody_polled() -> None:
    scheduler = LinkScheduler()
    scheduler.open(1, 8 * GBPS, 0)
    scheduler.submit(1, "a", 100, now=0)
    scheduler.submit(1, "b", 100, now=5000)  # "a" left at 100, nobody asked
    assert [d.departed_ns for d in scheduler.poll(6000)] == [100, 5100]


def test_a_grant_applies_to_the_burst_in_service_from_now_on() -> None:
    scheduler = LinkScheduler()
    scheduler.open(1, 8 * GBPS, 0)
    scheduler.submit(1, "a", 1000, now=0)
    scheduler.set_rate(1, 4 * GBPS, now=400)  # 600 bytes left at half the rate: 1200 ns more
    scheduler.set_rate(1, 16 * GBPS, now=1000)  # 300 bytes left at twice the rate: 150 ns more
    assert scheduler.next_ns() == 1150
    assert scheduler.poll(1149) == []
    assert [d.departed_ns for d in scheduler.poll(1150)] == [1150]


def test_a_grant_does_not_touch_what_departed_before_it() -> None:
    scheduler = LinkScheduler()
    scheduler.open(1, 8 * GBPS, 0)
    scheduler.submit(1, "a", 100, now=0)
    scheduler.submit(1, "b", 100, now=0)
    scheduler.set_rate(1, 1 * GBPS, now=150)  # half of "b" is out; the other 50 bytes take 400 ns
    assert [d.departed_ns for d in scheduler.poll(10_000)] == [100, 550]


def test_rate_zero_pauses_and_a_later_grant_resumes() -> None:
    scheduler = LinkScheduler()
    scheduler.open(1, 8 * GBPS, 7)
    scheduler.submit(1, "a", 100, now=0)
    scheduler.set_rate(1, 0, now=40)
    assert scheduler.next_ns() is None
    assert scheduler.poll(10**6) == []
    assert scheduler.backlog(1) == 100
    scheduler.set_rate(1, 8 * GBPS, now=10**6)
    assert [d.departed_ns for d in scheduler.poll(2 * 10**6)] == [10**6 + 60]


def test_acknowledgements_do_not_wait_behind_data() -> None:
    scheduler = LinkScheduler()
    scheduler.open(1, 8 * GBPS, 50)
    scheduler.submit(1, "data", 10_000, now=0)
    scheduler.submit(1, "ack", 0, now=10)
    assert scheduler.poll(60) == [Departure(1, "ack", 0, 10, 60, 10)]
    assert [d.item for d in scheduler.poll(20_000)] == ["data"]


def test_an_ordered_empty_item_departs_with_the_data_before_it() -> None:
    scheduler = LinkScheduler()
    scheduler.open(1, 8 * GBPS, 50)
    scheduler.submit(1, "data", 10_000, now=0)
    scheduler.submit(1, "notify", 0, now=10, ordered=True)
    scheduler.submit(1, "more", 1000, now=10)
    out = scheduler.poll(100_000)
    assert [(d.item, d.departed_ns) for d in out] == [("data", 10_000), ("notify", 10_000), ("more", 11_000)]
    scheduler.submit(1, "alone", 0, now=200_000, ordered=True)
    assert [d.release_ns for d in scheduler.poll(200_050)] == [200_050]


def test_flows_do_not_disturb_each_other_and_ties_come_in_submit_order() -> None:
    scheduler = LinkScheduler()
    for flow in (3, 1, 2):
        scheduler.open(flow, 8 * GBPS, 0)
    for flow in (2, 3, 1):
        scheduler.submit(flow, f"f{flow}", 100, now=0)
    assert [(d.item, d.release_ns) for d in scheduler.poll(100)] == [("f2", 100), ("f3", 100), ("f1", 100)]


def test_idle_is_told_once_and_not_for_a_flow_that_has_data_again() -> None:
    scheduler = LinkScheduler()
    scheduler.open(1, 8 * GBPS, 1000)
    scheduler.open(2, 8 * GBPS, 1000)
    scheduler.submit(1, "a", 100, now=0)
    scheduler.submit(2, "b", 50, now=0)
    assert scheduler.idle_flows(49) == []
    assert scheduler.idle_flows(100) == [2, 1]  # in the order they fell idle, before anything arrived
    assert scheduler.idle_flows(100) == []
    scheduler.submit(1, "c", 100, now=200)
    scheduler.set_rate(1, 4 * GBPS, now=500)  # notices that "c" left at 300
    assert scheduler.next_ns() == 300  # overdue: idle_flows has not been asked
    scheduler.submit(1, "d", 100, now=600)
    assert scheduler.idle_flows(600) == []
    scheduler.submit(2, "ack", 0, now=600)
    assert scheduler.idle_flows(10_000) == [1]  # an ack makes no flow busy, hence never idle


def test_open_is_idempotent_and_keeps_the_grant_in_force() -> None:
    scheduler = LinkScheduler()
    scheduler.open(1, 8 * GBPS, 5)
    scheduler.set_rate(1, 4 * GBPS, now=0)
    scheduler.open(1, 8 * GBPS, 5)
    scheduler.submit(1, "a", 100, now=0)
    assert [d.departed_ns for d in drain(scheduler)] == [200]


def test_close_drops_the_queue_but_what_departed_still_arrives() -> None:
    scheduler = LinkScheduler()
    scheduler.open(1, 8 * GBPS, 1000)
    scheduler.submit(1, "a", 100, now=0)
    scheduler.submit(1, "b", 100, now=0)
    assert scheduler.poll(150) == []
    scheduler.close(1)
    scheduler.set_rate(1, GBPS, now=160)  # a grant that crossed the close: ignored
    assert [d.item for d in drain(scheduler)] == ["a"]
    assert scheduler.backlog(1) == 0


def test_misuse_is_refused_by_name() -> None:
    scheduler = LinkScheduler()
    with pytest.raises(LocalProtocolError, match="flow 9 is not open"):
        scheduler.submit(9, "a", 1, now=0)
    scheduler.open(1, GBPS, 0)
    with pytest.raises(LocalProtocolError, match="-5 bytes"):
        scheduler.submit(1, "a", -5, now=0)
    with pytest.raises(LocalProtocolError, match="negative"):
        scheduler.set_rate(1, -1, now=0)


def test_time_does_not_go_back() -> None:
    scheduler = LinkScheduler()
    scheduler.open(1, 8 * GBPS, 0)
    scheduler.submit(1, "a", 100, now=1000)
    assert [d.departed_ns for d in scheduler.poll(2000)] == [1100]
    scheduler.submit(1, "b", 100, now=50)  # counts as 2000
    assert [d.departed_ns for d in scheduler.poll(3000)] == [2100]


# -- invariants over random schedules

ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(0, 2), st.integers(0, 20_000), st.integers(0, 3000)),
        st.tuples(st.just("rate"), st.integers(0, 2), st.integers(0, 400) | st.just(0), st.integers(0, 3000)),
        st.tuples(st.just("poll"), st.just(0), st.just(0), st.integers(0, 30_000)),
        st.tuples(st.just("step"), st.just(0), st.just(0), st.just(0)),
    ),
    max_size=60,
)


def fluid_departures(
    submits: list[tuple[int, int, object]], rates: list[tuple[int, int]], end_rate: int
) -> dict[object, Fraction]:
    """Exact rational reference: when the last bit of each burst leaves under piecewise constant rates."""
    ends: list[int | None] = [*(when for when, _ in rates[1:]), None]
    out: dict[object, Fraction] = {}
    free = Fraction(0)
    for when, nbytes, item in submits:
        t = max(free, Fraction(when))
        bits = Fraction(nbytes * 8)
        for (start, rate), stop in zip(rates, ends, strict=True):
            if stop is not None and t >= stop:
                continue
            t = max(t, Fraction(start))
            can = None if stop is None else (stop - t) * rate / 10**9
            if rate > 0 and (can is None or can >= bits):
                t += bits * 10**9 / rate
                bits = Fraction(0)
                break
            if can is not None and stop is not None:
                bits -= can
                t = Fraction(stop)
        assert bits == 0, f"the last rate {end_rate} must drain everything"
        out[item] = free = t
    return out


@given(ACTIONS, st.booleans())
@settings(max_examples=300, deadline=None)
def test_random_schedules_follow_the_fluid_within_a_nanosecond_per_gap(
    actions: list[tuple[str, int, int, int]], ask_idle: bool
) -> None:
    scheduler = LinkScheduler()
    latency = {0: 0, 1: 1170, 2: 33}
    start_rate = 100 * GBPS
    for flow in latency:
        scheduler.open(flow, start_rate, latency[flow])
    submits: dict[int, list[tuple[int, int, object]]] = {f: [] for f in latency}
    acks: dict[object, int] = {}
    rates: dict[int, list[tuple[int, int]]] = {f: [(0, start_rate)] for f in latency}
    got: list[Departure] = []
    now = 0
    serial = 0

    def poll(at: int) -> None:
        batch = scheduler.poll(at)
        assert all(d.release_ns <= at for d in batch)
        assert all(d.release_ns > polled[-1] or d.started_ns >= polled[-1] for d in batch)
        got.extend(batch)
        if ask_idle:
            for flow in scheduler.idle_flows(at):
                assert scheduler.backlog(flow) == 0
        polled.append(at)

    polled = [-1]
    for kind, flow, value, delay in actions:
        now += delay
        if kind == "submit":
            serial += 1
            scheduler.submit(flow, serial, value, now)
            if value:
                submits[flow].append((now, value, serial))
            else:
                acks[serial] = now
        elif kind == "rate":
            scheduler.set_rate(flow, value * GBPS, now)
            rates[flow].append((now, value * GBPS))
        elif kind == "poll":
            poll(now)
        else:
            when = scheduler.next_ns()
            if when is not None and when >= now:
                # Nothing may come out before the instant the scheduler named.
                before = scheduler.poll(max(when - 1, now))
                assert before == [] or when <= now
                got.extend(before)
                now = when
                poll(now)
    for flow in latency:
        scheduler.set_rate(flow, start_rate, now)
        rates[flow].append((now, start_rate))
    got.extend(drain(scheduler))

    by_flow: dict[int, list[Departure]] = {f: [] for f in latency}
    for d in got:
        assert d.release_ns == d.departed_ns + latency[d.flow]
        if d.nbytes:
            by_flow[d.flow].append(d)
        else:
            assert d.departed_ns == d.started_ns == acks.pop(d.item)
    assert not acks
    for flow, departures in by_flow.items():
        assert [d.item for d in departures] == [s[2] for s in submits[flow]]  # FIFO, each exactly once
        exact = fluid_departures(submits[flow], rates[flow], start_rate)
        # Each time the flow falls idle, or is re-granted, in the nanosecond of a departure, that ns may be lost: no
        # more. Never early.
        for n, d in enumerate(departures, start=1):
            assert 0 <= d.departed_ns - exact[d.item] < 1 + n + len(rates[flow])
        assert scheduler.backlog(flow) == 0


@given(
    st.lists(st.tuples(st.integers(1, 100_000), st.integers(0, 4000)), min_size=1, max_size=50),
    st.integers(1, 800 * GBPS),
)
@settings(max_examples=200, deadline=None)
def test_no_window_carries_more_than_the_grant(bursts: list[tuple[int, int]], rate: int) -> None:
    """Between the start of any burst's wait and any later departure, no more bits leave than rate x time."""
    scheduler = LinkScheduler()
    scheduler.open(1, rate, 0)
    now = 0
    for n, (nbytes, delay) in enumerate(bursts):
        now += delay
        scheduler.submit(1, n, nbytes, now)
    out = drain(scheduler)
    for first in range(len(out)):
        begin = out[first].started_ns if first == 0 else max(out[first].started_ns, out[first - 1].departed_ns - 1)
        total = 0
        for d in out[first:]:
            total += d.nbytes
            assert total * 8 * 10**9 <= rate * (d.departed_ns - begin)


@given(st.lists(st.integers(1, 50_000), min_size=1, max_size=30), st.integers(1, 400), st.integers(0, 5000))
@settings(max_examples=100, deadline=None)
def test_polling_more_often_changes_nothing(sizes: list[int], gbps: int, latency: int) -> None:
    coarse, fine = LinkScheduler(), LinkScheduler()
    for scheduler in (coarse, fine):
        scheduler.open(1, gbps * GBPS, latency)
        for n, nbytes in enumerate(sizes):
            scheduler.submit(1, n, nbytes, now=0)
    assert coarse.poll(10**12) == drain(fine)
