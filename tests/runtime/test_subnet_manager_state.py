"""The bookkeeping behind the service: how link activity, resets and samples are counted."""

from __future__ import annotations

import pytest

from fauxrdma.errors import RemoteProtocolError
from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.runtime.subnet_state import SubnetState
from fauxrdma.topology.loading import load_topology
from fauxrdma.wire.fabric_messages import (
    CONTROL_VERSION,
    Counters,
    FabricReport,
    FlowLanding,
    FlowStart,
    LinkReport,
    NodeHello,
    PairCounter,
)

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


CABLE = round(200e9 * 4096 / 4122)
UPLINK = round(252e9 * 256 / 280)
"""Of a PCIe switch, which serves HCAs 1 and 2 (LIDs 1 and 2 of node 0, 10 and 11 of node 1) and GPUs 0 and 1."""


def grants(fabric: SubnetState) -> dict[int, int]:
    """By flow of node 0, in Gb/s."""
    return {flow: round(rate / 1e9) for flow, rate in fabric.grants().get(0, {}).items()}


def test_a_flow_goes_from_the_memory_it_reads_and_to_the_one_it_lands_in() -> None:
    fabric = state()
    fabric.flow_start(0, FlowStart(1, 1, 10, 1.0, memory=0, dqpn=71), 0)
    fabric.flow_start(0, FlowStart(2, 2, 11, 1.0, memory=0, dqpn=72), 0)
    assert grants(fabric) == {1: 115, 2: 115}
    fabric.flow_start(0, FlowStart(1, 1, 10, 1.0, memory=1, dqpn=71), 10)
    assert grants(fabric) == {1: 199, 2: 199}
    for lid, qpn in ((10, 71), (11, 72)):
        fabric.flow_lands(1, FlowLanding(lid, qpn, 0), 20)
    assert grants(fabric) == {1: 115, 2: 115}
    fabric.flow_lands(1, FlowLanding(11, 99, 1), 30)  # another queue pair there
    assert grants(fabric) == {}
    fabric.flow_lands(1, FlowLanding(11, 72, -1), 30)  # the HCA's own memory
    assert grants(fabric) == {1: 199, 2: 199}


def test_where_a_flow_landed_is_remembered_until_its_queue_pair_is_gone() -> None:
    fabric = state()
    fabric.flow_start(0, FlowStart(2, 2, 11, 1.0, memory=2, dqpn=72), 0)
    fabric.flow_lands(1, FlowLanding(11, 72, 0), 0)
    fabric.flow_lands(1, FlowLanding(10, 71, 0), 0)
    fabric.flow_start(0, FlowStart(1, 1, 10, 1.0, memory=1, dqpn=71), 10)
    assert grants(fabric) == {1: 115, 2: 115}
    fabric.flow_stop(0, 1, 20)
    fabric.grants()
    fabric.flow_start(0, FlowStart(1, 1, 10, 1.0, memory=1, dqpn=71), 30)
    assert grants(fabric) == {1: 115, 2: 115}
    fabric.flow_stop(0, 1, 40)
    fabric.flow_lands(1, FlowLanding(10, 71, None), 40)
    fabric.flow_start(0, FlowStart(1, 1, 10, 1.0, memory=1, dqpn=71), 50)
    assert grants(fabric) == {1: 199, 2: 199}


def test_a_node_that_left_took_its_landings_with_it() -> None:
    fabric = state()
    for node in range(2):
        fabric.join(NodeHello(CONTROL_VERSION, node, "127.0.0.1", 5000, "", 1))
    for lid, qpn in ((10, 71), (11, 72)):
        fabric.flow_lands(1, FlowLanding(lid, qpn, 0), 0)
    fabric.leave(1, 10)
    fabric.flow_start(0, FlowStart(1, 1, 10, 1.0, memory=1, dqpn=71), 20)
    fabric.flow_start(0, FlowStart(2, 2, 11, 1.0, memory=2, dqpn=72), 20)
    assert grants(fabric) == {1: 199, 2: 199}


def test_from_an_hca_into_itself_no_link_is_shared() -> None:
    fabric = state()
    fabric.flow_lands(0, FlowLanding(1, 71, -1), 0)
    fabric.flow_start(0, FlowStart(1, 1, 1, 1.0, memory=-1, dqpn=71), 0)
    fabric.flow_start(0, FlowStart(2, 1, 10, 1.0, memory=-1, dqpn=72), 0)
    assert grants(fabric) == {1: 199, 2: 199}
    fabric.flow_lands(0, FlowLanding(1, 71, 1), 0)
    assert grants(fabric) == {1: 230}
    fabric.flow_lands(0, FlowLanding(1, 71, -1), 0)
    assert grants(fabric) == {1: 199}


def test_a_group_s_datagrams_go_into_the_memories_of_its_members() -> None:
    fabric = state()
    fabric.subnet.set_members(0xC000, [10, 11])
    fabric.flow_start(0, FlowStart(1, 1, 0xC000, 1.0, memory=1, dqpn=0xFFFFFF), 0)
    assert grants(fabric) == {1: 115}  # both into host memory
    fabric.flow_lands(1, FlowLanding(11, 0xFFFFFF, 2), 0)
    assert grants(fabric) == {1: 199}


@pytest.mark.parametrize("memory", [9, -2])
def test_memories_that_a_node_has_not_are_refused(memory: int) -> None:
    fabric = state()
    with pytest.raises(RemoteProtocolError, match=f"cannot reach memory {memory}: its host has 8 GPUs"):
        fabric.flow_start(0, FlowStart(1, 1, 10, 1.0, memory=memory), 0)
    with pytest.raises(RemoteProtocolError, match="in a memory it does not have"):
        fabric.flow_lands(1, FlowLanding(10, 71, memory), 0)
    with pytest.raises(RemoteProtocolError, match="node 0 has no HCA with LID 10"):
        fabric.flow_lands(0, FlowLanding(10, 71, 0), 0)
