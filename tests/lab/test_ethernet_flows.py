"""On Ethernet every flow goes its own way, and the links' counters say so to the byte; over real daemons."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from ethernet_streams import HERE, SPINES, THERE, Streams, carried, four_spines, hashed, spine_of

from fauxrdma.errors import ConfigError
from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.lab.local import LocalLab

STREAMS = 12


@pytest.fixture(scope="module", params=[("none", 0), ("paced", 0), ("paced", 41), ("none", 7)], ids=str)
def ecmp(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalLab]:
    clock, seed = request.param
    fabric = four_spines(tmp_path_factory.mktemp("fabric"), "ecmp")
    with LocalLab(fabric, nodes=2, gpus=1, clock=clock, dilation=500, seed=seed) as running:
        yield running


def test_ecmp_counters_are_what_the_hash_of_each_flow_says(ecmp: LocalLab) -> None:
    """WRITEs are counted on the requester's way, READ responses on the responder's, which has a hash of its own."""
    manager = SubnetManager(ecmp.topology, ecmp.seed)
    streams = Streams(ecmp, STREAMS, timeout=20)
    try:
        ecmp.report(reset=True)
        sent = []
        for stream in range(STREAMS):
            streams.post(stream, 10_000 + stream, messages=3)
            streams.read(stream, 50_000 + stream)
            sent += [(streams.flow(stream), 3 * (10_000 + stream)), (streams.flow(stream, back=True), 50_000 + stream)]
        for stream in range(STREAMS):
            streams.done([stream], 4)
        assert ecmp.report().retransmits == 0
        assert carried(ecmp) == hashed(manager, sent)
        # 24 flows miss a spine now and then, but hardly two of the four.
        assert len({spine_of(manager, flow) for flow, _ in sent}) >= SPINES - 1
    finally:
        streams.close()


def test_what_a_queue_pair_sent_is_counted_on_its_way_after_it_is_gone(ecmp: LocalLab) -> None:
    manager = SubnetManager(ecmp.topology, ecmp.seed)
    streams = Streams(ecmp, 4, timeout=20)
    ecmp.report(reset=True)
    sent = []
    for stream in range(4):
        streams.post(stream, 77_000 + stream)
        sent.append((streams.flow(stream), 77_000 + stream))
        streams.done([stream])
        streams.qps[stream].close()
    streams.close()
    assert carried(ecmp) == hashed(manager, sent)


def test_the_manager_says_which_way_a_queue_pair_takes(ecmp: LocalLab) -> None:
    manager = SubnetManager(ecmp.topology, ecmp.seed)
    streams = Streams(ecmp, 4, timeout=20)
    for stream in range(4):
        path = ecmp.path(HERE, THERE, streams.qps[stream].qp_num)
        links = manager.flow_path(streams.flow(stream)).links
        assert path.links == [manager.topology.links[link].name for link in links]
    streams.close()
    with pytest.raises(ConfigError, match=r"no HCA 'n7\.hca1'"):
        ecmp.path("n7.hca1", THERE)


def uplink(path: list[str]) -> str:
    return next(link for link in path if link.startswith("leaf1->"))


def test_adaptive_counters_are_what_was_chosen(tmp_path: Path) -> None:
    """One stream is under way all the time; those that begin meanwhile, one after another, avoid its cable."""
    with LocalLab(four_spines(tmp_path, "adaptive"), nodes=2, gpus=1, clock="paced", dilation=500, seed=3) as lab:
        streams = Streams(lab, 4, timeout=20)
        lab.report(reset=True)
        streams.post(0, 500_000, messages=60)
        streams.done([0])
        busy = lab.path(HERE, THERE, streams.qps[0].qp_num).links
        expected = dict.fromkeys(busy, 0)
        for stream in (1, 2, 3):
            streams.post(stream, 30_000 + stream)
            streams.done([stream])
            way = lab.path(HERE, THERE, streams.qps[stream].qp_num).links
            assert uplink(way) != uplink(busy)
            for link in way:
                expected[link] = expected.get(link, 0) + 30_000 + stream
        assert lab.path(HERE, THERE, streams.qps[0].qp_num).links == busy
        streams.done([0], 59)
        for link in busy:
            expected[link] += 60 * 500_000
        assert lab.report().retransmits == 0
        assert carried(lab) == expected
        # Nothing is loaded now: every stream has the way its hash gives, counted apart from its last one.
        lab.report(reset=True)
        manager = SubnetManager(lab.topology, lab.seed)
        sent = []
        for stream in range(4):
            streams.post(stream, 40_000 + stream)
            streams.done([stream])
            sent.append((streams.flow(stream), 40_000 + stream))
        assert carried(lab) == hashed(manager, sent)
        streams.close()
