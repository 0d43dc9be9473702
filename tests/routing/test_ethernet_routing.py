"""Routing on Ethernet: which of the equal ports a switch picks, and that flows and bytes go that way."""

from __future__ import annotations

from collections import Counter

import pytest

from fauxrdma.errors import ConfigError, RemoteProtocolError
from fauxrdma.fabric.routing import FlowKey, SwitchGraph, compute_routes
from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.fabric.sweep import LivingSubnet
from fauxrdma.runtime.subnet_state import SubnetState
from fauxrdma.topology.custom import load_fabric_text
from fauxrdma.topology.graph import ROCEV2, Topology
from fauxrdma.topology.loading import load_topology
from fauxrdma.wire.fabric_messages import CONTROL_VERSION, Counters, FlowStart, NodeHello, PairCounter, SprayCounter


def fabric(engine: str) -> Topology:
    data = load_topology("fat-tree", 4).to_dict()
    return Topology.from_dict({**data, "transport": ROCEV2, "routing": engine})


def far_pair(manager: SubnetManager) -> tuple[int, int]:
    return manager.lid("n0.hca1"), manager.lid("n3.hca1")


def uplink(manager: SubnetManager, flow: FlowKey) -> int:
    path = manager.flow_path(flow)
    first = path.ways[0] if path.ways else path.links
    return next(link for link in first if manager.topology.links[link].src == "leaf1")


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
    counts = Counter(ways)
    assert len(counts) == 18
    assert max(counts.values()) < 2 * 900 / 18  # 50 each on average: 100 would be seven standard deviations
    other_seed = SubnetManager(fabric("ecmp"), seed=2)
    assert ways != [uplink(other_seed, FlowKey(slid, dlid, label)) for label in range(900)]


def test_spray_takes_every_way_in_turn() -> None:
    """18 uplinks; each spine's cables down to the other leaf take its packets in turn."""
    manager = SubnetManager(fabric("spray"))
    topology = manager.topology
    path = manager.flow_path(FlowKey(*far_pair(manager), 5))
    for switch, cables in (("leaf1", 18), ("leaf2", 1)):
        counts = Counter(link for way in path.ways for link in way if topology.links[link].src == switch)
        assert set(counts.values()) == {len(path.ways) // cables}
        assert len(counts) == cables
    down = Counter(link for way in path.ways for link in way if topology.links[link].dst == "leaf2")
    assert len(set(down.values())) == 1
    assert len(down) == 18
    order = [next(link for link in way if topology.links[link].src == "leaf1") for way in path.ways]
    assert len(set(order[:18])) == 18
    assert path.rate == manager.path(*far_pair(manager)).rate  # one flow alone is bound by its own cable


def test_spray_begins_where_the_hash_of_the_flow_says() -> None:
    manager = SubnetManager(fabric("spray"), seed=1)
    slid, dlid = far_pair(manager)

    def first(manager: SubnetManager, label: int) -> int:
        way = manager.flow_path(FlowKey(slid, dlid, label)).ways[0]
        return next(link for link in way if manager.topology.links[link].src == "leaf1")

    starts = [first(manager, label) for label in range(100)]
    assert len(set(starts)) > 12
    assert starts != [first(SubnetManager(fabric("spray"), seed=2), label) for label in range(100)]


def test_a_cycle_loads_every_switch_evenly_where_spines_have_different_numbers_of_cables() -> None:
    """One cable from leaf1 to each of three spines; 1, 2 and 3 from them to leaf2: a third of the packets each."""
    topology = load_fabric_text(
        "uneven.yaml",
        """
name: uneven
transport: rocev2
routing: spray
hosts: {count: 2, gpus: 1}
switches:
  leaf{1..2}: {ports: 16}
  spine{1..3}: {ports: 16, tier: spine}
cables:
  - {from: n0.hca1, to: leaf1, rate: 100Gbps, length: 3m}
  - {from: n1.hca1, to: leaf2, rate: 100Gbps, length: 3m}
  - {from: leaf1, to: spine*, rate: 100Gbps, length: 3m}
  - {from: leaf2, to: spine1, rate: 100Gbps, length: 3m}
  - {from: leaf2, to: spine2, rate: 100Gbps, length: 3m, count: 2}
  - {from: leaf2, to: spine3, rate: 100Gbps, length: 3m, count: 3}
""",
    )
    path = SubnetManager(topology).flow_path(FlowKey(1, 2, 9))
    assert len(path.ways) == 3 * 6
    shares: dict[str, list[float]] = {}
    for link, share in zip(path.links, path.shares, strict=True):
        shares.setdefault(topology.links[link].src, []).append(round(share * 18))
    assert shares["leaf1"] == [6, 6, 6]
    assert [shares[f"spine{n}"] for n in (1, 2, 3)] == [[6], [3, 3], [2, 2, 2]]


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


def cycle_of(state: SubnetState, slid: int, dlid: int, label: int) -> int:
    return len(state.manager.flow_path(FlowKey(slid, dlid, label)).ways)


def test_bytes_by_way_must_be_as_many_as_the_flow_has_ways() -> None:
    state, slid, dlid = started("spray")
    with pytest.raises(RemoteProtocolError, match=r"counted \[1, 2\] bytes by way from LID 1 to \d+: that flow has 18"):
        state.count(0, Counters([], [], 0, [SprayCounter(slid, dlid, 3, [1, 2])]))


@pytest.mark.parametrize("engine", ["ecmp", "spray", "adaptive"])
def test_bytes_are_booked_on_the_links_the_flow_was_given(engine: str) -> None:
    state, slid, dlid = started(engine)
    for label in range(1, 7):
        state.flow_start(0, FlowStart(label, slid, dlid, 1.0, label), now=0)
        dealt = []
        if engine == "spray":  # the flow's first packet, by the first way of its cycle
            dealt = [SprayCounter(slid, dlid, label, [1000 + label] + [0] * (cycle_of(state, slid, dlid, label) - 1))]
        state.count(0, Counters([PairCounter(slid, dlid, 1000 + label, 1, 10, label)], [], 0, dealt))
    report = state.report(100)
    carried = {link.name: link.nbytes for link in report.links if link.src == "leaf1" and link.nbytes}
    assert sum(carried.values()) == sum(1000 + label for label in range(1, 7))
    assert report.routing == engine
    if engine == "adaptive":
        assert sorted(carried.values()) == [1000 + label for label in range(1, 7)]  # six flows, six cables
    if engine != "adaptive":
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
    ways = {uplink(manager, FlowKey(slid, dlid, label)) for label in range(400)}
    assert len(ways) == 17
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
