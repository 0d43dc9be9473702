"""Multicast trees: every member once, every cable once, from every sender; roots and masks by OpenSM's rules."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from fauxrdma.fabric.multicast_tree import MulticastTree
from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.fabric.sweep import LivingSubnet
from fauxrdma.topology.loading import load_topology

FABRICS = [("seed-rail8", 4), ("fat-tree", 6), ("seed-two-switch", 2), ("ring", 5), ("k-ary", 8)]


@pytest.mark.parametrize(("name", "nodes"), FABRICS)
def test_each_member_gets_it_once_over_each_cable_once(name: str, nodes: int) -> None:
    topology = load_topology(name, nodes)
    manager = SubnetManager(topology)
    lids = [manager.lid(hca.name) for hca in topology.hcas()]
    rng = random.Random(7)
    for size in (1, 2, 3, len(lids) // 2, len(lids)):
        members = set(rng.sample(lids, size))
        tree = MulticastTree(manager, members)
        for slid in rng.sample(lids, 6):
            sent = tree.deliver(slid)
            assert set(sent.latency_ns) == members
            cables = manager.cables_of(sent.links)
            assert max(Counter(cables).values()) == 1
            assert sent.lost_at == ()
            into = Counter(topology.links[link].dst for link in cables)
            assert max(into.values()) == 1  # no switch and no HCA is reached twice
            if slid in members:
                assert sent.latency_ns[slid] == manager.path(slid, slid).latency_ns


@pytest.mark.parametrize(("name", "nodes"), FABRICS)
def test_the_root_is_nearest_to_its_farthest_member(name: str, nodes: int) -> None:
    topology = load_topology(name, nodes)
    manager = SubnetManager(topology)
    members = [manager.lid(f"n{node}.hca{1 + node % 2}") for node in range(nodes)]
    tree = MulticastTree(manager, members)
    graph = manager.routes.graph
    leaves = [graph.number[topology.fabric_link(manager.node(lid)).dst] for lid in members]
    farthest = [max(int(graph.hops[at, leaf]) for leaf in leaves) for at in range(len(graph.switches))]
    assert graph.number[tree.root] == farthest.index(min(farthest))


def test_masks_are_the_members_ports_and_the_ways_to_the_root() -> None:
    topology = load_topology("seed-rail8", 2)
    manager = SubnetManager(topology)
    tree = MulticastTree(manager, [manager.lid("n0.hca1"), manager.lid("n1.hca1")])
    assert tree.root == "leaf1"
    own = {topology.fabric_link(topology.hca(node, 1)).dst_port for node in (0, 1)}
    assert tree.masks == {"leaf1": own}  # one switch is the whole tree
    wide = MulticastTree(manager, [manager.lid("n0.hca1"), manager.lid("n1.hca2")])
    assert set(wide.masks) == {"leaf1", "leaf2", wide.root}
    ports = {(link.src, link.src_port): link for link in topology.links}
    for switch, mask in wide.masks.items():
        for port in mask:
            there = ports[switch, port]
            assert there.dst not in wide.masks or there.dst_port in wide.masks[there.dst]


def test_no_members_no_tree() -> None:
    manager = SubnetManager(load_topology("seed-rail8", 2))
    tree = MulticastTree(manager, [])
    assert (tree.root, tree.masks) == ("", {})
    sent = tree.deliver(1)
    assert sent.latency_ns == {}
    assert [manager.topology.links[link].dst for link in sent.links][-1] == "leaf1"  # which drops it


def test_a_dead_branch_loses_what_is_behind_it_until_the_tree_is_new() -> None:
    topology = load_topology("seed-rail8", 4)
    subnet = LivingSubnet(SubnetManager(topology))
    manager = subnet.manager
    members = [manager.lid(f"n{node}.hca{rail}") for node in range(4) for rail in (1, 2, 3)]
    tree = MulticastTree(manager, members)
    slid = manager.lid("n0.hca1")
    whole = tree.deliver(slid)
    branch = next(topology.links[k] for k in whole.links if topology.links[k].dst == "leaf3")
    cut = tree.deliver(slid, {branch.id, branch.reverse})
    behind = {manager.lid(f"n{node}.hca3") for node in range(4)}
    assert set(cut.latency_ns) == set(members) - behind
    assert cut.lost_at == (branch.name,)
    assert set(cut.links) < set(whole.links)
    subnet.link_down(branch.name, 0)
    while (due := subnet.next_ns()) is not None:
        subnet.poll(due)
    again = MulticastTree(manager, members).deliver(slid, {branch.id, branch.reverse})
    assert set(again.latency_ns) == set(members)
    assert again.lost_at == ()
