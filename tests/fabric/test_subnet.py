"""The subnet manager's addresses, tables and paths."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from fauxrdma.errors import ConfigError, FabricUnhealthy
from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.fabric.transport import INFINIBAND
from fauxrdma.topology.building import TopologyBuilder
from fauxrdma.topology.graph import STORE_AND_FORWARD, NodeKind, Topology
from fauxrdma.topology.host_shape import HostShape
from fauxrdma.topology.loading import load_topology
from fauxrdma.units import Rate

FABRICS = [("seed-two-switch", 5), ("seed-rail8", 5), ("seed-rail4", 3), ("fat-tree", 2), ("fat-tree", 13)]


def test_lids_count_hcas_in_host_order_and_then_switches() -> None:
    manager = SubnetManager(load_topology("seed-rail8", 2))
    assert [manager.lid(f"n{h}.hca{i}") for h in range(2) for i in range(1, 10)] == list(range(1, 19))
    assert [manager.lid(name) for name in ("leaf1", "leaf8", "spine1", "spine2")] == [19, 26, 27, 28]
    assert manager.lids == range(1, 29)
    assert all(manager.lid(manager.node(lid).name) == lid for lid in manager.lids)
    for lid in (0, 29, -1):
        with pytest.raises(FabricUnhealthy, match=f"nothing in seed-rail8 has LID {lid}: LIDs are 1..28"):
            manager.node(lid)
    with pytest.raises(FabricUnhealthy, match=r"n0.gpu0 has no LID"):
        manager.lid("n0.gpu0")


def test_more_devices_than_lids_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fauxrdma.fabric.subnet.MAX_LID", 27)
    with pytest.raises(ConfigError, match="seed-rail8 has 28 HCAs and switches: a subnet has 27 unicast LIDs"):
        SubnetManager(load_topology("seed-rail8", 2))
    assert len(SubnetManager(load_topology("fat-tree", 2)).lids) == 19


def test_guids_and_gids_are_unique_per_fabric_and_written_as_ibv_devinfo_does() -> None:
    topology = load_topology("fat-tree", 3)
    one, two = SubnetManager(topology, seed=1), SubnetManager(topology, seed=2)
    guids = {manager.guid(lid) for manager in (one, two) for lid in manager.lids}
    assert len(guids) == 2 * len(one.lids)
    assert all(0 < guid < 2**64 for guid in guids)
    digits = f"{one.guid(3):016x}"
    assert one.gid(3) == "fe80:0000:0000:0000:" + ":".join(digits[at : at + 4] for at in (0, 4, 8, 12))
    assert SubnetManager(topology, seed=1).tables == two.tables


@pytest.mark.parametrize(("name", "nodes"), FABRICS)
def test_every_pair_of_hcas_has_a_shortest_path_that_is_connected(name: str, nodes: int) -> None:
    topology = load_topology(name, nodes)
    manager = SubnetManager(topology)
    hcas = topology.hcas()
    for source in hcas:
        for target in hcas:
            path = manager.path(manager.lid(source.name), manager.lid(target.name))
            links = [topology.links[link] for link in path.links]
            assert all(a.dst == b.src for a, b in pairwise(links))
            assert len(set(path.links)) == len(path.links)
            first, last = topology.gpus_of(source), topology.gpus_of(target)
            assert links[0].src == (first[0].name if first else f"n{source.host}.mem")
            assert links[-1].dst == (last[0].name if last else f"n{target.host}.mem")
            leaves = {topology.fabric_link(source).dst, topology.fabric_link(target).dst}
            across = 2 if name == "seed-two-switch" else 3
            assert path.switches == (0 if source is target else 1 if len(leaves) == 1 else across)
            # Turning around inside an HCA touches PCIe only.
            assert path.rate == Rate(252 * 10**9 * 256 // 280 if source is target else 200 * 10**9 * 4096 // 4122)
            visited = [link.dst for link in links if topology.nodes[link.dst].kind is NodeKind.SWITCH]
            assert len(visited) == len(set(visited)) == path.switches


@pytest.mark.parametrize(("name", "nodes"), FABRICS)
def test_minhop_spreads_destinations_evenly_over_equal_ports(name: str, nodes: int) -> None:
    topology = load_topology(name, nodes)
    manager = SubnetManager(topology)
    for switch in topology.switches():
        own = topology.links_from(switch.name)
        load = Counter(
            manager.tables[switch.name][manager.lid(hca.name)]
            for hca in topology.hcas()
            if topology.fabric_link(hca).dst != switch.name
        )
        up = [k.src_port for k in own if topology.nodes[k.dst].kind is NodeKind.SWITCH and switch.tier == 0]
        if up and load:
            counts = [load[port] for port in up]
            assert max(counts) - min(counts) <= 1
        assert manager.tables[switch.name][manager.lid(switch.name)] == 0


def test_ties_go_to_the_port_with_fewest_destinations_then_to_the_lowest() -> None:
    manager = SubnetManager(load_topology("seed-rail8", 2))
    topology = manager.topology
    # leaf1: ports 1-5 to spine1, 6-10 to spine2, then hosts. Leaf2 has three HCAs, leaf3 to leaf8 two: it comes first.
    assert [k.dst for k in topology.links_from("leaf1")][:11] == ["spine1"] * 5 + ["spine2"] * 5 + ["n0.hca1"]
    remote = ["n0.hca2", "n1.hca2", "n1.hca9", *(f"n{host}.hca{leaf}" for leaf in range(3, 9) for host in (0, 1))]
    ports = [manager.tables["leaf1"][manager.lid(name)] for name in remote]
    assert ports == [n % 10 + 1 for n in range(len(remote))]


def test_routes_to_switches_are_set_but_not_counted() -> None:
    manager = SubnetManager(load_topology("seed-two-switch", 1))
    assert manager.tables["leaf1"][manager.lid("leaf2")] == 1  # after four HCAs on ports 1-4 each: all equal again
    assert set(manager.tables["leaf1"]) == set(manager.lids)
    rail = SubnetManager(load_topology("seed-rail8", 2))
    # 15 remote HCAs over ten ports leave ports 6-10 with one each: every leaf goes to the first of them.
    assert {rail.tables["leaf1"][rail.lid(f"leaf{n}")] for n in range(2, 9)} == {6}


def test_the_longer_way_is_never_taken() -> None:
    """A triangle of switches with a tail: distances differ, so a wrong table would show."""
    builder = TopologyBuilder(HostShape(gpus=4, storage_hcas=0))
    for name in ("a", "b", "c", "d"):
        builder.add_switch(name, 0, 8)
    builder.add_host(0)
    for i, name in enumerate(("a", "b", "c", "d"), start=1):
        builder.connect(f"n0.hca{i}", name, Rate.gbps(100), 1.0)
    for one, two in (("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")):
        builder.connect(one, two, Rate.gbps(50), 4.0)
    topology = builder.build(name="triangle", description="", hosts=1)
    manager = SubnetManager(topology)
    assert [manager.path(1, dlid).switches for dlid in (1, 2, 3, 4)] == [0, 2, 2, 3]
    assert manager.path(1, 4).rate == Rate(50 * 10**9 * 4096 // 4122)
    assert manager.path(1, 4).latency_ns == 900 + 3 * 130 + 5 * (1 + 4 + 4 + 1)
    assert manager.path(1, 1).latency_ns == 900
    assert [topology.links[link].name for link in manager.path(1, 1).links] == [
        "n0.gpu0->n0.pcie0", "n0.pcie0->n0.hca1", "n0.hca1->n0.pcie0", "n0.pcie0->n0.gpu0",
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "nodes"), FABRICS)
def test_a_small_message_takes_one_to_two_microseconds(name: str, nodes: int) -> None:
    manager = SubnetManager(load_topology(name, nodes))
    hcas = [manager.lid(hca.name) for hca in manager.topology.hcas()]
    latencies = {manager.path(a, b).latency_ns for a in hcas for b in hcas if a != b}
    assert all(1000 <= latency <= 2000 for latency in latencies)


def test_store_and_forward_adds_a_packet_time_per_switch() -> None:
    data = load_topology("seed-rail8", 2).to_dict()
    fast = SubnetManager(Topology.from_dict(data)).path(1, 2)
    slow = SubnetManager(Topology.from_dict({**data, "switching": STORE_AND_FORWARD})).path(1, 2)
    packet_ns = Rate.gbps(200).transfer_ns(4096 + 26)
    assert packet_ns == 165
    assert slow.latency_ns == fast.latency_ns + 3 * packet_ns


def test_header_efficiency_is_the_reference_s() -> None:
    assert INFINIBAND.efficiency(4096) == pytest.approx(0.9937, abs=5e-5)
    topology = load_topology("fat-tree", 1)
    pcie = next(link for link in topology.links if link.kind == "pcie")
    # PCIe gen4 x16 carries more payload than HDR: it must not be the bottleneck at 1:1.
    assert INFINIBAND.payload_rate(pcie, 4096) == Rate(252 * 10**9 * 256 // 280)
    assert INFINIBAND.payload_rate(topology.fabric_link(topology.hca(0, 1)), 4096).in_gbps == pytest.approx(
        198.74, abs=0.01
    )
    for speed in ("edr", "ndr", "xdr"):
        faster = load_topology(f"fat-tree:{speed}", 1)
        rates = {link.kind: INFINIBAND.payload_rate(link, 4096) for link in faster.links}
        assert rates["cable"] < rates["pcie"]


def test_paths_to_switches_or_nowhere_are_refused() -> None:
    manager = SubnetManager(load_topology("fat-tree", 2))
    with pytest.raises(FabricUnhealthy, match="LID 19 is leaf1: traffic runs between HCAs"):
        manager.path(1, 19)
    with pytest.raises(FabricUnhealthy, match="has LID 77"):
        manager.path(77, 1)
    del manager.tables["leaf1"][2]
    with pytest.raises(FabricUnhealthy, match=r"no route from n0.hca1 to n0.hca2: leaf1 has no port for LID 2"):
        manager.path(1, 2)
    wide = SubnetManager(load_topology("fat-tree", 4))
    last = wide.lid("n3.hca1")
    wide.tables["spine1"][last] = wide.tables["spine1"][1]  # back to where it came from: a routing loop
    for spine in wide.topology.switches():
        if spine.tier == 1:
            wide.tables[spine.name][last] = wide.tables[spine.name][1]
    with pytest.raises(FabricUnhealthy, match=r"no route from n0.hca1 to n3.hca1"):
        wide.path(1, last)
