"""Every kind of fault, injected under verbs traffic over real daemons: the application sees what hardware gives."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fault_traffic import Writer, events

from fauxrdma.errors import ConfigError, VerbsError
from fauxrdma.ib.enums import (
    IBV_EVENT_CLIENT_REREGISTER,
    IBV_EVENT_DEVICE_FATAL,
    IBV_EVENT_PKEY_CHANGE,
    IBV_EVENT_PORT_ACTIVE,
    IBV_EVENT_PORT_ERR,
    IBV_EVENT_SM_CHANGE,
    IBV_PORT_ACTIVE,
    IBV_PORT_DOWN,
    IBV_WC_RETRY_EXC_ERR,
    IBV_WC_SUCCESS,
    IBV_WC_WR_FLUSH_ERR,
    QpState,
)
from fauxrdma.lab.local import LocalLab
from fauxrdma.verbs import PD

PACED = 400
MS = 1_000_000


@pytest.fixture(scope="module", params=["none", "paced"])
def lab(request: pytest.FixtureRequest) -> Iterator[LocalLab]:
    clock = request.param
    with LocalLab("seed-two-switch", nodes=2, gpus=1, clock=clock, dilation=PACED if clock == "paced" else 1) as made:
        yield made


@pytest.fixture(scope="module")
def ethernet() -> Iterator[LocalLab]:
    with LocalLab("single-switch,transport=rocev2", nodes=2, gpus=1, clock="none") as made:
        yield made


@pytest.fixture(autouse=True)
def healed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test leaves a whole fabric."""
    yield
    for name in ("lab", "ethernet"):
        if name in request.fixturenames:
            running = request.getfixturevalue(name)
            running.clear_fault()
            running.swept()


def patient(lab: LocalLab) -> Writer:
    """Longer than any fault and its sweep: 7 times 4 ms of fabric time, 67 ms where that is this host's."""
    return Writer(lab, timeout=10 if lab.clock == "paced" else 14)


def hasty(lab: LocalLab) -> Writer:
    """1 ms, twice; 4 ms on this host's time."""
    return Writer(lab, timeout=8 if lab.clock == "paced" else 10, retry_cnt=1)


def lost(lab: LocalLab) -> int:
    return sum(errors.frames_lost for errors in lab.report().link_errors)


@pytest.mark.parametrize(
    ("kind", "target", "fields"),
    [
        ("link-down", "n0.hca1 -- leaf1", {"for_ns": 2 * MS}),
        ("link-flap", "n1.hca1", {"for_ns": MS, "every_ns": 6 * MS, "times": 2}),
        ("switch-down", "leaf1", {"for_ns": 2 * MS}),
        ("partition", "", {"groups": [["n0"], ["n1"]], "for_ns": 2 * MS}),
        ("pause-storm", "n0.hca1", {"for_ns": 2 * MS}),
        ("packet-loss", "n0.hca1", {"loss": 0.001}),
        ("bit-errors", "n1.hca1", {"bit_errors": 1e-8}),
        ("latency", "n0.hca1", {"latency_ns": 2000}),
        ("degrade", "n0.hca1", {"rate_bps": 50 * 10**9}),
        ("slow-gpu", "n0.gpu0", {"factor": 2.0}),
        ("sm-restart", "", {"for_ns": 2 * MS}),
    ],
)
def test_a_patient_queue_pair_outlasts_it_with_the_bytes_right(
    lab: LocalLab, kind: str, target: str, fields: dict[str, object]
) -> None:
    writer = patient(lab)
    writer.arrives()
    writer.post(4)
    number = lab.inject(kind, target, **fields)
    assert writer.statuses(4) == [IBV_WC_SUCCESS] * 4
    writer.arrives(4)
    record = lab.faults().faults[number - 1]
    assert (record.number, record.kind, record.state in ("active", "over")) == (number, kind, True)
    if "for_ns" not in fields:
        lab.clear_fault(number)
    lab.swept()
    writer.arrives()
    writer.close()


@pytest.mark.parametrize(
    ("kind", "target", "fields"),
    [
        ("link-down", "n1.hca1", {}),
        ("switch-down", "leaf1", {}),
        ("partition", "", {"groups": [["n0.hca1"], ["n1"]]}),
        ("pause-storm", "n0.hca1", {}),
        ("packet-loss", "n0.hca1", {"loss": 1.0}),
    ],
)
def test_a_hasty_one_runs_out_of_retries_and_is_flushed(
    lab: LocalLab, kind: str, target: str, fields: dict[str, object]
) -> None:
    writer = hasty(lab)
    writer.arrives()
    lab.inject(kind, target, **fields)
    writer.post(3)
    assert writer.statuses(3) == [IBV_WC_RETRY_EXC_ERR, IBV_WC_WR_FLUSH_ERR, IBV_WC_WR_FLUSH_ERR]
    assert writer.qps[0].query()[0].qp_state == QpState.IBV_QPS_ERR
    writer.close()
    lab.clear_fault()
    lab.swept()
    again = patient(lab)
    again.arrives()
    again.close()


def test_port_events_of_a_link_that_flaps(lab: LocalLab) -> None:
    writer = patient(lab)
    every_ms = 9 if lab.clock == "paced" else 400  # a busy host sweeps slowly, and flaps that overlap are fewer
    number = lab.inject("link-flap", "n1.hca1", for_ns=2 * MS, every_ns=every_ms * MS, times=2)
    assert events(writer.ctx[1], 4) == [IBV_EVENT_PORT_ERR, IBV_EVENT_PORT_ACTIVE] * 2
    assert lab.faults().faults[number - 1].state == "over"
    writer.close()


def test_a_switch_takes_the_ports_of_its_hcas_down(lab: LocalLab) -> None:
    writer = patient(lab)
    number = lab.inject("switch-down", "leaf1")
    for ctx in writer.ctx:
        assert events(ctx, 1) == [IBV_EVENT_PORT_ERR]
        assert ctx.query_port(1).state == IBV_PORT_DOWN
    lab.clear_fault(number)
    for ctx in writer.ctx:
        assert events(ctx, 1) == [IBV_EVENT_PORT_ACTIVE]
        assert ctx.query_port(1).state == IBV_PORT_ACTIVE
    writer.arrives()
    writer.close()


def test_an_hca_that_fails_is_fatal_and_its_queue_pairs_are_flushed(lab: LocalLab) -> None:
    writer = hasty(lab)
    writer.arrives()
    number = lab.inject("hca-down", "n0.hca1")
    assert set(events(writer.ctx[0], 2)) == {IBV_EVENT_DEVICE_FATAL, IBV_EVENT_PORT_ERR}
    writer.post(2)
    assert writer.statuses(2) == [IBV_WC_WR_FLUSH_ERR] * 2
    with pytest.raises(VerbsError, match="the HCA has failed"):
        PD(writer.ctx[0])
    writer.close()
    lab.clear_fault(number)
    lab.swept()
    again = patient(lab)
    again.arrives()
    again.close()


def test_the_peer_of_an_hca_that_fails_runs_out_of_retries(lab: LocalLab) -> None:
    writer = hasty(lab)
    lab.inject("hca-down", "n1.hca1")
    writer.post()
    assert writer.statuses() == [IBV_WC_RETRY_EXC_ERR]
    writer.close()


def test_a_partition_changes_p_keys_and_drops_in_silence(lab: LocalLab) -> None:
    writer = patient(lab)
    number = lab.inject("partition", groups=[["n0"], ["n1"]])
    for ctx, pkey in zip(writer.ctx, (0x8001, 0x8002), strict=True):
        assert events(ctx, 1) == [IBV_EVENT_PKEY_CHANGE]
        assert ctx.query_pkey(1, 0) == pkey
        assert ctx.query_port(1).state == IBV_PORT_ACTIVE
    assert writer.ctx[0].path(writer.ctx[1].hca.lid).lost_at == "n1.hca1 (partition)"
    lab.clear_fault(number)
    for ctx in writer.ctx:
        assert events(ctx, 1) == [IBV_EVENT_PKEY_CHANGE]
        assert ctx.query_pkey(1, 0) == 0xFFFF
    writer.arrives()
    writer.close()


def test_a_manager_that_restarts_asks_to_be_told_again_and_sweeps(lab: LocalLab) -> None:
    writer = patient(lab)
    before = lab.swept().sweeps
    lab.inject("sm-restart", for_ns=3 * MS)
    late = patient(lab)  # its paths are asked for while the manager is away
    late.arrives()
    late.close()
    for ctx in writer.ctx:
        assert events(ctx, 2) == [IBV_EVENT_SM_CHANGE, IBV_EVENT_CLIENT_REREGISTER]
    assert lab.swept().sweeps == before + 1
    writer.arrives()
    writer.close()


def test_a_trap_waits_for_a_manager_that_is_away(lab: LocalLab) -> None:
    away = lab.inject("sm-restart", for_ns=10_000 * MS)
    cut = lab.inject("link-down", "leaf1 -- leaf2:1")
    swept = len(lab.faults().faults)
    assert swept >= cut > away
    lab.clear_fault(away)
    assert [name for name in lab.swept().down if name.endswith(":1")] != []


def test_lost_packets_are_repeated_and_counted(lab: LocalLab) -> None:
    writer = patient(lab)
    before, again = lost(lab), lab.report().retransmits
    lab.inject("packet-loss", "n0.hca1", loss=0.005)
    for _ in range(20):
        writer.arrives(4)
        if lost(lab) > before:
            break
    assert lost(lab) > before
    assert lab.report().retransmits > again
    writer.close()


def test_infiniband_replays_bit_errors_and_loses_nothing(lab: LocalLab) -> None:
    writer = patient(lab)
    before, again = lost(lab), lab.report().retransmits
    lab.inject("bit-errors", "n0.hca1", bit_errors=1e-6)
    writer.arrives(4)
    lab.report()  # has daemons report what they counted
    errors = {one.link: one for one in lab.faults().errors}
    assert (lost(lab), lab.report().retransmits) == (before, again)
    if lab.clock == "paced":
        assert errors["n0.hca1->leaf1"].symbol_errors > 0
    writer.close()


def test_ethernet_drops_what_is_damaged_and_go_back_n_recovers(ethernet: LocalLab) -> None:
    writer = patient(ethernet)
    ethernet.inject("bit-errors", "n0.hca1", bit_errors=2e-7)
    for _ in range(4):
        writer.arrives(4)
    report = ethernet.report()
    assert report.retransmits > 0
    errors = {one.link: one for one in report.link_errors}["n0.hca1->leaf1"]
    assert errors.symbol_errors >= errors.frames_lost > 0
    assert errors.link_error_recoveries == 0
    writer.close()


def test_what_there_is_not_is_refused_and_changes_nothing(lab: LocalLab) -> None:
    before = len(lab.faults().faults)
    for kind, target in (("link-dwon", "n0.hca1"), ("link-down", "n9.hca1"), ("switch-down", "spine9")):
        with pytest.raises(ConfigError):
            lab.inject(kind, target)
    with pytest.raises(ConfigError, match="no fault 9999"):
        lab.clear_fault(9999)
    assert len(lab.faults().faults) == before
