"""Thirty-two senders, one receiver: what each kind of fabric makes of it, in figures."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from queue_fabrics import flow, star

from fauxrdma.fabric.queues.dcqcn import PAPER, DcqcnParameters
from fauxrdma.fabric.queues.packet_loss import PacketLoss
from fauxrdma.fabric.queues.play import Outcome, play
from fauxrdma.fabric.queues.settings import BufferSettings, QueueSettings
from fauxrdma.fabric.transport import TRANSPORTS, CongestionControl, FlowControl

SENDERS = 32
MEGABYTE = 1_000_000
NO_CONTROL = {"congestion_control": CongestionControl.NONE, "ecn": None}
SMALL = BufferSettings(shared_bytes=4e6)
"""A switch of 4 MB, which one burst of 32 x 1 MB does not fit into."""
LARGE = BufferSettings(shared_bytes=16e6)
SCALED = replace(PAPER, additive_bps=400e6, hyper_bps=2e9)
"""The paper's R_AI is for 40 Gb/s and few flows."""


def incast(transport: str, nbytes: int = MEGABYTE, **settings: object) -> tuple[Outcome, float]:
    """What came of it, and the time the receiver's cable needs for all the bytes."""
    manager = star(SENDERS + 1, 100.0, transport)
    flows = [flow(manager, n, SENDERS, nbytes) for n in range(SENDERS)]
    settings_ = replace(QueueSettings.of(TRANSPORTS[transport]), **settings)  # type: ignore[arg-type]
    cable = manager.topology.fabric_link(manager.node(flows[0].target))
    return play(manager, flows, settings_), SENDERS * nbytes / manager.payload_rate(cable.reverse).bytes_per_ns


def total(outcome: Outcome, what: str) -> float:
    return float(sum(getattr(link, what) for link in outcome.links))


def pauses_after(outcome: Outcome, at_ns: float) -> int:
    return sum(what == "pause" and when >= at_ns for when, what, _, _ in outcome.trace)


def spread(outcome: Outcome) -> float:
    times = [result.completion_ns or 0.0 for result in outcome.flows]
    return max(times) / min(times)


def test_infiniband_drops_nothing_and_stalls_the_senders() -> None:
    outcome, ideal = incast("infiniband")
    assert total(outcome, "dropped") == total(outcome, "pauses") == 0
    assert outcome.ended_ns == pytest.approx(ideal, rel=0.01)
    assert spread(outcome) == pytest.approx(1.0, abs=0.01)
    senders = [link for link in outcome.links if link.name.endswith("->leaf1")]
    assert len(senders) == SENDERS
    # Each has a thirty-second of the cable: the rest of the time, until its last byte is in the switch, it waits.
    for link in senders:
        assert 0.85 * ideal < link.stalled_ns < ideal
        assert link.ingress_max <= 65536 + 12_500 * 0.5


def test_roce_with_pfc_drops_nothing_and_pauses() -> None:
    outcome, ideal = incast("rocev2", buffers=SMALL, **NO_CONTROL)
    assert total(outcome, "dropped") == 0
    assert total(outcome, "pauses") >= SENDERS
    assert outcome.ended_ns == pytest.approx(ideal, rel=0.01)
    assert max(link.queue_max for link in outcome.links) < 4e6
    assert all(result.sent == pytest.approx(MEGABYTE) for result in outcome.flows)


@cache
def without_control() -> Outcome:
    return incast("rocev2", 4 * MEGABYTE, buffers=LARGE, step_ns=1000.0, **NO_CONTROL)[0]


@pytest.mark.parametrize(("parameters", "slower"), [(PAPER, 1.5), (SCALED, 1.2)])
def test_dcqcn_settles_to_a_fair_share_with_few_pauses(parameters: DcqcnParameters, slower: float) -> None:
    """The first burst is on its way before the first CNP is back, and pauses; after that hardly anything does."""
    outcome, ideal = incast("rocev2", 4 * MEGABYTE, buffers=LARGE, dcqcn=parameters, step_ns=1000.0)
    assert total(outcome, "dropped") == 0
    assert total(outcome, "marked") > 0
    assert pauses_after(outcome, 1e6) <= 3
    assert pauses_after(without_control(), 1e6) > 1000
    rates = np.array([result.rate_bps for result in outcome.flows])
    jain = rates.sum() ** 2 / (len(rates) * (rates**2).sum())
    assert jain > 0.98
    assert ideal < outcome.ended_ns < slower * ideal


def test_without_pfc_it_drops_and_go_back_n_recovers_every_byte() -> None:
    outcome, ideal = incast("rocev2", flow_control=FlowControl.NONE, buffers=SMALL, **NO_CONTROL)
    assert total(outcome, "dropped") > 10 * MEGABYTE
    assert total(outcome, "pauses") == 0
    for result in outcome.flows:
        assert result.completion_ns is not None
        assert result.restarts >= 1
        assert result.delivered == pytest.approx(MEGABYTE, abs=1.0)
        assert result.sent > result.delivered + result.dropped
    assert outcome.ended_ns > 1.5 * ideal
    # A queue may have as much as is free beside it: half of the switch, and what comes within a step.
    assert max(link.queue_max for link in outcome.links) == pytest.approx(2e6, rel=0.1)


@pytest.mark.parametrize(
    ("arriving", "part"), [(190.0, 0.02), (190.0, 0.3), (190.0, 1.0), (3000.0, 0.5), (50_000.0, 0.3)]
)
def test_packets_are_lost_whole_and_as_many_as_must_be(arriving: float, part: float) -> None:
    """Twenty flows, twenty thousand steps: the bytes that go are the part that must, in as many losses as packets."""
    loss = PacketLoss(20, 1, 4096.0, np.random.default_rng(0))
    lost = np.concatenate(
        [loss.lose(np.full((20, 1), part), np.full((20, 1), arriving)) for _ in range(20_000)], axis=1
    )
    assert lost.sum() == pytest.approx(part * arriving * lost.size, rel=0.05)
    assert (lost <= arriving + 1e-9).all()
    if 0 < part < 1 and arriving < 4096:
        runs = ((lost[:, 1:] > 0) & (lost[:, :-1] == 0)).sum()
        assert runs <= 1.1 * lost.sum() / 4096


def test_iwarp_fills_the_cable_and_sends_again_only_what_is_lost() -> None:
    outcome, ideal = incast("iwarp", buffers=BufferSettings(shared_bytes=1e6), ecn=None)
    assert total(outcome, "dropped") > 0
    for result in outcome.flows:
        assert result.delivered == pytest.approx(MEGABYTE, abs=1.0)
        assert result.sent == pytest.approx(MEGABYTE + result.dropped, rel=1e-6)
    assert outcome.ended_ns < 1.3 * ideal


def test_the_same_seed_gives_the_same_bytes_and_another_does_not() -> None:
    manager = star(9, 100.0, "rocev2")
    flows = [flow(manager, n, 8, 2 * MEGABYTE) for n in range(8)]
    settings = replace(QueueSettings.of(TRANSPORTS["rocev2"]), buffers=BufferSettings(shared_bytes=2e6))
    first, again, other = (repr(play(manager, flows, settings, seed=seed)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.parametrize("transport", ["infiniband", "rocev2"])
def test_steps_of_half_a_microsecond_and_of_one_agree(transport: str) -> None:
    manager = star(9, 100.0, transport)
    flows = [flow(manager, n, 8, 2 * MEGABYTE, start_ns=1e4 * n) for n in range(8)]
    settings = replace(QueueSettings.of(TRANSPORTS[transport]), **NO_CONTROL)  # type: ignore[arg-type]
    fine, coarse = (play(manager, flows, replace(settings, step_ns=step)) for step in (500.0, 1000.0))
    assert coarse.step_ns == 2 * fine.step_ns
    for a, b in zip(fine.flows, coarse.flows, strict=True):
        assert a.completion_ns == pytest.approx(b.completion_ns, rel=0.03)
