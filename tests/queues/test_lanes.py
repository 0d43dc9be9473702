"""What lanes do to each other: victims, priorities, weights, long cables, lost XON frames, circles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from queue_fabrics import fabric, flow, star

from fauxrdma.fabric.queues.deadlock import find_circle
from fauxrdma.fabric.queues.ecn import marking_probability
from fauxrdma.fabric.queues.ets import share_links
from fauxrdma.fabric.queues.pfc import PauseControl
from fauxrdma.fabric.queues.play import Outcome, play
from fauxrdma.fabric.queues.settings import BufferSettings, EcnSettings, MarkAt, PfcSettings, QueueSettings
from fauxrdma.fabric.transport import TRANSPORTS, CongestionControl

NO_CONTROL = {"congestion_control": CongestionControl.NONE, "ecn": None}
FOUR_MB = 4_000_000


def settings(transport: str, **more: object) -> QueueSettings:
    plain = {} if transport == "infiniband" else NO_CONTROL
    return replace(QueueSettings.of(TRANSPORTS[transport]), **{**plain, **more})  # type: ignore[arg-type]


def gbps(outcome: Outcome) -> list[float]:
    return [(result.rate_bps or 0.0) / 1e9 for result in outcome.flows]


@pytest.mark.parametrize("transport", ["infiniband", "rocev2"])
def test_a_victim_is_held_up_behind_a_full_lane_and_not_in_another_priority(transport: str) -> None:
    """Four senders behind one trunk: three fill host 4 to the brim, the victim goes to idle host 5."""
    hosts = [("leaf1", 100.0)] * 4 + [("leaf2", 25.0), ("leaf2", 100.0)]
    manager = fabric(hosts, [("leaf1", "leaf2", 400.0)], transport=transport)
    buffers = BufferSettings(shared_bytes=2e6)

    def rates(priority: int) -> list[float]:
        flows = [flow(manager, n, 4, FOUR_MB) for n in range(3)]
        flows.append(flow(manager, 3, 5, FOUR_MB, priority=priority))
        return gbps(play(manager, flows, settings(transport, buffers=buffers)))

    together, apart = rates(0), rates(3)
    # Behind the trunk every sender has a quarter of what the trunk's lane gets through: the victim as much as they.
    assert together[3] < 15.0
    # The latency is about 1 % of the time it takes.
    assert apart[3] == pytest.approx(100.0 * TRANSPORTS[transport].efficiency(4096), rel=0.015)
    assert sum(apart[:3]) == pytest.approx(25.0 * TRANSPORTS[transport].efficiency(4096), rel=0.02)


def test_priorities_share_a_link_by_their_weights() -> None:
    manager = fabric([("leaf1", 100.0)] * 3)
    flows = [flow(manager, n, 2, FOUR_MB, priority=n) for n in range(2)]
    first, second = gbps(play(manager, flows, settings("infiniband", ets_weights={0: 3.0, 1: 1.0})))
    payload = 100 * TRANSPORTS["infiniband"].efficiency(4096)
    assert first == pytest.approx(0.75 * payload, rel=0.02)
    # The other has a quarter until the first is done, then everything: 3 + 1 parts of 4 MB in all.
    assert second == pytest.approx(0.5 * payload, rel=0.02)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.floats(0, 100), st.floats(0.1, 10)), min_size=1, max_size=12),
    st.lists(st.floats(1, 100), min_size=4, max_size=4),
)
def test_deficit_round_robin_is_weighted_max_min(classes: list[tuple[int, float, float]], budgets: list[float]) -> None:
    link_of = np.array([link for link, _, _ in classes])
    wanted, weights = (np.array([c[at] for c in classes]) for at in (1, 2))
    granted = share_links(np.array(budgets), wanted, weights, link_of, classes=True)
    assert (granted <= wanted + 1e-9).all()
    for link, budget in enumerate(budgets):
        on = link_of == link
        assert granted[on].sum() == pytest.approx(min(budget, wanted[on].sum()), rel=1e-9, abs=1e-9)
        short = on & (granted < wanted - 1e-6)
        if short.any():  # all that want more are level, and nobody has a higher level
            levels = granted / weights
            assert np.ptp(levels[short]) <= 1e-6
            assert levels[on].max() <= levels[short].max() + 1e-6


@pytest.mark.parametrize(("km", "vl_bytes"), [(2, 64 * 1024), (4, 64 * 1024), (2, 512 * 1024)])
def test_a_long_cable_carries_no_more_than_its_lane_per_round_trip(km: float, vl_bytes: int) -> None:
    manager = fabric([("leaf1", 100.0)] * 2, length_m=1000 * km)
    outcome = play(
        manager, [flow(manager, 0, 1, 10_000_000)], settings("infiniband", buffers=BufferSettings(vl_bytes=vl_bytes))
    )
    payload = 100e9 * TRANSPORTS["infiniband"].efficiency(4096)
    round_trip_ns = 2 * km * 5000 + 4096 * 8e9 / payload
    sent_in_ns = (outcome.flows[0].completion_ns or 0.0) - 2 * km * 5000
    assert 10_000_000 / sent_in_ns == pytest.approx(min(vl_bytes / round_trip_ns, payload / 8e9), rel=0.01)


def test_a_pause_ends_with_its_xon_or_by_ageing_when_that_is_lost() -> None:
    """Two senders of 100 Gb/s into 25: with every XON lost, each pause lasts until its quanta have run out."""
    manager = fabric([("leaf1", 100.0)] * 2 + [("leaf1", 25.0)], transport="rocev2")
    flows = [flow(manager, n, 2, FOUR_MB) for n in range(2)]

    def run(xon_loss: float, quanta: int = 65535) -> Outcome:
        pfc = PfcSettings(xon_loss=xon_loss, quanta=quanta)
        return play(manager, flows, settings("rocev2", pfc=pfc, buffers=BufferSettings(shared_bytes=1e6)))

    whole, lost, short = run(0.0), run(1.0), run(1.0, quanta=2000)
    for outcome in (whole, lost, short):
        assert all(result.delivered == pytest.approx(FOUR_MB, abs=1.0) for result in outcome.flows)
        assert sum(link.dropped for link in outcome.links) == 0
    assert whole.lost_xons == 0
    assert lost.lost_xons > 0
    # 65535 quanta of 512 bit times are 342 us at this rate (payload): the queue runs dry meanwhile, time and again.
    # 2000 are 10 us, in which it does not.
    assert lost.ended_ns > 1.5 * whole.ended_ns
    assert short.ended_ns == pytest.approx(whole.ended_ns, rel=0.01)


def test_one_pause_by_hand() -> None:
    """12.5 bytes per ns, frames that take 1 us, 1000 quanta: 5.12 us."""
    random = np.random.default_rng(0)
    pfc = PfcSettings(quanta=1000)
    control = PauseControl(pfc, np.array([12.5]), np.array([1000.0]), np.array([True]), 500.0, random)
    assert control.pause_ns.tolist() == [5120.0]
    xoff = np.array([50_000.0])
    seen = []
    for step in range(30):
        now = step * 500.0
        held = control.held(now)
        seen.append(held is not None and bool(held[0]))
        # Over XOFF from step 2 on, below it but not below XON in 4 and 5, below XON from 6 on.
        fill = 60_000.0 if 2 <= step < 4 else 48_000.0 if step < 6 else 10_000.0
        control.observe(now, np.array([fill if step >= 2 else 0.0]), xoff)
    assert [step for step, paused in enumerate(seen) if paused] == [4, 5, 6, 7]
    assert control.pauses.tolist() == [1]


def test_marks_by_queue_length() -> None:
    queue = np.array([0.0, 5e3, 102.5e3, 200e3, 200.1e3])
    low, high = np.full(5, 5e3), np.full(5, 200e3)
    assert marking_probability(queue, low, high, 0.01).tolist() == pytest.approx([0, 0, 0.005, 0.01, 1])
    assert marking_probability(queue, np.full(5, np.inf), np.full(5, np.inf), 0.01).tolist() == [0, 0, 0, 0, 0]


def test_marking_as_packets_leave_tells_senders_sooner() -> None:
    """Fast ECN: what the sender learns is younger by the queueing delay, so that the queue grows less."""
    manager = star(9, 100.0, "rocev2")
    flows = [flow(manager, n, 8, 4_000_000) for n in range(8)]

    def first_and_longest(mark_at: MarkAt) -> tuple[int, float]:
        chosen = replace(QueueSettings.of(TRANSPORTS["rocev2"]), ecn=EcnSettings(mark_at=mark_at))
        outcome = play(manager, flows, chosen)
        return sum(result.notifications for result in outcome.flows), max(link.queue_max for link in outcome.links)

    (late, long), (soon, short) = first_and_longest(MarkAt.ENQUEUE), first_and_longest(MarkAt.DEQUEUE)
    assert late > 0
    assert soon > 0
    assert short < long


def ring(transport: str, routing: str | None = None, *, nbytes: int = 20_000_000) -> tuple[Outcome, list[str]]:
    """Five switches in a circle, two hosts each, everybody sends to the next but one: there is one shortest way."""
    length = 5
    switches = [f"sw{n + 1}" for n in range(length)]
    trunks = [(switches[n], switches[(n + 1) % length], 100.0) for n in range(length)]
    manager = fabric([(name, 100.0) for name in switches * 2], trunks, transport=transport, routing=routing)
    flows = [flow(manager, n + more, (n + 2) % length + more, nbytes) for more in (0, length) for n in range(length)]
    outcome = play(manager, flows, settings(transport, buffers=BufferSettings(shared_bytes=1e6)))
    return outcome, [f"{switches[n]}->{switches[(n + 1) % length]}" for n in range(length)]


@pytest.mark.parametrize("transport", ["infiniband", "rocev2", "rocev1"])
def test_a_ring_stops_for_ever_and_the_circle_is_named(transport: str) -> None:
    outcome, circle = ring(transport)
    first = circle.index(outcome.deadlock[0])
    assert outcome.deadlock == circle[first:] + circle[:first]
    assert all(result.completion_ns is None for result in outcome.flows)
    assert all(0 < result.delivered < 20_000_000 for result in outcome.flows)
    assert sum(link.dropped for link in outcome.links) == 0
    assert outcome.trace[-1][1] == "deadlock"


@pytest.mark.parametrize("routing", ["dfsssp", "updn:roots=sw1"])
def test_a_ring_whose_routes_have_no_circle_does_not_stop(routing: str) -> None:
    outcome, _ = ring("infiniband", routing, nbytes=4_000_000)
    assert outcome.deadlock == []
    assert all(result.completion_ns for result in outcome.flows)
    lanes = {result.priority for result in outcome.flows}
    assert len(lanes) > 1 if routing == "dfsssp" else lanes == {0}


def test_a_ring_that_drops_does_not_stop() -> None:
    """iWARP: nothing ever waits for a buffer."""
    outcome, _ = ring("iwarp", nbytes=4_000_000)
    assert outcome.deadlock == []
    assert all(result.completion_ns for result in outcome.flows)
    assert sum(link.dropped for link in outcome.links) > 0


def test_long_pauses_are_no_deadlock() -> None:
    manager = fabric([("leaf1", 100.0)] * 3 + [("leaf2", 1.0)], [("leaf1", "leaf2", 100.0)], transport="rocev2")
    flows = [flow(manager, n, 3, 300_000) for n in range(3)]
    outcome = play(manager, flows, settings("rocev2", buffers=BufferSettings(shared_bytes=1e6), step_ns=1000.0))
    assert outcome.deadlock == []
    assert all(result.completion_ns for result in outcome.flows)


def test_circles_in_graphs() -> None:
    assert find_circle({}) == []
    assert find_circle({1: [2], 2: [3], 3: [4]}) == []
    assert find_circle({1: [2, 5], 2: [3], 5: [6], 6: [7], 7: [5]}) == [5, 6, 7]
    assert find_circle({3: [1], 1: [2], 2: [3]}) == [1, 2, 3]
    assert find_circle({4: [4]}) == [4]
