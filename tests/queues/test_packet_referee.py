"""The fluid against the packet-level reference: incast, victims, credits, chains, circles.

Tolerances: completion within 3 %, or 30 us for flows that join a growing queue one by one (the fluid mixes what a queue
keeps in order, and this one lasts 42 us); buffers within a fifth; the number of pauses within a factor of two.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from lossy_reference import Lossy
from packet_reference import PACKET, Pfc, Played, play_packets
from queue_fabrics import fabric, flow, star

from fauxrdma.fabric.queues.play import Flow, Outcome, play
from fauxrdma.fabric.queues.settings import BufferSettings, PfcSettings, QueueSettings
from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.fabric.transport import TRANSPORTS, CongestionControl, FlowControl

LANE_BYTES = 65536
XOFF = 100_000
BOTH = pytest.mark.parametrize("transport", ["infiniband", "rocev2"])


def both(manager: SubnetManager, flows: list[Flow], vl_bytes: int = LANE_BYTES) -> tuple[Played, Outcome]:
    transport = manager.transport
    settings = replace(
        QueueSettings.of(transport),
        congestion_control=CongestionControl.NONE,
        ecn=None,
        buffers=BufferSettings(vl_bytes=vl_bytes),
        pfc=PfcSettings(xoff_bytes=XOFF),
    )
    control = float(vl_bytes) if transport is TRANSPORTS["infiniband"] else Pfc(XOFF, XOFF - settings.pfc.gap_bytes)
    return play_packets(manager, flows, control), play(manager, flows, settings)


def agree(played: Played, outcome: Outcome, within: float = 0.03, off_ns: float = 0.0) -> None:
    for expected, result in zip(played.completion_ns, outcome.flows, strict=True):
        assert expected is not None
        assert result.completion_ns == pytest.approx(expected, rel=within, abs=off_ns)
    links = {link.name: link for link in outcome.links}
    for name, cable in played.cables.items():
        assert links[name].ingress_max == pytest.approx(cable.inside_max, rel=0.1, abs=2 * PACKET + XOFF * 0.15), name
    pauses, expected_pauses = (
        sum(link.pauses for link in outcome.links),
        sum(c.pauses for c in played.cables.values()),
    )
    assert expected_pauses / 2 <= pauses <= expected_pauses * 2
    assert sum(link.dropped for link in outcome.links) == 0


@BOTH
def test_fifteen_senders_to_one(transport: str) -> None:
    manager = star(16, 100.0, transport)
    played, outcome = both(manager, [flow(manager, n, 15, 500_000) for n in range(15)])
    agree(played, outcome)
    queue = max(link.queue_max for link in outcome.links)
    assert queue == pytest.approx(max(cable.queue_max for cable in played.cables.values()), rel=0.05)


@BOTH
def test_senders_that_join_one_by_one(transport: str) -> None:
    manager = star(9, 100.0, transport)
    flows = [flow(manager, n, 8, 250_000 * (n + 1), start_ns=5e3 * n) for n in range(8)]
    agree(*both(manager, flows), off_ns=30_000)


@BOTH
def test_a_victim_behind_a_full_trunk(transport: str) -> None:
    """Three senders fill a host of 25 Gb/s behind the trunk; the fourth goes to an idle one of 100."""
    hosts = [("leaf1", 100.0)] * 4 + [("leaf2", 25.0), ("leaf2", 100.0)]
    manager = fabric(hosts, [("leaf1", "leaf2", 400.0)], transport=transport)
    flows = [*(flow(manager, n, 4, 1_000_000) for n in range(3)), flow(manager, 3, 5, 1_000_000)]
    played, outcome = both(manager, flows)
    agree(played, outcome)
    alone, _ = both(manager, flows[3:])
    assert alone.completion_ns[0] is not None
    assert (outcome.flows[3].completion_ns or 0.0) > 8 * alone.completion_ns[0]


@BOTH
def test_a_victim_of_its_own_sender(transport: str) -> None:
    """Host 0 sends to an idle host and to one that another fills: both of its flows go at what the slower gets."""
    manager = star(4, 100.0, transport)
    flows = [flow(manager, 0, 1, 2_000_000), flow(manager, 0, 2, 2_000_000), flow(manager, 3, 2, 4_000_000)]
    agree(*both(manager, flows))


@BOTH
def test_ports_not_flows_share_a_chain(transport: str) -> None:
    """At each switch of a chain a sender joins, and a port has its half however many flows come by it."""
    hosts = [(f"sw{n}", 100.0) for n in (1, 1, 2, 2, 3, 3, 4, 4, 4)]
    manager = fabric(hosts, [(f"sw{n}", f"sw{n + 1}", 100.0) for n in (1, 2, 3)], transport=transport)
    flows = [flow(manager, source, target, 2_000_000) for source, target in ((0, 6), (2, 7), (4, 8), (1, 3))]
    played, outcome = both(manager, flows)
    agree(played, outcome)
    assert (outcome.flows[0].completion_ns or 0.0) > 1.4 * (outcome.flows[2].completion_ns or 0.0)


@pytest.mark.parametrize(("km", "vl_bytes"), [(2, LANE_BYTES), (4, LANE_BYTES), (2, 8 * LANE_BYTES)])
def test_credits_over_a_long_cable(km: int, vl_bytes: int) -> None:
    manager = fabric([("leaf1", 100.0)] * 2, length_m=1000 * km)
    played, outcome = both(manager, [flow(manager, 0, 1, 2_000_000)], vl_bytes)
    assert outcome.flows[0].completion_ns == pytest.approx(played.completion_ns[0], rel=0.03)


@BOTH
@pytest.mark.parametrize("apart_ns", [0.0, 10_000.0])
def test_a_ring_stops_in_both(transport: str, apart_ns: float) -> None:
    """One host on each of five switches, everybody to the next but one, at once or one after the other."""
    names = [f"sw{n}" for n in range(1, 6)]
    trunks = [(names[n], names[(n + 1) % 5], 100.0) for n in range(5)]
    manager = fabric([(name, 100.0) for name in names], trunks, transport=transport)
    flows = [flow(manager, n, (n + 2) % 5, 20_000_000, start_ns=apart_ns * n) for n in range(5)]
    played, outcome = both(manager, flows)
    assert played.completion_ns == [None] * 5
    assert sorted(outcome.deadlock) == sorted(f"{a}->{b}" for a, b, _ in trunks)


@pytest.mark.parametrize(("senders", "nbytes"), [(8, 1_000_000), (4, 2_000_000)])
def test_go_back_n_into_a_queue_that_drops(senders: int, nbytes: int) -> None:
    """A lottery of who loses when: the time agrees within a factor of two, losses and restarts within three."""
    manager = star(senders + 1, 100.0, "rocev2")
    size = BufferSettings(shared_bytes=1e6)
    plain = QueueSettings.of(TRANSPORTS["rocev2"], FlowControl.NONE, CongestionControl.NONE)
    chosen = replace(plain, buffers=size)
    outcome = play(manager, [flow(manager, n, senders, nbytes) for n in range(senders)], chosen)
    rate = 12.5 * TRANSPORTS["rocev2"].efficiency(PACKET)
    back = float(manager.path(1, 2).latency_ns)
    # A queue may have what is free beside it: half.
    expected = Lossy(senders, -(-nbytes // PACKET), rate, 500_000, back, chosen.retry_timeout_ns, seed=1)
    assert all(result.delivered == pytest.approx(nbytes, abs=1.0) for result in outcome.flows)
    done = max(sender.done_ns or 0.0 for sender in expected.senders)
    assert done / 2 < outcome.ended_ns < 2 * done
    for counted, reference in (("dropped", expected.dropped * PACKET), ("restarts", expected.restarts)):
        assert reference / 3 < sum(getattr(result, counted) for result in outcome.flows) < 3 * reference
    queue = max(link.queue_max for link in outcome.links)
    assert queue == pytest.approx(expected.longest, rel=0.15)
