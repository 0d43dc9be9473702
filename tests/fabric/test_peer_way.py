"""Ways between the GPUs of a host: they follow the graph, at the graph's rates."""

from __future__ import annotations

from itertools import pairwise

import pytest

from fauxrdma.errors import ConfigError
from fauxrdma.fabric.peer_port import PeerPort
from fauxrdma.fabric.peer_way import NVLINK_NS, PCIE_NS, peer_way
from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.topology.loading import load_topology

FABRICS = ["seed-rail8", "seed-rail4", "fat-tree,nvlink=on", "rail-only", "superpod", "seed-two-switch"]


@pytest.mark.parametrize("fabric", FABRICS)
def test_a_way_is_a_walk_through_the_graph_at_its_payload_rate(fabric: str) -> None:
    topology = load_topology(fabric, 2, 4)
    manager = SubnetManager(topology)
    by_name = {link.name: link for link in topology.links}
    for a in range(4):
        for b in range(4):
            if a == b:
                continue
            way = peer_way(topology.shape, 1, a, b)
            rate = 0
            for lane in zip(*way.hops, strict=True):
                stripe = [by_name[name] for name in lane]
                assert stripe[0].src == f"n1.gpu{a}"
                assert stripe[-1].dst == f"n1.gpu{b}"
                assert all(x.dst == y.src for x, y in pairwise(stripe))
                rate += min(manager.payload_rate(link.id).bits_per_s for link in stripe)
            assert way.rate.bits_per_s == rate
            assert way.latency_ns == (NVLINK_NS if topology.shape.nvlink_rate else PCIE_NS)


def test_gpus_behind_one_pcie_switch_meet_there_only_with_gpudirect() -> None:
    direct = load_topology("seed-rail8", 1, 8).shape
    assert direct.nvlink_rate is None
    assert len(peer_way(direct, 0, 0, 1).links) == 2
    assert len(peer_way(direct, 0, 1, 2).links) == 4
    detour = load_topology("seed-rail8,gpudirect=off", 1, 8).shape
    assert peer_way(detour, 0, 0, 1).links == (
        "n0.gpu0->n0.pcie0",
        "n0.pcie0->n0.mem",
        "n0.mem->n0.pcie0",
        "n0.pcie0->n0.gpu1",
    )


@pytest.mark.parametrize(("a", "b"), [(0, 0), (-1, 0), (0, 8)])
def test_other_gpus_are_refused(a: int, b: int) -> None:
    with pytest.raises(ConfigError, match="a host with GPUs"):
        peer_way(load_topology("seed-rail8", 1, 8).shape, 0, a, b)


class TestPort:
    def test_messages_leave_one_after_the_other(self) -> None:
        port = PeerPort()
        assert port.send(100, 1000, 10.0) == 100
        assert port.send(120, 500, 10.0) == 200
        assert port.send(1000, 500, 10.0) == 1000

    def test_one_message_takes_its_time_on_the_wire_and_the_latency(self) -> None:
        assert PeerPort().receive(100, 1000, 10.0, 600) == 100 + 600 + 100

    def test_two_senders_share_the_receivers_port(self) -> None:
        port = PeerPort()
        first = port.receive(0, 1000, 10.0, 600)
        assert port.receive(0, 1000, 10.0, 600) == first + 100

    def test_a_stream_arrives_at_the_rate_it_left(self) -> None:
        sender, receiver = PeerPort(), PeerPort()
        due = [receiver.receive(sender.send(0, 1000, 10.0), 1000, 10.0, 600) for _ in range(5)]
        assert due == [700, 800, 900, 1000, 1100]
