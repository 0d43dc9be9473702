"""Routing engines without OpenSM: what any of them must hold, deadlock freedom, lanes, and how much work they do."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from random_trees import KINDS, random_tree
from routing_fabrics import FABRICS, ring

from fauxrdma.errors import ConfigError
from fauxrdma.fabric.routing import ENGINES, Routes, SwitchGraph, compute_routes
from fauxrdma.fabric.routing.dependencies import Walks, find_circle, used_by_tables
from fauxrdma.fabric.routing.sssp import sssp
from fauxrdma.fabric.routing.switch_graph import UNREACHED
from fauxrdma.topology.loading import load_topology


def walk(graph: SwitchGraph, routes: Routes, start: int, lid: int) -> list[int]:
    """Switches on the way from switch `start` to the HCA with `lid`."""
    seen = [start]
    while True:
        port = routes.tables[graph.switches[seen[-1]]][lid]
        following = int(graph.peers[seen[-1], port])
        if following < 0:
            return seen
        assert following not in seen
        seen.append(following)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", FABRICS)
def test_every_hca_of_an_island_is_reached_on_a_shortest_way(name: str, engine: str) -> None:
    graph = SwitchGraph.of(FABRICS[name])
    routes = compute_routes(graph, engine)
    for start in {end.switch for end in graph.endpoints}:
        for end in graph.endpoints:
            if graph.hops[start, end.switch] == UNREACHED:
                assert end.lid not in routes.tables[graph.switches[start]]
                continue
            way = walk(graph, routes, start, end.lid)
            assert way[-1] == end.switch
            assert len(way) - 1 == graph.hops[start, end.switch]


@pytest.mark.parametrize("switches", [4, 5, 6, 8])
def test_a_ring_has_a_credit_loop_under_minhop_and_none_under_dfsssp(switches: int) -> None:
    topology = ring(switches)
    graph = SwitchGraph.of(topology)
    routes = compute_routes(graph, "minhop")
    links = [topology.links[link] for link in routes.credit_loop]
    assert len(links) == switches  # all the way round
    assert all(a.dst == b.src for a, b in zip(links, [*links[1:], links[0]], strict=True))
    (warning,) = routes.warnings
    assert all(link.name in warning for link in links)

    free = compute_routes(graph, "dfsssp")
    assert free.lanes is not None
    assert free.warnings == ()
    # An oracle of its own: walk every pair of HCAs, collect each lane's dependencies, sort them topologically.
    edges: dict[int, set[tuple[tuple[int, int], tuple[int, int]]]] = {}
    for source in graph.endpoints:
        for end in graph.endpoints:
            way = walk(graph, free, source.switch, end.lid)
            cables = list(pairwise(way))
            edges.setdefault(free.sl(source.lid, end.lid), set()).update(pairwise(cables))
    for lane in edges.values():
        while lane:
            ends = {second for _, second in lane}
            peeled = {edge for edge in lane if edge[0] in ends}
            assert peeled != lane, "a circle"
            lane = peeled


def test_three_switches_in_a_ring_have_no_credit_loop() -> None:
    assert compute_routes(SwitchGraph.of(ring(3))).credit_loop == []


@pytest.mark.parametrize("name", ["three-tier", "fat-tree-12", "seed-rail8-5"])
@pytest.mark.parametrize("engine", ["updn", "ftree", "dfsssp"])
def test_trees_have_no_credit_loop(name: str, engine: str) -> None:
    routes = compute_routes(SwitchGraph.of(FABRICS[name]), engine)
    assert routes.engine == engine
    assert routes.warnings == ()


def test_both_ways_of_counting_dependencies_agree() -> None:
    for name in ("ring5", "three-tier", "lopsided"):
        graph = SwitchGraph.of(FABRICS[name])
        routes = compute_routes(graph)
        sources = np.array(sorted({end.switch for end in graph.endpoints}))
        walks = Walks(graph, routes.ports, sources, np.array([end.lid for end in graph.endpoints]))
        all_of_them = np.ones(len(sources) * len(graph.endpoints), dtype=np.bool_)
        assert walks.used(all_of_them).tolist() == used_by_tables(graph, routes.ports).tolist()
    assert len(find_circle(graph, used_by_tables(graph, routes.ports))) == 0


def test_idle_lanes_take_part_of_the_fullest_ones_load() -> None:
    graph = SwitchGraph.of(FABRICS["ring5"])
    routes = compute_routes(graph, "dfsssp")
    assert routes.lanes is not None
    assert (routes.lanes.needed, routes.lanes.available) == (2, 8)
    used = {routes.sl(a.lid, b.lid) for a in graph.endpoints for b in graph.endpoints}
    assert used == set(range(8))
    assert routes.sl(1, 9999) == 0


def test_a_link_that_is_down_is_not_used_and_the_rest_stays() -> None:
    topology = load_topology("fat-tree", 6)
    before = compute_routes(SwitchGraph.of(topology))
    cable = next(link for link in topology.links if link.src == "leaf1" and link.dst == "spine1")
    after = compute_routes(SwitchGraph.of(topology, {cable.id}), previous=before)
    assert cable.src_port not in after.tables["leaf1"].values()
    changed = np.argwhere(before.ports != after.ports)
    graph = before.graph
    assert changed.size
    for switch, lid in changed:
        ends = {(graph.number[cable.src], cable.src_port), (graph.number[cable.dst], cable.dst_port)}
        assert (switch, before.ports[switch, lid]) in ends


def test_ftree_says_what_is_wrong_with_a_tree() -> None:
    routes = compute_routes(SwitchGraph.of(FABRICS["lopsided"]), "ftree")
    assert (routes.asked, routes.engine) == ("ftree", "minhop")
    assert "ERR AB09: Different number of upward port groups" in routes.messages[0]
    assert "leaf3, LID 9 - 1 groups" in routes.messages[0]


def test_an_unknown_engine_is_refused_with_the_list() -> None:
    with pytest.raises(ConfigError, match=r"unknown routing engine 'lash': it is one of minhop, updn"):
        compute_routes(SwitchGraph.of(FABRICS["ring3"]), "lash")


def test_dfsssp_falls_back_when_lanes_do_not_suffice() -> None:
    routes = compute_routes(SwitchGraph.of(FABRICS["ring5"]), "dfsssp", data_lanes=1)
    assert (routes.asked, routes.engine) == ("dfsssp", "minhop")
    assert "Not enough VLs available (avail=1, needed=2); Stopping dfsssp routing!" in routes.messages[0]
    assert routes.warnings


def operations(work: Callable[[SwitchGraph], object], name: str) -> int:
    """Python calls that some work on a fabric takes."""
    graph = SwitchGraph.of(FABRICS[name])
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        work(graph)
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("engine", [*ENGINES, "sssp in arrays"])
def test_work_grows_less_than_the_tables(engine: str) -> None:
    """Engines work on columns and arrays, not entry by entry: that is what makes a thousand hosts a matter of seconds.
    (ftree, and dfsssp up to a size, go from switch to switch as OpenSM does, but no more often than there are entries.)
    The larger fabric has 6.2 times the entries."""

    def work(graph: SwitchGraph) -> object:
        return sssp(graph, exact_entries=0) if engine == "sssp in arrays" else compute_routes(graph, engine)

    small, large = SwitchGraph.of(FABRICS["three-tier"]), SwitchGraph.of(FABRICS["three-tier-wide"])
    entries = len(large.switches) * len(large.nodes) / (len(small.switches) * len(small.nodes))
    share = 1.0 if engine in ("ftree", "dfsssp") else 0.6
    assert operations(work, "three-tier-wide") < share * entries * operations(work, "three-tier")


def test_islands_are_routed_as_subnets_of_their_own() -> None:
    """Also after a link failed: the other island does not notice."""
    topology = load_topology("dual-plane", 12)
    graph = SwitchGraph.of(topology)
    for engine in ("minhop", "updn", "ftree", "dfsssp"):
        before = compute_routes(graph, engine)
        assert [len(part.graph.switches) for part in before.parts] == [len(graph.switches) // 2] * 2
        trunk = before.parts[0].graph.trunks[0][0]
        after = compute_routes(SwitchGraph.of(topology, {trunk.link}), engine, previous=before)
        assert (after.parts[1].ports == before.parts[1].ports).all()
        changed = {graph.switches[at] for at, _ in np.argwhere(after.ports != before.ports)}
        assert changed
        assert changed <= set(before.parts[0].graph.switches)


def test_a_spine_that_is_cut_off_does_not_keep_ftree_from_the_rest() -> None:
    """As to a subnet manager that does not see it any more."""
    topology = load_topology("fat-tree", 12)
    cables = {link.id for link in topology.links if link.src == "spine1"}
    graph = SwitchGraph.of(topology, cables)
    routes = compute_routes(graph, "ftree")
    assert routes.engine == "ftree"
    assert set(routes.tables["spine1"]) == {graph.switch_lids[graph.number["spine1"]]}
    for end in graph.endpoints:
        assert walk(graph, routes, graph.number["leaf1"], end.lid)[-1] == end.switch


@pytest.mark.parametrize("kind", KINDS)
def test_odd_trees_reach_every_hca_with_ftree(kind: str) -> None:
    """Where ftree falls back and where it does not, in ours and in trees where OpenSM forgets HCAs."""
    for seed in range(20):
        graph = SwitchGraph.of(random_tree(seed, kind))
        routes = compute_routes(graph, "ftree")
        for start in {end.switch for end in graph.endpoints}:
            for end in graph.endpoints:
                assert walk(graph, routes, start, end.lid)[-1] == end.switch
