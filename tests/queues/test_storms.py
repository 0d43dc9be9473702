"""HCAs that take nothing in, or too slowly: how far that spreads."""

from __future__ import annotations

from dataclasses import replace

import pytest
from queue_fabrics import fabric, flow

from fauxrdma.errors import ConfigError
from fauxrdma.fabric.queues.play import Outcome, play
from fauxrdma.fabric.queues.settings import BufferSettings, QueueSettings
from fauxrdma.fabric.queues.storms import Storm
from fauxrdma.fabric.transport import TRANSPORTS, CongestionControl
from fauxrdma.topology.host_shape import HostShape
from fauxrdma.units import Rate

HOSTS = [("leaf1", 100.0)] * 4 + [("leaf2", 100.0)] * 2
TRUNK = [("leaf1", "leaf2", 400.0)]
BOTH = pytest.mark.parametrize("transport", ["infiniband", "rocev2"])
TWO_MB = 2_000_000


def settings(transport: str) -> QueueSettings:
    plain = replace(QueueSettings.of(TRANSPORTS[transport]), congestion_control=CongestionControl.NONE, ecn=None)
    return replace(plain, buffers=BufferSettings(shared_bytes=1e6))


def stormy(transport: str, storm: Storm, priority: int | None = None) -> Outcome:
    """Flow 0 goes to host 4, which the storm is about; 1 to its neighbour over the same trunk, 2 stays on leaf1."""
    manager = fabric(HOSTS, TRUNK, transport=transport)
    flows = [
        flow(manager, 0, 4, TWO_MB),
        flow(manager, 1, 5, TWO_MB, priority=priority),
        flow(manager, 2, 3, TWO_MB),
    ]
    return play(manager, flows, settings(transport), storms=[storm], limit_ns=2e6)


@BOTH
def test_a_storm_stops_what_shares_a_cable_with_its_victims_until_it_is_over(transport: str) -> None:
    outcome = stormy(transport, Storm("n4.hca1", 20_000, 320_000))
    alone = TWO_MB / (12.5 * TRANSPORTS[transport].efficiency(4096))
    hit, beside, elsewhere = (result.completion_ns or 0.0 for result in outcome.flows)
    # The buffers on the way go on filling for a while after the storm has begun.
    assert alone + 270_000 < hit < alone + 320_000
    assert alone + 200_000 < beside < alone + 320_000
    assert elsewhere == pytest.approx(alone, rel=0.03)
    assert sum(link.dropped for link in outcome.links) == 0
    stalled = {link.name: link.stalled_ns for link in outcome.links}
    assert stalled["leaf2->n4.hca1"] == pytest.approx(300_000, rel=0.02)
    assert stalled["leaf1->leaf2"] > 200_000
    if transport == "rocev2":
        paused = {link.name for link in outcome.links if link.pauses}
        assert paused == {"leaf2->n4.hca1", "leaf1->leaf2", "n0.hca1->leaf1", "n1.hca1->leaf1"}


@BOTH
def test_another_priority_is_at_full_rate_all_the_time(transport: str) -> None:
    outcome = stormy(transport, Storm("n4.hca1", 20_000, 320_000), priority=4)
    beside = outcome.flows[1]
    assert beside.completion_ns is not None
    assert (beside.rate_bps or 0.0) == pytest.approx(100e9 * TRANSPORTS[transport].efficiency(4096), rel=0.03)


@BOTH
def test_a_storm_without_end_is_no_deadlock_but_nobody_gets_through(transport: str) -> None:
    outcome = stormy(transport, Storm("n4.hca1", 20_000))
    assert outcome.deadlock == []
    assert [result.completion_ns is None for result in outcome.flows] == [True, True, False]


@BOTH
def test_a_slow_host_pauses_its_switch(transport: str) -> None:
    """PCIe of 50 Gb/s behind cables of 100: two senders fill the HCA, not its cable, and the third is held up, too."""
    slow = HostShape(gpus=1, storage_hcas=0, gpus_per_pcie_switch=1, pcie_rate=Rate.gbps(50))
    manager = fabric(HOSTS, TRUNK, transport=transport, shape=slow)
    flows = [flow(manager, 0, 4, TWO_MB), flow(manager, 1, 4, TWO_MB), flow(manager, 2, 5, TWO_MB)]
    outcome = play(manager, flows, settings(transport))
    pcie = 50 * 256 / 280
    first, second, victim = ((result.rate_bps or 0.0) / 1e9 for result in outcome.flows)
    assert first == pytest.approx(pcie / 2, rel=0.03)
    assert second == pytest.approx(pcie / 2, rel=0.03)
    assert victim < 0.7 * pcie
    assert next(link.stalled_ns for link in outcome.links if link.name == "leaf2->n4.hca1") > 0


def test_storms_by_word() -> None:
    topology = fabric(HOSTS, TRUNK).topology
    assert Storm.parse("n3.hca1", topology) == Storm("n3.hca1")
    assert Storm.parse("n3.hca1@1us", topology) == Storm("n3.hca1", 1000)
    assert Storm.parse("n3.hca1@1us-2ms", topology) == Storm("n3.hca1", 1000, 2_000_000)
    for text, words in (("n9.hca1", "no HCA called"), ("leaf1", "no HCA"), ("n3.hca1@2us-1us", "ends before")):
        with pytest.raises(ConfigError, match=words):
            Storm.parse(text, topology)
