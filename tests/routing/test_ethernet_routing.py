"""Routing on Ethernet: which of the equal ports a switch picks, and that flows and bytes go that way."""

from __future__ import annotations

from collections import Counter

import pytest

from fauxrdma.errors import ConfigError
from fauxrdma.fabric.routing import FlowKey, SwitchGraph, compute_routes
from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.fabric.sweep import LivingSubnet
from fauxrdma.runtime.subnet_state import SubnetState
from fauxrdma.topology.graph import ROCEV2, Topology
from fauxrdma.topology.loading import load_topology
from fauxrdma.wire.fabric_messages import CONTROL_VERSION, Counters, FlowStart, NodeHello, PairCounter


def fabric(engine: str) -> Topology:
    data = load_topology("fat-tree", 4).to_dict()
    return Topology.from_dict({**data, "transport": ROCEV2, "routing": engine})


def far_pair(manager: SubnetManager) -> tuple[int, int]:
    return manager.lid("n0.hca1"), manager.lid("n3.hca1")


def uplink(manager: SubnetManager, flow: FlowKey) -> int:
    path = manager.flow_path(flow)
    return next(link for link in path.links if manager.topology.links[link].src == "leaf1")


def test_choices_are_all_ports_that_start_a_shortest_path() -> None:
    graph = SwitchGraph.of(fabric("ecmp"))
    routes = compute_routes(graph, "ecmp", seed=3)
    far = next(end for end in graph.endpoints if end.switch == 1)
    near = next(end for end in graph.endpoints if end.switch == 0)
    assert routes.choices(0, far.lid) == tuple(trunk.port for trunk in graph.trunks[0])
    assert len(routes.choices(0, far.lid)) == 18
    assert routes.choices(0, near.lid) == (near.port,)
    assert compute_routes(graph, "minhop").choices(0, far.lid) == (routes.tables["leaf1"][far.lid],)


def test_ecmp_keeps_a_flow_on_its_way_and_spreads_flows() -> None:
    manager = SubnetManager(fabric("ecmp"), seed=1)
    slid, dlid = far_pair(manager)
    ways = [uplink(manager, FlowKey(slid, dlid, label)) for label in range(900)]
    assert ways == [uplink(manager, FlowKey(slid, dlid, label, burst=9)) for label in range(900)]
    counts = Counter(ways)
    assert len(counts) == 18
    assert max(counts.values()) < 2 * 900 / 18  # 50 each on average: 100 would be seven standard deviations
    other_seed = SubnetManager(fabric("ecmp"), seed=2)
    assert ways != [uplink(other_seed, FlowKey(slid, dlid, label)) for label in range(900)]


def test_spray_takes_every_way_in_turn() -> None:
    manager = SubnetManager(fabric("spray"))
    slid, dlid = far_pair(manager)
    counts = Counter(uplink(manager, FlowKey(slid, dlid, 5, burst)) for burst in range(36))
    assert set(counts.values()) == {2}
    assert len(counts) == 18


def test_adaptive_takes_the_least_loaded_cable() -> None:
    manager = SubnetManager(fabric("adaptive"))
    slid, dlid = far_pair(manager)
    up = [link.id for link in manager.topology.links_from("leaf1") if link.dst.startswith("spine")]
    for idle in up:
        path = manager.flow_path(FlowKey(slid, dlid), lambda link, idle=idle: 0 if link == idle else 1)
        assert idle in path.links


def started(engine: str) -> tuple[SubnetState, int, int]:
    state = SubnetState(SubnetManager(fabric(engine)), "paced", 1000.0)
    state.join(NodeHello(CONTROL_VERSION, 0, "127.0.0.1", 4000, "here", 1))
    return (state, *far_pair(state.manager))


@pytest.mark.parametrize("engine", ["ecmp", "spray", "adaptive"])
def test_bytes_are_booked_on_the_links_the_flow_was_given(engine: str) -> None:
    state, slid, dlid = started(engine)
    for label in range(1, 7):
        state.flow_start(0, FlowStart(label, slid, dlid, 1.0, label), now=0)
        state.count(0, Counters([PairCounter(slid, dlid, 1000 + label, 1, 10, label)], [], 0))
    report = state.report(100)
    carried = {link.name: link.nbytes for link in report.links if link.src == "leaf1" and link.nbytes}
    assert sum(carried.values()) == sum(1000 + label for label in range(1, 7))
    assert report.routing == engine
    if engine == "adaptive":
        assert sorted(carried.values()) == [1000 + label for label in range(1, 7)]  # six flows, six cables
    if engine == "ecmp":
        expected: Counter[str] = Counter()
        for label in range(1, 7):
            link = uplink(state.manager, FlowKey(slid, dlid, label))
            expected[state.topology.links[link].name] += 1000 + label
        assert carried == expected


def test_an_engine_is_for_its_transport_only() -> None:
    with pytest.raises(ConfigError, match="routing 'ecmp' is not for infiniband: it is one of minhop, updn"):
        load_topology("seed-rail8", 2).with_routing("ecmp")
    with pytest.raises(ConfigError, match="routing 'ftree' is not for rocev2: it is one of ecmp"):
        fabric("spray").with_routing("ftree")
    assert load_topology("seed-rail8", 2).with_routing("dfsssp").routing == "dfsssp"


@pytest.mark.parametrize("engine", ["ecmp", "spray", "adaptive"])
def test_after_a_sweep_no_flow_takes_a_dead_cable(engine: str) -> None:
    manager = SubnetManager(fabric(engine))
    slid, dlid = far_pair(manager)
    dead = next(link for link in manager.topology.links_from("leaf1") if link.dst.startswith("spine"))
    subnet = LivingSubnet(manager)
    subnet.link_down(dead.name, 0)
    while (due := subnet.next_ns()) is not None:
        subnet.poll(due)
    ways = {uplink(manager, FlowKey(slid, dlid, label, burst=label)) for label in range(400)}
    assert len(ways) == 17 or engine == "adaptive"
    assert dead.id not in ways


def test_a_sweep_of_updn_still_never_goes_up_again() -> None:
    manager = SubnetManager(load_topology("fat-tree", 6), engine="updn")
    subnet = LivingSubnet(manager)
    topology = manager.topology
    for dead in [link for link in topology.links_from("leaf1") if link.dst == "spine1"]:
        subnet.link_down(dead.name, 0)
    while (due := subnet.next_ns()) is not None:
        subnet.poll(due)
    assert manager.routes.engine == "updn"
    assert manager.routes.warnings == ()
    for lid in range(1, 55):
        for switch, table in manager.tables.items():
            assert table.get(lid) == manager.routes.tables[switch].get(lid)
