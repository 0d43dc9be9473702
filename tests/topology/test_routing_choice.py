"""`engine:roots=...`: read, refused with the reason, and carried by presets and topologies."""

from __future__ import annotations

import pytest

from fauxrdma.errors import ConfigError
from fauxrdma.fabric.routing import SwitchGraph, compute_routes
from fauxrdma.topology.graph import Topology
from fauxrdma.topology.loading import load_topology
from fauxrdma.topology.routing_choice import RoutingChoice, parse_routing


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("minhop", RoutingChoice("minhop")),
        ("updn:roots=spine1,spine2", RoutingChoice("updn", ("spine1", "spine2"))),
        ("ftree:roots=spine1+spine2", RoutingChoice("ftree", ("spine1", "spine2"))),
        ("updn:roots=core*", RoutingChoice("updn", ("core*",))),
    ],
)
def test_what_is_written(text: str, choice: RoutingChoice) -> None:
    assert parse_routing(text) == choice


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("lash", "unknown routing engine 'lash': it is one of minhop, updn, ftree, dfsssp"),
        ("updwn", r"did you mean updn\?"),
        ("minhop:roots=spine1", "minhop has no options, only updn and ftree take roots"),
        ("updn:", "write updn:roots=SWITCH,SWITCH"),
        ("updn:roots=", "write updn:roots=SWITCH,SWITCH"),
        ("ftree:root=spine1", "write ftree:roots=SWITCH,SWITCH"),
    ],
)
def test_what_is_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_routing(text)


def test_roots_by_wildcard_are_those_one_could_name() -> None:
    graph = SwitchGraph.of(load_topology("ring", 4))
    first = graph.switches[0]
    assert compute_routes(graph, "updn").engine == "minhop"  # a ring has no root of its own
    by_name = compute_routes(graph, f"updn:roots={first}")
    by_pattern = compute_routes(graph, f"updn:roots={first[:-1]}[{first[-1]}]")
    assert (by_name.engine, by_name.warnings) == ("updn", ())
    assert (by_name.ports == by_pattern.ports).all()


def test_a_root_that_is_no_switch_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"roots=spine9 of updn: there is no such switch \(did you mean spine"):
        load_topology("seed-rail8,routing=updn:roots=spine9")
    with pytest.raises(ConfigError, match="roots=tor of ftree: there is no such switch: the switches are leaf1"):
        load_topology("fat-tree").with_routing("ftree:roots=tor")
    with pytest.raises(ConfigError, match=r"'routing' must be an engine, or updn or ftree with :roots="):
        load_topology("fat-tree,routing=minhop:roots=spine1")


def test_a_topology_keeps_its_roots() -> None:
    topology = load_topology("seed-rail8,routing=updn:roots=spine1+spine2", 3)
    assert topology.routing == "updn:roots=spine1+spine2"
    assert Topology.from_dict(topology.to_dict()) == topology


def test_an_island_without_a_given_root_finds_its_own() -> None:
    graph = SwitchGraph.of(load_topology("dual-plane", 12))
    told = compute_routes(graph, "updn:roots=spineA1")
    assert [part.engine for part in told.parts] == ["updn", "updn"]
    assert (told.parts[1].ports == compute_routes(graph, "updn").parts[1].ports).all()
