"""Links that go down and come up: what changes in the tables, when, and what is lost meanwhile. Virtual time only."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest

from fauxrdma.errors import ConfigError, FabricUnhealthy
from fauxrdma.fabric.routing import ENGINES
from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.fabric.sweep import LivingSubnet, SweepTiming, changed_entries
from fauxrdma.ib.enums import PortState
from fauxrdma.topology.graph import Topology
from fauxrdma.topology.loading import load_topology

FABRICS = {"seed-rail8": 4, "seed-two-switch": 2, "fat-tree": 6, "seed-rail4": 2}


def living(topology: Topology, engine: str = "minhop") -> LivingSubnet:
    return LivingSubnet(SubnetManager(topology, engine=engine))


def settle(subnet: LivingSubnet) -> int:
    """Let all traps and sweeps happen; returns when the last ended."""
    now = 0
    while (due := subnet.next_ns()) is not None:
        now = due
        subnet.poll(now)
    return now


def used(topology: Topology, tables: Mapping[str, Mapping[int, int]], dead: set[int]) -> set[tuple[str, int]]:
    """(switch, LID) of every entry whose way, followed hop by hop, goes over a dead link."""
    ports = {(link.src, link.src_port): link for link in topology.links}
    out = set()
    for name, table in tables.items():
        for lid in table:
            at = name
            while (port := tables[at].get(lid)) and topology.nodes[at].tier is not None:
                link = ports[at, port]
                if link.id in dead:
                    out.add((name, lid))
                if topology.nodes[link.dst].radix is None:
                    break
                at = link.dst
    return out


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("name", "nodes"), FABRICS.items())
def test_only_entries_that_used_the_dead_link_change(name: str, nodes: int, engine: str) -> None:
    topology = load_topology(name, nodes)
    trunks = [k for k in topology.links if k.kind == "cable" and topology.nodes[k.src].radix and k.id < k.reverse]
    trunks = [k for k in trunks if topology.nodes[k.dst].radix]
    assert trunks
    for link in trunks[:: max(1, len(trunks) // 12)]:
        subnet = living(topology, engine)
        old = subnet.manager.routes
        before = subnet.manager.tables
        dead = {link.id, link.reverse}
        over = used(topology, before, dead)
        ports = {(k.src, k.src_port): k for k in topology.links}
        subnet.link_down(link.name, 0)
        settle(subnet)
        after = subnet.manager.tables
        changed = changed_entries(old, subnet.manager.routes)
        assert changed <= over
        # What left through the dead ports had to change; the rest of `over` did only where a neighbour is no way on.
        assert {(s, lid) for s, lid in over if ports[s, before[s][lid]].id in dead} <= changed
        assert subnet.sweeps[-1].changed == changed
        assert not used(topology, after, dead)
        hcas = [subnet.manager.lid(hca.name) for hca in topology.hcas()]
        for slid, dlid in itertools.permutations(hcas, 2):
            assert not dead & set(subnet.manager.path(slid, dlid).links)


def test_parallel_cables_take_the_dead_ones_destinations_alone() -> None:
    """seed-rail8 has five cables from each leaf to each spine: one dies, and exactly its own entries move."""
    topology = load_topology("seed-rail8", 4)
    subnet = living(topology)
    before = subnet.manager.tables
    link = subnet.link_down("leaf1->spine1:2", 0)
    settle(subnet)
    out_of_leaf = {("leaf1", lid) for lid, port in before["leaf1"].items() if port == link.src_port}
    out_of_spine = {("spine1", lid) for lid, port in before["spine1"].items() if port == link.dst_port}
    assert out_of_leaf
    assert out_of_spine
    assert subnet.sweeps[-1].changed == out_of_leaf | out_of_spine
    # To the four others and the five of spine2, evenly: none of them has more than one more than another had.
    counts = [list(subnet.manager.tables["leaf1"].values()).count(port) for port in range(31, 41) if port != 32]
    assert max(counts) - min(counts) <= 2


def test_a_switch_that_loses_its_last_cable_down_is_gone_round() -> None:
    """fat-tree of 6 nodes: a leaf with all its cables to one spine dead. Other leaves no longer go there for it."""
    topology = load_topology("fat-tree", 6)
    subnet = living(topology)
    spine = next(s.name for s in topology.switches() if s.tier == 1)
    cables = [k for k in topology.links_from("leaf1") if k.dst == spine]
    before = subnet.manager.tables
    for link in cables:
        subnet.link_down(link.name, 0)
    settle(subnet)
    ports = {(k.src, k.src_port): k for k in topology.links}
    behind = [lid for lid, port in before["leaf1"].items() if port and topology.nodes[ports["leaf1", port].dst].host]
    assert behind
    for leaf in ("leaf2", "leaf3"):
        for lid in behind:
            assert ports[leaf, subnet.manager.tables[leaf][lid]].dst != spine
    assert subnet.sweeps[-1].changed <= used(topology, before, {i for k in cables for i in (k.id, k.reverse)})


@pytest.mark.parametrize(("name", "nodes"), FABRICS.items())
def test_up_again_gives_the_tables_of_the_start(name: str, nodes: int) -> None:
    topology = load_topology(name, nodes)
    subnet = living(topology)
    before = subnet.manager.tables
    trunk = next(k for k in topology.links if topology.nodes[k.src].tier == 0 and topology.nodes[k.dst].radix)
    subnet.link_down(trunk.name, 0)
    now = settle(subnet)
    assert dict(subnet.manager.tables) != dict(before)
    subnet.link_up(trunk.name, now)
    settle(subnet)
    assert dict(subnet.manager.tables) == dict(before)
    assert [bool(sweep.down) for sweep in subnet.sweeps] == [True, False]


def test_time_passes_between_failure_trap_sweep_and_tables() -> None:
    topology = load_topology("seed-rail8", 2)
    timing = SweepTiming(detect_ns=1000, smp_ns=10, smps_on_wire=4, entry_ns=0)
    subnet = LivingSubnet(SubnetManager(topology), timing)
    manager = subnet.manager
    slid, dlid = manager.lid("n0.hca1"), manager.lid("n1.hca2")
    first = manager.path(slid, dlid)
    uplink = topology.links[first.links[3]]
    assert uplink.src == "leaf1"
    assert topology.nodes[uplink.dst].tier == 1
    subnet.link_down(uplink.name, 500)
    assert subnet.way(slid, dlid).lost_at == uplink.name
    assert subnet.way(slid, dlid).links == first.links[:3]
    assert subnet.next_ns() == 1500
    assert subnet.poll(1500) == []  # the sweep has begun
    # NodeInfo both ways over the live cables; NodeDescription of 28; SwitchInfo of 10; PortInfo of 41 each, and 18.
    cables = 2 * (18 + 80) - 2
    smps = cables + 28 + 10 + 10 * 41 + 18
    blocks = 2  # the leaf's and the spine's only one
    ends = 1500 + -(-(smps + blocks) // 4) * 10
    assert subnet.next_ns() == ends
    assert subnet.poll(ends - 1) == []
    assert subnet.way(slid, dlid).lost_at == uplink.name
    [sweep] = subnet.poll(ends)
    assert (sweep.started_ns, sweep.ended_ns, sweep.down) == (1500, ends, (uplink.name,))
    assert subnet.way(slid, dlid).lost_at == ""
    assert subnet.way(slid, dlid).links == manager.path(slid, dlid).links != first.links
    assert subnet.settled
    assert subnet.next_ns() is None


def test_a_failure_during_a_sweep_waits_for_the_next() -> None:
    subnet = living(load_topology("seed-rail8", 2))
    subnet.link_down("leaf1->spine1:1", 0)
    trap = subnet.next_ns()
    assert trap is not None
    subnet.poll(trap)
    subnet.link_down("leaf2->spine1:1", trap + 1)
    settle(subnet)
    first, second = subnet.sweeps
    assert first.down == ("leaf1->spine1:1",)
    assert second.down == ("leaf1->spine1:1", "leaf2->spine1:1")
    assert second.started_ns == max(first.ended_ns, trap + 1 + subnet.timing.detect_ns)


def test_two_failures_before_the_trap_are_one_sweep() -> None:
    subnet = living(load_topology("seed-rail8", 2))
    subnet.link_down("leaf1->spine1:1", 0)
    subnet.link_down("leaf1->spine1:1", 5)
    subnet.link_down("leaf2->spine1:1", 10)
    settle(subnet)
    assert [len(sweep.down) for sweep in subnet.sweeps] == [2, 2]
    assert subnet.sweeps[1].changed == frozenset()


def test_a_flap_loses_data_until_a_sweep_has_made_the_ports_active() -> None:
    topology = load_topology("seed-two-switch", 2)
    subnet = living(topology)
    before = subnet.manager.tables
    slid, dlid = subnet.manager.lid("n0.hca1"), subnet.manager.lid("n1.hca2")
    link = topology.links[subnet.manager.path(slid, dlid).links[3]]
    subnet.link_down(link.name, 0)
    subnet.link_up(link.name, 10)
    assert subnet.way(slid, dlid).lost_at == link.name
    assert not subnet.is_up(link.name)
    settle(subnet)
    assert subnet.is_up(link.name)
    assert subnet.way(slid, dlid).lost_at == ""
    assert dict(subnet.manager.tables) == dict(before)


def test_an_hcas_own_cable() -> None:
    topology = load_topology("fat-tree", 4)
    subnet = living(topology)
    manager = subnet.manager
    gone, other, third = (manager.lid(name) for name in ("n0.hca1", "n3.hca1", "n1.hca2"))
    before = manager.tables
    assert subnet.port_state("n0.hca1") == PortState.IBV_PORT_ACTIVE
    subnet.link_down("n0.hca1", 0)
    assert subnet.port_state("n0.hca1") == PortState.IBV_PORT_DOWN
    assert subnet.way(gone, other).lost_at == "n0.hca1->leaf1"
    assert subnet.way(other, gone).lost_at == "leaf1->n0.hca1"
    assert subnet.way(other, third).lost_at == ""
    now = settle(subnet)
    assert subnet.sweeps[-1].changed == {(switch, gone) for switch in before}
    with pytest.raises(FabricUnhealthy, match=r"no route from n3\.hca1 to n0\.hca1"):
        manager.path(other, gone)
    lost = subnet.way(other, gone)
    assert lost.lost_at == topology.fabric_link(topology.hca(3, 1)).dst
    assert manager.lid("n0.hca1") == gone
    subnet.link_up("n0.hca1", now)
    assert subnet.port_state("n0.hca1") == PortState.IBV_PORT_INIT
    settle(subnet)
    assert subnet.port_state("n0.hca1") == PortState.IBV_PORT_ACTIVE
    assert dict(manager.tables) == dict(before)


def test_a_fabric_cut_in_two_has_no_routes_across() -> None:
    topology = load_topology("seed-two-switch", 1)
    subnet = living(topology)
    manager = subnet.manager
    for link in topology.links_from("leaf1"):
        if link.dst == "leaf2":
            subnet.link_down(link.name, 0)
    settle(subnet)
    assert subnet.way(manager.lid("n0.hca1"), manager.lid("n0.hca2")).lost_at == "leaf1"
    assert manager.path(manager.lid("n0.hca1"), manager.lid("n0.hca3")).switches == 1


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("leaf1->spin2:3", r"no cable 'leaf1->spin2:3' \(did you mean leaf1->spine2:3\?"),
        ("leaf1->spine2", r"did you mean leaf1->spine2:1 or leaf1->spine2:2 or .* or leaf1->spine2:5\?"),
        ("n0.gpu0->n0.pcie0", "no cable 'n0.gpu0->n0.pcie0'"),
        ("leaf1", "no cable 'leaf1'"),
    ],
)
def test_what_is_no_cable_is_refused(name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        living(load_topology("seed-rail8", 2)).link_down(name, 0)
