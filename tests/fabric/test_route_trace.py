"""Routes hop by hop: they are the tables' routes, their costs add up, and the reasons given are true."""

from __future__ import annotations

import itertools
import re
from collections import Counter

import pytest

from fauxrdma.errors import ConfigError
from fauxrdma.fabric import route_balance
from fauxrdma.fabric.route_balance import balance
from fauxrdma.fabric.route_trace import parse_end, trace_route
from fauxrdma.fabric.routing import ENGINES, FlowKey
from fauxrdma.fabric.routing.ethernet import ETHERNET_ENGINES
from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.fabric.sweep import LivingSubnet
from fauxrdma.topology.loading import load_topology


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("name", "nodes"), [("seed-rail8", 3), ("fat-tree", 4), ("seed-two-switch", 2)])
def test_a_trace_is_the_path_and_adds_up_to_it(name: str, nodes: int, engine: str) -> None:
    topology = load_topology(name, nodes)
    manager = SubnetManager(topology, engine=engine)
    hcas = [hca.name for hca in topology.hcas()]
    for source, target in itertools.product(hcas[::4], hcas[::3]):
        path = manager.flow_path(FlowKey(manager.lid(source), manager.lid(target)))
        traced = trace_route(manager, source, target)
        way = path.ways[0] if path.ways else path.links
        assert [hop.link for hop in traced.hops] == [topology.links[link].name for link in way]
        assert sum(hop.latency_ns for hop in traced.hops) == traced.latency_ns == path.latency_ns
        assert traced.rate == path.rate
        assert traced.switches == path.switches
        assert all(hop.reason for hop in traced.hops)


def test_reasons_name_what_decided() -> None:
    topology = load_topology("seed-rail8", 4)
    manager = SubnetManager(topology)
    why = {}
    for target in ("n1.hca1", "n1.hca2", "n3.hca8"):
        for hop in trace_route(manager, "n0.hca1", target).hops:
            why[hop.at, target] = (hop.port, hop.reason)
    assert why["n0.hca1", "n1.hca2"][1] == "the HCA's only cable"
    port, reason = why["leaf1", "n1.hca1"]
    assert reason == f"n1.hca1 is on port {port} of this switch"
    _, reason = why["leaf1", "n1.hca2"]
    assert reason.startswith("one of 10 ports that start a shortest way to leaf2 (2 hops); fewest destinations")
    _, reason = why["leaf2", "n1.hca2"]
    assert "on port" in reason


def test_the_numbers_in_a_reason_are_the_loads_of_the_moment() -> None:
    """minhop's choice, followed in its own order: what a reason says the port and the others had is what they had."""
    topology = load_topology("seed-two-switch", 2)
    manager = SubnetManager(topology)
    counts: Counter[int] = Counter()
    trunks = sorted(link.src_port for link in topology.links_from("leaf1") if link.dst == "leaf2")
    # All HCAs of leaf2 are assigned in the order of their ports.
    on_leaf2 = sorted((topology.fabric_link(hca).dst_port, hca.name) for hca in topology.hcas()
                      if topology.fabric_link(hca).dst == "leaf2")  # fmt: skip
    for _, name in on_leaf2:
        hop = next(hop for hop in trace_route(manager, "n0.hca1", name).hops if hop.at == "leaf1")
        match = re.search(r"it had (\d+), the others (\d+)(?: to (\d+))?$", hop.reason)
        assert match
        others = [counts[port] for port in trunks if port != hop.port]
        least, most = min(others), max(others)
        assert int(match[1]) == counts[hop.port] <= least
        assert (int(match[2]), int(match[3] or match[2])) == (least, most)
        assert ("lowest number" in hop.reason) == (counts[hop.port] == least)
        counts[hop.port] += 1


def test_a_single_way_is_said_to_be_the_only_one() -> None:
    manager = SubnetManager(load_topology("ring", 4))
    reasons = [hop.reason for hop in trace_route(manager, "n0.hca1", "n1.hca1").hops]
    assert any("the only port that starts a shortest way" in reason for reason in reasons), reasons


def test_what_was_kept_through_a_failure_is_said_to_be() -> None:
    subnet = LivingSubnet(SubnetManager(load_topology("seed-rail8", 2)))
    manager = subnet.manager
    for number in (1, 3, 4):
        subnet.link_down(f"leaf1->spine1:{number}", 0)
    while (due := subnet.next_ns()) is not None:
        subnet.poll(due)
    hcas = [hca.name for hca in manager.topology.hcas()]
    reasons = [hop.reason for name in hcas for hop in trace_route(manager, "n0.hca1", name).hops]
    assert any("kept from before a link changed" in reason for reason in reasons)


@pytest.mark.parametrize("text", ["n1.hca2", "n1.gpu1", "11", "0xb", "GID"])
def test_ends_by_every_name(text: str) -> None:
    manager = SubnetManager(load_topology("seed-rail8", 2))
    hca, memory = parse_end(manager, manager.gid(11).upper() if text == "GID" else text)
    assert (hca.name, memory.name) == ("n1.hca2", "n1.gpu1")


def test_a_gpus_route_begins_at_that_gpu() -> None:
    """Four GPUs to an HCA: the third's bytes come from its own memory."""
    manager = SubnetManager(load_topology("fat-tree:hdr,gpus_per_hca=4", 2))
    traced = trace_route(manager, "n0.gpu2", "n1.gpu3")
    assert (traced.hops[0].at, traced.hops[-1].to) == ("n0.gpu2", "n1.gpu3")
    assert [hop.at for hop in traced.hops if ".hca" in hop.at] == ["n0.hca1", "n1.hca1"]


@pytest.mark.parametrize(
    ("text", "hca", "memory"),
    [
        ("n1.mem", "n1.hca1", "n1.mem"),
        ("n1.mem@hca4", "n1.hca4", "n1.mem"),
        ("n1.gpu7@hca2", "n1.hca2", "n1.gpu7"),
        ("n1.dm@hca9", "n1.hca9", "n1.hca9"),
    ],
)
def test_memories_are_ends_by_any_hca_of_their_node(text: str, hca: str, memory: str) -> None:
    found = parse_end(SubnetManager(load_topology("seed-rail8", 2)), text)
    assert (found[0].name, found[1].name) == (hca, memory)


def test_a_route_runs_from_the_memory_to_the_memory_that_was_named() -> None:
    manager = SubnetManager(load_topology("seed-rail8", 2))

    def stops(source: str, target: str) -> str:
        traced = trace_route(manager, source, target)
        assert sum(hop.latency_ns for hop in traced.hops) == traced.latency_ns == 1060
        return " ".join([traced.hops[0].at, *(hop.to for hop in traced.hops)])

    assert stops("n0.mem", "n1.gpu1@hca1") == "n0.mem n0.pcie0 n0.hca1 leaf1 n1.hca1 n1.pcie0 n1.gpu1"
    assert stops("n0.gpu2@hca1", "n1.dm@hca1") == "n0.gpu2 n0.pcie1 n0.mem n0.pcie0 n0.hca1 leaf1 n1.hca1"
    assert stops("n0.dm@hca1", "n1.dm@hca1") == "n0.hca1 leaf1 n1.hca1"


def test_a_link_crossed_twice_gives_half() -> None:
    manager = SubnetManager(load_topology("fat-tree,gpudirect=off", 1))
    assert round(trace_route(manager, "n0.gpu0", "n0.gpu0").rate.in_gbps) == 115
    assert round(trace_route(manager, "n0.mem", "n0.mem").rate.in_gbps) == 230
    inside = trace_route(manager, "n0.dm@hca1", "n0.dm@hca1")
    assert (inside.hops, round(inside.rate.in_gbps), inside.latency_ns) == ((), 199, 900)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("n0.mem@hca17", "n0 has no HCA called hca17: write n0.mem@hca2"),
        ("n0.mem@n0.hca1", "n0 has no HCA called n0.hca1"),
        ("mem@hca1", "mem has no HCA called hca1"),
        ("n0.gpu8@hca1", "n0.gpu8 is no memory: there are n0.mem, n0.gpu0 to n0.gpu7, and n0.dm"),
        ("n0.pcie0@hca1", "n0.pcie0 is no memory"),
        ("n0.hca2@hca1", "n0.hca2 is no memory"),
    ],
)
def test_what_is_no_memory_of_a_node_is_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_end(SubnetManager(load_topology("seed-rail8", 2)), text)


@pytest.mark.parametrize(
    ("text", "says"),
    [("leaf1", "leaf1 is a switch"), ("n9.hca1", "nothing is called n9.hca1"), ("999", "999"), ("fe80::1", "fe80::1")],
)
def test_what_is_no_end_is_refused(text: str, says: str) -> None:
    manager = SubnetManager(load_topology("seed-rail8", 2))
    with pytest.raises(ConfigError, match=rf"{says}: a route's end is an HCA"):
        parse_end(manager, text)


@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine not in ETHERNET_ENGINES])
def test_balance_counts_every_route_over_every_cable(engine: str) -> None:
    topology = load_topology("seed-rail4", 2)
    manager = SubnetManager(topology, engine=engine)
    over: Counter[str] = Counter()
    switches: Counter[int] = Counter()
    lids = [manager.lid(hca.name) for hca in topology.hcas()]
    for slid, dlid in itertools.permutations(lids, 2):
        path = manager.path(slid, dlid)
        switches[path.switches] += 1
        over.update(topology.links[link].name for link in path.links)
    found = balance(manager)
    assert found.routes == len(lids) * (len(lids) - 1)
    assert found.by_switches == dict(switches)
    assert set(found.by_kind) == {"leaf->spine", "spine->leaf"}
    for kind, (count, least, mean, most) in found.by_kind.items():
        src = kind.split("->")[0]
        loads = [over[link.name] for link in topology.links
                 if link.src.startswith(src) and topology.nodes[link.dst].radix]  # fmt: skip
        assert (count, least, most) == (len(loads), min(loads), max(loads))
        assert mean == pytest.approx(sum(loads) / len(loads))


@pytest.mark.parametrize("engine", ["ecmp", "spray", "adaptive"])
def test_where_the_flow_decides_it_is_said(engine: str) -> None:
    manager = SubnetManager(load_topology("seed-rail8", 2), engine=engine)
    lids = manager.lid("n0.hca1"), manager.lid("n1.hca2")
    traced = trace_route(manager, "n0.hca1", "n1.hca2")
    path = manager.flow_path(FlowKey(*lids))
    links = [manager.topology.links[link].name for link in (path.ways[0] if path.ways else path.links)]
    assert [hop.link for hop in traced.hops] == links
    assert any(f"{engine} " in hop.reason for hop in traced.hops)


@pytest.mark.parametrize("engine", ["ecmp", "spray"])
@pytest.mark.parametrize(("name", "nodes"), [("seed-rail8", 4), ("fat-tree", 3), ("k-ary", 4)])
def test_on_ethernet_the_balance_is_what_the_engine_gives_each_flow(name: str, nodes: int, engine: str) -> None:
    topology = load_topology(name, nodes)
    manager = SubnetManager(topology, seed=3, engine=engine)
    over: Counter[str] = Counter()
    switches: Counter[int] = Counter()
    lids = [manager.lid(hca.name) for hca in topology.hcas()]
    for slid, dlid in itertools.permutations(lids, 2):
        path = manager.flow_path(FlowKey(slid, dlid, 77))
        switches[path.switches] += 1
        for link, share in zip(path.links, path.shares, strict=True):
            over[topology.links[link].name] += share  # type: ignore[assignment]
    found = balance(manager, 77)
    assert found.routes == len(lids) * (len(lids) - 1)
    assert found.by_switches == dict(switches)
    for kind, (count, least, mean, most) in found.by_kind.items():
        tiers = kind.split("->")
        loads = [over[link.name] for link in topology.links
                 if link.src.startswith(tiers[0]) and link.dst.startswith(tiers[1])]  # fmt: skip
        assert count == len(loads)
        assert (least, mean, most) == pytest.approx((min(loads), sum(loads) / len(loads), max(loads)))
    assert balance(manager, 78) != found or engine == "spray"
    assert ("parts of routes" if engine == "spray" else "queue pair 0x4d") in found.counted


def test_adaptive_balance_is_even_where_the_hash_is_not() -> None:
    topology = load_topology("seed-rail8", 6)
    spread = {}
    for engine in ("ecmp", "adaptive"):
        found = balance(SubnetManager(topology, engine=engine))
        _, least, _, most = found.by_kind["leaf->spine"]
        spread[engine] = most - least
    assert 2 * spread["adaptive"] < spread["ecmp"]


def test_of_too_many_pairs_some_are_counted_and_it_is_said() -> None:
    topology = load_topology("seed-rail8", 26, 8)
    manager = SubnetManager(topology, engine="ecmp")
    whole = balance(manager)
    route_balance.MAX_FLOWS, kept = 5000, route_balance.MAX_FLOWS
    try:
        part = balance(manager)
    finally:
        route_balance.MAX_FLOWS = kept
    assert whole.routes / part.routes == pytest.approx(len(topology.hcas()) ** 2 / 5000, rel=0.1)
    assert "th is counted" in part.counted
    assert "th is counted" not in whole.counted
    for kind, (count, _, mean, _) in part.by_kind.items():
        assert mean * count / part.routes == pytest.approx(whole.by_kind[kind][2] * count / whole.routes, rel=0.1)
