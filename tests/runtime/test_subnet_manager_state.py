"""The bookkeeping behind the service: how link activity, resets and samples are counted."""

from __future__ import annotations

import pytest

from fauxrdma.errors import RemoteProtocolError
from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.runtime.subnet_state import SubnetState
from fauxrdma.topology.loading import load_topology
from fauxrdma.wire.fabric_messages import Counters, FabricReport, FlowStart, LinkReport, PairCounter

PER_NS = 200e9 * 4096 / 4122 / 8e9
"""Payload bytes per fabric ns on an HDR cable."""


def state(clock: str = "paced") -> SubnetState:
    return SubnetState(SubnetManager(load_topology("fat-tree", 2, 2)), clock, 1000.0)


def link(report: FabricReport, name: str = "n0.hca1->leaf1") -> LinkReport:
    return next(found for found in report.links if found.name == name)


def sent(nbytes: int, busy_ns: int = 0) -> Counters:
    return Counters([PairCounter(1, 10, nbytes, 1, busy_ns)], [], 0)


def test_a_flow_started_twice_counts_once_and_ends_once() -> None:
    fabric = state()
    fabric.flow_start(0, FlowStart(1, 1, 10, 1.0), 100)
    fabric.flow_start(0, FlowStart(1, 1, 10, 2.0), 200)
    fabric.flow_stop(0, 1, 300)
    fabric.flow_stop(0, 1, 900)
    fabric.count(0, sent(1000))
    assert link(fabric.report(9999)).utilisation == pytest.approx(1000 / (200 * PER_NS))


def test_a_flow_still_active_counts_up_to_the_report() -> None:
    fabric = state()
    fabric.flow_start(0, FlowStart(1, 1, 10, 1.0), 1000)
    fabric.count(0, sent(1000))
    assert link(fabric.report(1500)).utilisation == pytest.approx(1000 / (500 * PER_NS))
    assert link(fabric.report(2000)).utilisation == pytest.approx(1000 / (1000 * PER_NS))


def test_a_reset_begins_a_new_period_also_for_active_flows() -> None:
    fabric = state()
    fabric.flow_start(0, FlowStart(1, 1, 10, 1.0), 1000)
    fabric.flow_start(0, FlowStart(2, 2, 11, 1.0), 1000)
    fabric.flow_stop(0, 2, 2000)
    fabric.count(0, sent(5000))
    assert fabric.report(5000).elapsed_ns == 5000
    fabric.reset(5000)
    assert fabric.report(5600).elapsed_ns == 600
    fabric.count(0, sent(1000))
    fabric.count(0, Counters([PairCounter(2, 11, 10, 1, 0)], [], 0))
    report = fabric.report(6000)
    assert link(report).nbytes == 1000
    assert link(report).utilisation == pytest.approx(1000 / (1000 * PER_NS))
    assert link(report, "n0.hca2->leaf1").utilisation == 0.0  # bytes, but no activity in this period


def test_utilisation_never_exceeds_one() -> None:
    fabric = state()
    fabric.flow_start(0, FlowStart(1, 1, 10, 1.0), 1000)
    fabric.flow_stop(0, 1, 1001)
    fabric.count(0, sent(1_000_000))
    assert link(fabric.report(5000)).utilisation == 1.0
    fabric.count(0, sent(0, busy_ns=80_000))  # the sender knows that it took longer
    assert link(fabric.report(5000)).utilisation == pytest.approx(1_000_000 / (80_000 * PER_NS))


def test_percentiles_of_debt_are_of_all_samples() -> None:
    fabric = state()
    for chunk in range(10):
        fabric.count(0, Counters([], [chunk * 10 + n for n in range(10)], 1))
    fabric.count(1, Counters([], [10**9], 0))
    report = fabric.report(1)
    assert (report.debt_samples, report.retransmits) == (101, 10)
    assert (report.debt_p50_percent, report.debt_p99_percent) == (5.0, 9.9)
    fabric.reset(2)
    report = fabric.report(3)
    assert (report.debt_samples, report.debt_p50_percent, report.debt_p99_percent, report.retransmits) == (0, 0, 0, 0)


def test_counters_that_are_partly_wrong_count_nothing() -> None:
    fabric = state()
    good, bad = PairCounter(1, 10, 5, 1, 0), PairCounter(1, 999, 5, 1, 0)
    with pytest.raises(RemoteProtocolError, match="LID 999"):
        fabric.count(0, Counters([good, bad], [7], 1))
    report = fabric.report(1)
    assert (report.pairs, report.debt_samples, report.retransmits) == ([], 0, 0)
