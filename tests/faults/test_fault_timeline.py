"""Faults begin and end when they should, and do what they should: no process, no clock."""

from __future__ import annotations

import random

import pytest

from fauxrdma.errors import ConfigError
from fauxrdma.fabric.faults import Effects, FaultTimeline, Hazards
from fauxrdma.fabric.faults.hazards import MAX_REPLAYS, LinkErrorCounts
from fauxrdma.topology.fault_events import KINDS, describe_fault
from fauxrdma.topology.fault_targets import cable_name, checked_fault
from fauxrdma.topology.graph import Topology
from fauxrdma.topology.loading import load_topology
from fauxrdma.wire.fault_messages import FaultEvent, Hazard


@pytest.fixture(scope="module")
def topology() -> Topology:
    return load_topology("seed-two-switch", 2)


def states(timeline: FaultTimeline) -> list[str]:
    return [record.state for record in timeline.records()]


def test_a_declared_fault_waits_for_the_start_and_ends_in_time() -> None:
    timeline = FaultTimeline()
    assert timeline.add(FaultEvent("link-down", "x", at_ns=50, for_ns=20), 0) == 1
    assert timeline.next_ns() is None
    timeline.start(1000)
    timeline.start(5000)
    assert timeline.next_ns() == 1050
    assert not timeline.poll(1049)
    assert timeline.poll(1050)
    assert list(timeline.active) == [1]
    assert timeline.poll(1070)
    assert timeline.active == {}
    record = timeline.records()[0]
    assert (record.state, record.began_ns, record.ended_ns) == ("over", 1050, 1070)
    assert timeline.next_ns() is None


def test_a_fault_without_a_time_begins_at_once_and_lasts_until_it_is_cleared() -> None:
    timeline = FaultTimeline()
    number = timeline.add(FaultEvent("switch-down", "leaf1"), 7)
    assert timeline.poll(7)
    assert states(timeline) == ["active"]
    assert timeline.next_ns() is None
    assert timeline.clear(number, 90) == [number]
    assert timeline.records()[0].ended_ns == 90
    assert timeline.clear(number, 91) == []


def test_a_flap_goes_down_as_often_as_it_is_told() -> None:
    timeline = FaultTimeline()
    timeline.add(FaultEvent("link-flap", "x", for_ns=10, every_ns=100, times=3), 0)
    seen = []
    for now in range(0, 400, 5):
        if timeline.poll(now):
            seen.append((now, bool(timeline.active)))
    assert seen == [(0, True), (10, False), (100, True), (110, False), (200, True), (210, False)]
    assert states(timeline) == ["over"]


def test_clearing_all_takes_what_waits_off_the_timeline() -> None:
    timeline = FaultTimeline()
    timeline.start(0)
    timeline.add(FaultEvent("latency", "x", at_ns=10, latency_ns=5), 0)
    timeline.add(FaultEvent("latency", "x", latency_ns=5, for_ns=100), 0)
    timeline.poll(1)
    assert timeline.clear(0, 2) == [1, 2]
    assert timeline.next_ns() is None
    assert not timeline.poll(1000)
    assert states(timeline) == ["over", "over"]


def effects(topology: Topology, *events: FaultEvent) -> Effects:
    return Effects.of(topology, [checked_fault(event, topology) for event in events])


def test_faults_of_one_link_add_up_in_both_directions(topology: Topology) -> None:
    cable = topology.fabric_link(topology.hca(0, 1))
    both = effects(
        topology,
        FaultEvent("degrade", "n0.hca1", rate_bps=50 * 10**9),
        FaultEvent("degrade", "leaf1 -- n0.hca1", rate_bps=100 * 10**9),
        FaultEvent("latency", "n0.hca1", latency_ns=300),
        FaultEvent("latency", "n0.hca1->leaf1", latency_ns=200),
        FaultEvent("packet-loss", "n0.hca1", loss=0.5),
        FaultEvent("packet-loss", "n0.hca1", loss=0.5),
        FaultEvent("pause-storm", "n0.hca1", priority=3),
    )
    for link in (cable.id, cable.reverse):
        assert both.slowdown[link] == 0.25
        assert both.delay_ns([link]) == 500
        assert both.loss[link] == 0.75
        assert both.stopped([link]) == [3]
    other = topology.fabric_link(topology.hca(1, 1)).id
    assert (both.delay_ns([other]), both.stopped([other])) == (0, [])
    assert both.hazards([other, cable.id], {cable.id: cable.name}) == [Hazard(cable.name, 0.75, 0.0)]


def test_switches_hcas_and_gpus(topology: Topology) -> None:
    down = effects(topology, FaultEvent("switch-down", "leaf1")).down
    assert "leaf1->leaf2:1" in down
    assert len(down) == len(topology.links_from("leaf1"))
    dead = effects(topology, FaultEvent("hca-down", "n1.hca2"))
    assert (dead.dead, dead.down) == ({"n1.hca2"}, {"n1.hca2->leaf2"})
    slow = effects(topology, FaultEvent("slow-gpu", "n0.gpu0", factor=4.0))
    lanes = topology.links_from("n0.gpu0")
    assert slow.slowdown == {link: 0.25 for lane in lanes for link in (lane.id, lane.reverse)}


def test_groups_of_a_partition_reach_their_own_only(topology: Topology) -> None:
    apart = effects(topology, FaultEvent("partition", groups=[["n0"], ["n1.hca1", "n1.hca2"]]))
    assert apart.apart("n0.hca1", "n1.hca1")
    assert apart.apart("n1.hca2", "n0.hca3")
    assert not apart.apart("n1.hca1", "n1.hca2")
    assert not apart.apart("n0.hca1", "n1.hca3")
    assert apart.pkeys("n0.hca1") == [0x8001]
    assert apart.pkeys("n1.hca2") == [0x8002]
    assert apart.pkeys("n1.hca3") == []


@pytest.mark.parametrize(
    ("event", "complaint"),
    [
        (FaultEvent("link-down", "n0.hca11"), r"no cable 'n0.hca11' \(did you mean n0.hca1\?\)"),
        (FaultEvent("link-down", "leaf1 -- leaf2"), "4 cables join leaf1 and leaf2: say which, as leaf1->leaf2:1"),
        (FaultEvent("switch-down", "leaf3"), r"no switch 'leaf3' \(did you mean leaf"),
        (FaultEvent("hca-down", "n0.hcaa1"), r"no HCA 'n0.hcaa1' \(did you mean n0.hca1\?\)"),
        (FaultEvent("slow-gpu", "gpu0", factor=2.0), r"no GPU 'gpu0' \(did you mean n\d.gpu0\?\)"),
        (FaultEvent("partition", groups=[["n0"], ["n7"]]), r"no node or HCA 'n7' \(did you mean n"),
        (FaultEvent("partition", groups=[["n0"]]), "two groups or more"),
        (FaultEvent("partition", groups=[["n0"], ["n0.hca1"]]), "n0.hca1 is in two groups"),
    ],
)
def test_what_there_is_not_is_refused_with_the_nearest(topology: Topology, event: FaultEvent, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        checked_fault(event, topology)


def test_a_cable_has_many_names(topology: Topology) -> None:
    assert {cable_name(text, topology) for text in ("n0.hca1", "n0.hca1--leaf1", "n0.hca1 -- leaf1")} == {
        "n0.hca1->leaf1"
    }
    assert cable_name("leaf2 -- leaf1:3", topology) == "leaf2->leaf1:3"


def test_loss_is_as_likely_as_it_is_told_and_the_same_for_the_same_seed() -> None:
    def losses(seed: str, nbytes: int) -> list[bool]:
        hazards = Hazards([Hazard("x", 0.01, 0.0)], LinkErrorCounts(seed), replays=True)
        return [hazards.loses(nbytes, 4096) for _ in range(4000)]

    assert losses("1/0", 0) == losses("1/0", 0)
    assert losses("1/0", 0) != losses("2/0", 0)
    assert 20 <= sum(losses("1/0", 0)) <= 65  # 40 expected, within four sigma
    assert 500 <= sum(losses("1/0", 16 * 4096)) <= 690  # 1 - 0.99 ** 16 is 14.9 %


def test_bit_errors_are_replayed_on_infiniband_and_lose_packets_on_ethernet() -> None:
    counts = LinkErrorCounts("0")
    link = [Hazard("x", 0.0, 1e-6)]
    replayed = Hazards(link, counts, replays=True)
    assert not any(replayed.loses(1 << 20, 4096) for _ in range(50))
    extra = sum(replayed.replay_bytes(1 << 20, 4096, 200 * 10**9) for _ in range(50))
    seen = counts.take()[0]
    # 256 packets of 4,126 bytes: 3.2 % of them damaged, a little more with replays that are damaged too.
    assert 320 <= seen.symbol_errors <= 540
    assert extra >= seen.symbol_errors * (4096 + 25_000)
    assert seen.frames_lost == 0
    dropped = Hazards(link, counts, replays=False)
    lost = sum(dropped.loses(4096, 4096) for _ in range(2000))
    assert 30 <= lost <= 110
    assert dropped.replay_bytes(4096, 4096, 10**9) == 0
    assert counts.take()[0].frames_lost == lost


def test_a_hopeless_link_is_trained_anew() -> None:
    counts = LinkErrorCounts("0")
    hopeless = Hazards([Hazard("x", 0.0, 0.01)], counts, replays=True)
    extra = hopeless.replay_bytes(4096, 4096, 8 * 10**9)  # a byte a nanosecond
    seen = counts.take()[0]
    assert (seen.symbol_errors, seen.link_error_recoveries) == (MAX_REPLAYS, 1)
    assert extra == MAX_REPLAYS * (4096 + 1000) + 100_000


def test_every_kind_describes_itself_and_has_an_example() -> None:
    for kind in KINDS.values():
        assert kind.about.endswith(".")
        assert describe_fault(FaultEvent(kind.name, "n0.hca1")).startswith(kind.name)
    full = FaultEvent("link-flap", "n0.hca1", for_ns=10**6, every_ns=5 * 10**6, times=3)
    assert describe_fault(full) == "link-flap n0.hca1 for 1 ms every 5 ms, 3 times"


def test_random_histories_leave_nothing_behind() -> None:
    rng = random.Random(5)
    for _ in range(50):
        timeline = FaultTimeline()
        for _ in range(rng.randrange(1, 12)):
            at, last = rng.choice((-1, rng.randrange(100))), rng.randrange(1, 50)
            timeline.add(FaultEvent("latency", "x", at_ns=at, for_ns=last, latency_ns=1), 0)
        timeline.start(0)
        now = 0
        while (due := timeline.next_ns()) is not None:
            assert due >= now
            now = due
            assert timeline.poll(now)
        assert timeline.active == {}
        assert set(states(timeline)) == {"over"}
