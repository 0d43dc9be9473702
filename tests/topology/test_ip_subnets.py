"""Where Ethernet fabrics are cut into IP subnets, and which links end what has no IP header."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from fauxrdma.errors import ConfigError, FabricUnhealthy
from fauxrdma.fabric.route_trace import trace_route
from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.fabric.sweep import LivingSubnet
from fauxrdma.topology.formats.registry import read_fabric, write_fabric
from fauxrdma.topology.graph import Topology
from fauxrdma.topology.ip_subnets import ip_subnets, links_into_routers, routers
from fauxrdma.topology.loading import load_topology
from fauxrdma.topology.summary import summarise


def test_a_fabric_is_one_subnet_unless_it_routes() -> None:
    topology = load_topology("k-ary,transport=rocev2", 14)
    assert set(ip_subnets(topology).values()) == {0}
    assert routers(topology) == frozenset()
    assert links_into_routers(topology) == frozenset()


def test_every_leaf_below_routing_spines_is_a_subnet() -> None:
    """seed-rail8: HCA i of every host is on leaf i, and HCA9 of host n on leaf n mod 8 + 1."""
    topology = load_topology("seed-rail8,transport=rocev2,routed=spine", 3)
    assert routers(topology) == {"spine1", "spine2"}
    subnets = ip_subnets(topology)
    assert [subnets[f"n2.hca{i}"] for i in range(1, 10)] == [0, 1, 2, 3, 4, 5, 6, 7, 2]
    assert len(links_into_routers(topology)) == 80  # one direction of every leaf-spine cable


def test_every_pod_below_routing_cores_is_a_subnet() -> None:
    """k-ary with k = 8: pods of 4 leaves x 4 ports for HCAs."""
    topology = load_topology("k-ary,transport=iwarp,routed=core,gpus=1,storage_hcas=0", 40)
    assert Counter(ip_subnets(topology).values()) == {0: 16, 1: 16, 2: 8}


@pytest.mark.parametrize("transport", ["rocev1", "rocev2", "iwarp"])
def test_only_what_has_an_ip_header_crosses(transport: str) -> None:
    subnet = LivingSubnet(SubnetManager(load_topology(f"seed-rail8,transport={transport},routed=spine", 2)))
    manager = subnet.manager
    here, rail, across = (manager.lid(name) for name in ("n0.hca1", "n1.hca1", "n1.hca2"))
    assert subnet.follow(manager.path(here, rail).links).lost_at == ""  # over leaf1 alone
    far = subnet.follow(manager.path(here, across).links)
    way = subnet.way(here, across)
    if transport == "rocev1":
        assert far.lost_at == way.lost_at
        assert far.lost_at.startswith("spine")
        assert manager.topology.links[far.links[-1]].dst == far.lost_at  # it gets to the router, and ends there
    else:
        assert (far.lost_at, way.lost_at) == ("", "")


def test_a_router_ends_multicast_of_rocev1() -> None:
    for transport, reached in (("rocev1", 2), ("rocev2", 3)):
        subnet = LivingSubnet(SubnetManager(load_topology(f"seed-rail8,transport={transport},routed=spine", 2)))
        lids = [subnet.manager.lid(name) for name in ("n0.hca1", "n1.hca1", "n1.hca2")]
        subnet.set_members(0xC000, lids)
        assert len(subnet.deliver(lids[0], 0xC000).latency_ns) == reached


def test_where_it_routes_travels_with_the_fabric(tmp_path: Path) -> None:
    topology = load_topology("seed-rail8,transport=rocev1,routed=spine", 2)
    assert Topology.from_dict(topology.to_dict()) == topology
    for name in ("yaml", "graphml", "containerlab", "ibnetdiscover", "nccl"):
        (tmp_path / name).write_text(write_fabric(topology, name))
        assert read_fabric(str(tmp_path / name)).topology == topology


def test_what_cannot_route_is_refused() -> None:
    with pytest.raises(ConfigError, match="routed says where IP subnets end, and infiniband has none"):
        load_topology("fat-tree,routed=spine")
    with pytest.raises(ConfigError, match="routed is 'core', its switches are leaf"):
        load_topology("single-switch,transport=rocev2,routed=core")


def test_the_summary_counts_subnets_and_a_route_says_where_it_ends() -> None:
    routed = load_topology("seed-rail8,transport=rocev1,routed=spine", 2)
    assert "8 IP subnets, joined by switches that route" in summarise(routed).lines()
    assert not any("IP subnet" in line for line in summarise(load_topology("seed-rail8,transport=rocev1", 2)).lines())
    with pytest.raises(FabricUnhealthy, match=r"n0.hca1 to n1.hca2: .*spine\d is a router, which drops .* as rocev1"):
        trace_route(SubnetManager(routed), "n0.hca1", "n1.hca2")
    assert trace_route(SubnetManager(routed), "n0.hca1", "n1.hca1").switches == 1
