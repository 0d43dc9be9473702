"""Packet spray over real daemons: every message over all ways, counted to the byte, rated by the split flow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from ethernet_streams import HERE, LENGTH, MTU, SPINES, THERE, Streams, carried, four_spines

from fauxrdma.fabric.routing import FlowKey
from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.fabric.sweep import LivingSubnet
from fauxrdma.lab.local import LocalLab


@pytest.fixture(scope="module", params=[("none", 0), ("paced", 11)], ids=str)
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalLab]:
    clock, seed = request.param
    fabric = four_spines(tmp_path_factory.mktemp("fabric"), "spray")
    with LocalLab(fabric, nodes=2, gpus=1, clock=clock, dilation=500, seed=seed) as running:
        yield running


def dealt(manager: SubnetManager, sent: Iterable[tuple[FlowKey, list[int]]]) -> Counter[str]:
    """Bytes by link when the packets of each flow's messages are dealt over its ways one by one."""
    out: Counter[str] = Counter()
    for flow, messages in sent:
        ways = manager.flow_path(flow).ways
        packets = [min(MTU, left) for nbytes in messages for left in range(nbytes, 0, -MTU)]
        for number, nbytes in enumerate(packets):
            for link in ways[number % len(ways)]:
                out[manager.topology.links[link].name] += nbytes
    return out


def uplinks(counts: Counter[str]) -> list[int]:
    return [counts[f"leaf1->spine{n}"] for n in range(1, SPINES + 1)]


def test_one_message_goes_all_ways(lab: LocalLab) -> None:
    streams = Streams(lab, 1, timeout=20)
    lab.report(reset=True)
    streams.post(0, LENGTH)
    streams.done([0])
    assert uplinks(carried(lab)) == [LENGTH // SPINES] * SPINES
    pair = lab.report().pairs[0]
    assert (pair.nbytes, pair.switches) == (LENGTH, 3)
    streams.close()


def test_counters_are_those_of_packets_dealt_one_by_one(lab: LocalLab) -> None:
    manager = SubnetManager(lab.topology, lab.seed)
    streams = Streams(lab, 5, timeout=20)
    lab.report(reset=True)
    sent = []
    for stream in range(5):
        sizes = [1, 5000 + stream, MTU, 7 * MTU + 77, 123_456]
        for nbytes in sizes:
            streams.post(stream, nbytes)
        streams.read(stream, 54_321 + stream)
        sent += [(streams.flow(stream), sizes), (streams.flow(stream, back=True), [54_321 + stream])]
    streams.done(range(5), 6)
    assert lab.report().retransmits == 0
    assert carried(lab) == dealt(manager, sent)
    for stream in range(5):  # the turns go on after the report
        streams.post(stream, 3000)
        sent[2 * stream][1].append(3000)
    streams.done(range(5))
    streams.close()
    assert carried(lab) == dealt(manager, sent)


def test_a_message_over_a_dead_way_is_repeated_and_then_takes_the_others(lab: LocalLab) -> None:
    streams = Streams(lab, 1, timeout=10 if lab.clock == "paced" else 15)
    cable = "leaf1->spine2"
    lab.report(reset=True)
    lab.link_down(cable)
    try:
        if lab.clock == "paced":  # otherwise the sweep may be over before we can look
            path = lab.path(HERE, THERE, streams.qps[0].qp_num)
            assert (path.ways, len(path.lost_ways), path.lost_at) == (SPINES, 1, "")
        streams.post(0, LENGTH)
        streams.done([0])
        lab.swept()
        counts = carried(lab)
        assert counts[cable] == 0
        if lab.clock == "paced":
            assert lab.report().retransmits > 0
        lab.report(reset=True)
        streams.post(0, 240 * MTU)
        streams.done([0])
        subnet = LivingSubnet(SubnetManager(lab.topology, lab.seed))
        subnet.link_down(cable, 0)
        while (due := subnet.next_ns()) is not None:
            subnet.poll(due)
        assert sorted(uplinks(carried(lab))) == [0, 80 * MTU, 80 * MTU, 80 * MTU]
        assert len(subnet.manager.flow_path(streams.flow(0)).ways) == SPINES - 1
    finally:
        lab.link_up(cable)
        lab.swept()
        streams.close()


def test_the_rate_is_that_of_all_ways_together(tmp_path: Path) -> None:
    """Uplinks of 30 Gb/s: one way gives a flow 30, four give it all that its own cable of 100 has."""
    rates, modelled = {}, {}
    for routing in ("ecmp", "spray"):
        fabric = four_spines(tmp_path, routing, trunk="30Gbps")
        with LocalLab(fabric, nodes=2, gpus=1, clock="paced", dilation=2000) as lab:
            streams = Streams(lab, 1, timeout=20)
            streams.post(0, 200_000, messages=12)
            stamps = [wc.timestamp_ns for wc in streams.wait(0, 12)]
            rates[routing] = 11 * 200_000 * 8 / (stamps[-1] - stamps[0])
            modelled[routing] = lab.path(HERE, THERE, streams.qps[0].qp_num).rate_bps
            streams.close()
    assert modelled["spray"] == pytest.approx(modelled["ecmp"] / 0.3, rel=1e-6)
    assert rates["spray"] > 2 * rates["ecmp"]
