"""The graph: links and their other directions, names, plain data, and what validation catches."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from fauxrdma.errors import ConfigError
from fauxrdma.topology.building import PortsExhausted, TopologyBuilder
from fauxrdma.topology.drawing import draw, runs
from fauxrdma.topology.graph import Topology
from fauxrdma.topology.host_shape import HostShape
from fauxrdma.topology.loading import load_topology
from fauxrdma.topology.presets import PRESETS
from fauxrdma.topology.summary import summarise
from fauxrdma.units import Rate


def small() -> TopologyBuilder:
    """Two hosts of two GPUs and three HCAs on two 8-port leaves, two parallel cables between them."""
    builder = TopologyBuilder(HostShape(gpus=2))
    builder.add_switch("leaf1", 0, 8)
    builder.add_switch("leaf2", 0, 8)
    for host in range(2):
        builder.add_host(host)
        for i in (1, 2, 3):
            builder.connect(f"n{host}.hca{i}", f"leaf{(i + 1) % 2 + 1}", Rate.gbps(100), 2.0)
    for _ in range(2):
        builder.connect("leaf1", "leaf2", Rate.gbps(200), 5.0)
    return builder


def built() -> Topology:
    return small().build(name="small", description="", hosts=2)


def test_a_cable_is_two_links_that_know_each_other() -> None:
    topology = built()
    for position, link in enumerate(topology.links):
        other = topology.links[link.reverse]
        assert link.id == position
        assert (other.src, other.src_port, other.dst, other.dst_port) == (
            link.dst, link.dst_port, link.src, link.src_port,
        )  # fmt: skip
        assert other.reverse == link.id
        assert (other.rate, other.length_m, other.kind) == (link.rate, link.length_m, link.kind)
    assert len({link.name for link in topology.links}) == len(topology.links)


def test_names_number_parallel_cables_only() -> None:
    names = {link.name for link in built().links}
    assert {"leaf1->leaf2:1", "leaf1->leaf2:2", "leaf2->leaf1:1", "leaf2->leaf1:2"} <= names
    assert {"n0.gpu0->n0.pcie0", "n0.hca1->leaf1", "leaf2->n1.hca2", "n1.hca3->n1.pcie1"} <= names


def test_ports_are_handed_out_in_order() -> None:
    topology = built()
    assert [(k.src_port, k.dst) for k in topology.links_from("leaf1")] == [
        (1, "n0.hca1"), (2, "n0.hca3"), (3, "n1.hca1"), (4, "n1.hca3"), (5, "leaf2"), (6, "leaf2"),
    ]  # fmt: skip
    assert [(k.src_port, k.kind) for k in topology.links_from("n0.hca1")] == [(0, "pcie"), (1, "cable")]


def test_a_full_switch_refuses_the_next_cable() -> None:
    builder = TopologyBuilder(HostShape())
    builder.add_switch("a", 0, 2)
    builder.add_switch("b", 0, 3)
    for _ in range(2):
        builder.connect("a", "b", Rate.gbps(100), 1.0)
    with pytest.raises(PortsExhausted, match="a has 2 ports and all are taken") as full:
        builder.connect("b", "a", Rate.gbps(100), 1.0)
    assert (full.value.switch, full.value.radix) == ("a", 2)


def test_looking_up_what_is_not_there_says_what_is() -> None:
    with pytest.raises(ConfigError, match=r"small has no n2.hca1: it has hosts n0..n1 with gpu0..gpu1 and hca1..hca3"):
        built().hca(2, 1)
    with pytest.raises(ConfigError, match=r"no n0.gpu2"):
        built().gpu(0, 2)
    with pytest.raises(ConfigError, match=r"no n0.hca0"):
        built().hca(0, 0)


@pytest.mark.parametrize("name", PRESETS)
def test_plain_data_and_back_is_the_same(name: str) -> None:
    topology = load_topology(name, 3, 2)
    again = Topology.from_dict(json.loads(json.dumps(topology.to_dict())))
    assert again == topology
    assert again.active_gpus == 2
    assert again != load_topology(name, 2, 2)


def _set(data: dict[str, Any], path: str, value: object) -> None:
    *steps, last = path.split(".")
    node: Any = data
    for step in steps:
        node = node[int(step)] if step.isdecimal() else node[step]
    node[int(last) if last.isdecimal() else last] = value


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("links.0.dst", "nowhere", "which does not exist"),
        ("links.0.id", 4, "wrong id"),
        ("links.2.name", "n0.gpu0->n0.pcie0", "a name in use"),
        ("links.0.reverse", 3, "no matching other direction"),
        ("links.0.reverse", 999, "no matching other direction"),
        ("links.1.rate_bps", 5, "no matching other direction"),
        ("nodes.0.radix", 3, "leaf1 has 3 ports"),
        ("nodes.0.kind", "router", "not a topology"),
        ("nodes.1.name", "leaf1", "same name"),
        ("nodes", [], "which does not exist"),
        ("links", [], "must have one cable to a switch, it has 0"),
        ("mtu", None, None),
    ],
)
def test_inconsistent_data_is_refused(path: str, value: object, says: str | None) -> None:
    data = copy.deepcopy(built().to_dict())
    if says is None:
        del data[path]
        says = "not a topology written by to_dict: KeyError: 'mtu'"
    else:
        _set(data, path, value)
    with pytest.raises(ConfigError, match=says):
        Topology.from_dict(data)


def test_two_cables_in_one_port_and_islands_are_refused() -> None:
    topology = built()
    data = topology.to_dict()
    first, second = (link for link in topology.links if link.name in ("n0.hca1->leaf1", "n0.hca3->leaf1"))
    data["links"][second.id]["dst_port"] = data["links"][second.reverse]["src_port"] = first.dst_port
    with pytest.raises(ConfigError, match="port 1 of leaf1 holds two cables"):
        Topology.from_dict(data)
    builder = TopologyBuilder(HostShape(gpus=2, storage_hcas=0))
    builder.add_switch("leaf1", 0, 8)
    builder.add_switch("leaf2", 0, 8)
    builder.add_host(0)
    builder.connect("n0.hca1", "leaf1", Rate.gbps(100), 1.0)
    builder.connect("n0.hca2", "leaf2", Rate.gbps(100), 1.0)
    with pytest.raises(ConfigError, match=r"n0.hca2 on leaf2 cannot be reached from n0.hca1"):
        builder.build(name="islands", description="", hosts=1)
    with pytest.raises(ConfigError, match="two nodes are named leaf1"):
        builder.add_switch("leaf1", 0, 8)
    with pytest.raises(ConfigError, match="switching must be cut-through or store-and-forward"):
        builder.build(name="x", description="", hosts=1, switching="teleport")


def test_the_summary_counts_and_finds_the_worst_oversubscription() -> None:
    summary = summarise(built())
    assert (summary.hosts, summary.gpus, summary.hcas, summary.switches, summary.cables) == (2, 4, 6, 2, 8)
    assert (summary.host_cables, summary.switch_cables) == (6, 2)
    assert summary.cable_rates == {Rate.gbps(100): 6, Rate.gbps(200): 2}
    (leaves,) = summary.tiers
    assert (leaves.ports, leaves.ports_used, leaves.down, leaves.up) == (16, 10, Rate.gbps(600), Rate.gbps(800))
    assert leaves.oversubscription == 1.0  # leaf1: 4 x 100 down, 2 x 200 across; leaf2: 2 x 100 down
    assert "6 x 100 Gb/s, 2 x 200 Gb/s" in "\n".join(summary.lines())
    assert "4.5:1 oversubscribed" in "\n".join(summarise(load_topology("seed-two-switch", 4)).lines())


def test_the_drawing_names_every_switch_and_every_bundle() -> None:
    assert draw(built()).splitlines() == [
        "leaf     [leaf1] [leaf2]",
        "         | 2 x 200 Gb/s between leaf1 and leaf2",
        "hosts    leaf1: n0-n1.{hca1,hca3}",
        "         leaf2: n0-n1.hca2",
    ]
    rail = draw(load_topology("seed-rail8", 4)).splitlines()
    assert rail[0] == "spine    [spine1] [spine2]"
    assert rail[1] == "         | 5 x 200 Gb/s between each of spine1-spine2 and each of leaf1-leaf8"
    assert rail[3] == "hosts    leaf1: n0-n3.hca1, n0.hca9"
    big = draw(load_topology("fat-tree", 72), width=80)
    assert max(map(len, big.splitlines())) <= 80
    assert all(f"[{switch.name}]" in big for switch in load_topology("fat-tree", 72).switches())


def test_runs_join_names_that_count_up() -> None:
    assert runs(["leaf1", "leaf2", "leaf3", "leaf7", "core", "n9", "n10"]) == "leaf1-leaf3,leaf7,core,n9-n10"
    assert runs([]) == ""
