"""Cables of an Ethernet fabric fail: who loses what, by the way that each flow was given; over real daemons."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from ethernet_streams import HERE, SPINES, THERE, Streams, carried, four_spines, hashed, spine_of

from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.fabric.sweep import LivingSubnet
from fauxrdma.ib.enums import IBV_WC_RETRY_EXC_ERR, IBV_WC_WR_FLUSH_ERR
from fauxrdma.lab.local import LocalLab

STREAMS = 20
DILATION = {"none": 1, "paced": 500}


@pytest.fixture(scope="module", params=list(DILATION))
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalLab]:
    fabric = four_spines(tmp_path_factory.mktemp("fabric"), "ecmp")
    clock = request.param
    with LocalLab(fabric, nodes=2, gpus=1, clock=clock, dilation=DILATION[clock], seed=5) as running:
        yield running


@pytest.fixture
def streams(lab: LocalLab) -> Iterator[Streams]:
    """With so much patience that nothing is repeated because this host is slow."""
    made = Streams(lab, STREAMS, timeout=20)
    lab.report(reset=True)
    yield made
    made.close()


def split(streams: Streams, manager: SubnetManager, spine: str) -> tuple[list[int], list[int]]:
    """Streams that do not touch a spine either way, and those whose requests go over it."""
    touched = {
        stream: (spine_of(manager, streams.flow(stream)), spine_of(manager, streams.flow(stream, back=True)))
        for stream in range(STREAMS)
    }
    living = [stream for stream, spines in touched.items() if spine not in spines]
    dead = [stream for stream, spines in touched.items() if spines[0] == spine]
    assert living
    assert dead
    return living, dead


def swept_manager(lab: LocalLab, *down: str) -> SubnetManager:
    """What the subnet manager knows after it has swept, computed here."""
    subnet = LivingSubnet(SubnetManager(lab.topology, lab.seed))
    for cable in down:
        subnet.link_down(cable, 0)
    while (due := subnet.next_ns()) is not None:
        subnet.poll(due)
    return subnet.manager


def spine_of_tables(manager: SubnetManager) -> str:
    """The spine that a fabric without choices would use between the hosts."""
    names = [manager.topology.links[link].dst for link in manager.path(1, 2).links]
    return next(name for name in names if name.startswith("spine"))


@pytest.mark.parametrize("whose", ["tables", "another"])
def test_a_flow_over_a_living_spine_loses_nothing(lab: LocalLab, streams: Streams, whose: str) -> None:
    manager = SubnetManager(lab.topology, lab.seed)
    of_tables = spine_of_tables(manager)
    spine = of_tables if whose == "tables" else next(f"spine{n}" for n in (1, 2) if f"spine{n}" != of_tables)
    living, _ = split(streams, manager, spine)
    cable = f"leaf1->{spine}"
    for stream in living:
        streams.post(stream, 200_000, messages=8)
    lab.link_down(cable)
    try:
        for stream in living:
            streams.post(stream, 100_000, messages=4)
        streams.done(living, 12)
        lab.swept()
        report = lab.report()
        assert report.retransmits == 0
        up = {link.name: link.nbytes for link in report.links if link.src == "leaf1" and link.dst.startswith("spine")}
        assert sum(up.values()) == len(living) * (8 * 200_000 + 4 * 100_000)
        assert up[cable] == 0
    finally:
        lab.link_up(cable)
        lab.swept()


def test_a_flow_over_the_dead_spine_loses_all_until_the_sweep(lab: LocalLab) -> None:
    """Seven retries of 4 ms of fabric time (134 ms where that is this host's) outlast the sweep."""
    streams = Streams(lab, STREAMS, timeout=10 if lab.clock == "paced" else 15)
    manager = SubnetManager(lab.topology, lab.seed)
    spine = spine_of(manager, streams.flow(0))
    _, dead = split(streams, manager, spine)
    cable = f"leaf1->{spine}"
    lab.report(reset=True)
    lab.link_down(cable)
    try:
        if lab.clock == "paced":  # otherwise the sweep may be over before we can look
            assert lab.path(HERE, THERE, streams.qps[0].qp_num).lost_at == cable
            living = next(stream for stream in range(STREAMS) if stream not in dead)
            assert lab.path(HERE, THERE, streams.qps[living].qp_num).lost_at == ""
        for stream in dead:
            streams.post(stream, 100_000)
        streams.done(dead)
        lab.swept()
        assert cable not in carried(lab)
        if lab.clock == "paced":
            assert lab.report().retransmits >= len(dead)
    finally:
        lab.link_up(cable)
        lab.swept()
        streams.close()


def test_retries_that_end_before_the_sweep_are_exceeded(tmp_path: Path) -> None:
    """Paced, since unshaped a sweep takes a millisecond of wall time, and no retries are sure to end before."""
    with LocalLab(four_spines(tmp_path, "ecmp"), nodes=2, gpus=1, clock="paced", dilation=500) as lab:
        streams = Streams(lab, 1, timeout=2, retry_cnt=1)  # 16 us, twice; a trap takes 100 us
        lab.link_down(f"leaf1->{spine_of(SubnetManager(lab.topology, lab.seed), streams.flow(0))}")
        streams.post(0, 1000, messages=2)
        assert [wc.status for wc in streams.wait(0, 2)] == [IBV_WC_RETRY_EXC_ERR, IBV_WC_WR_FLUSH_ERR]
        streams.close()


def test_after_the_sweep_flows_are_hashed_anew(lab: LocalLab, streams: Streams) -> None:
    before = SubnetManager(lab.topology, lab.seed)
    cable = "leaf2->spine3"
    lab.link_down(cable)
    try:
        lab.swept()
        after = swept_manager(lab, cable)
        sent = []
        for stream in range(STREAMS):
            streams.post(stream, 30_000 + stream)
            streams.read(stream, 10_000 + stream)
            sent += [(streams.flow(stream), 30_000 + stream), (streams.flow(stream, back=True), 10_000 + stream)]
        streams.done(range(STREAMS), 2)
        assert carried(lab) == hashed(after, sent)
        moved = [spine_of(before, flow) for flow, _ in sent if spine_of(before, flow) != spine_of(after, flow)]
        assert "spine3" in moved
        assert "leaf1->spine3" not in carried(lab)
    finally:
        lab.link_up(cable)
        lab.swept()
    lab.report(reset=True)
    for stream in range(STREAMS):
        streams.post(stream, 30_000)
    streams.done(range(STREAMS))
    assert carried(lab) == hashed(before, [(streams.flow(stream), 30_000) for stream in range(STREAMS)])
    assert lab.report().retransmits == 0
    assert len({spine_of(before, streams.flow(stream)) for stream in range(STREAMS)}) == SPINES
