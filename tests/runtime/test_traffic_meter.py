"""Counters of a daemon: deltas, time under way, a bounded sample of debts."""

from __future__ import annotations

from fauxrdma.runtime.traffic_meter import TrafficMeter
from fauxrdma.wire.fabric_messages import Counters, LandedCounter, PairCounter


def test_counters_are_deltas() -> None:
    meter = TrafficMeter()
    meter.sent(1, 2, ((0, 100),))
    meter.sent(1, 2, ((0, 50),))
    meter.sent(1, 3, ())
    meter.debt(30, 1000)
    assert meter.report(4) == Counters([PairCounter(1, 2, 150, 2, 0), PairCounter(1, 3, 0, 1, 0)], [30], 4)
    assert meter.report(6) == Counters([], [], 2)


def test_memories_are_counted_apart_and_frames_once() -> None:
    meter = TrafficMeter()
    meter.sent(1, 2, ((3, 100), (0, 20)))
    meter.sent(1, 2, ((0, 7),))
    meter.landed(1, 0, 5)
    meter.landed(1, 3, 6)
    meter.landed(1, 3, 7)
    report = meter.report(0)
    assert report.pairs == [PairCounter(1, 2, 100, 1, 0, memory=3), PairCounter(1, 2, 27, 1, 0)]
    assert report.landed == [LandedCounter(1, 0, 5), LandedCounter(1, 3, 13)]
    assert not meter.report(0).landed


def test_time_under_way_counts_overlaps_once_and_leaves_out_gaps() -> None:
    meter = TrafficMeter()
    meter.sent(1, 2, ((0, 10),), 100, 200)
    meter.sent(1, 2, ((0, 10),), 150, 260)  # waited behind the first
    meter.sent(1, 2, ((0, 10),), 1000, 1040)
    assert meter.report(0).pairs == [PairCounter(1, 2, 30, 3, 100 + 60 + 40)]


def test_early_is_no_debt_and_samples_are_bounded() -> None:
    meter = TrafficMeter()
    meter.debt(-50, 1000)
    for _ in range(10_000):
        meter.debt(500, 1000)
    debts = meter.report(0).debt_permille
    assert len(debts) == 4096
    assert debts.count(500) >= 4095
