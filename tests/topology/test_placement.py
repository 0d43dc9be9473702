"""Placements: tables of who sits where, and what holds for all of them."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fauxrdma.errors import ConfigError
from fauxrdma.topology.graph import Topology
from fauxrdma.topology.loading import load_topology
from fauxrdma.topology.placement import PLACEMENTS, Placement, RingHops, choose_placement, deal, rails_of_places
from fauxrdma.topology.placement.choosing import parse_nodes

RAIL = load_topology("seed-rail8", 6)
FABRICS = {
    "rail": RAIL,
    "fat tree": load_topology("fat-tree", 6),
    "two GPUs per HCA": load_topology("fat-tree,gpus_per_hca=2", 6),
    "two GPUs per rail": load_topology("seed-rail4", 6),
    "shared storage HCAs": load_topology("fat-tree,gpus_per_hca=0,storage_hcas=2", 6),
    "one HCA": load_topology("single-switch,gpus_per_hca=0", 6),
}


def text(how: str, topology: Topology, nodes: int, gpus: int, seed: int = 0) -> str:
    return Placement(how, deal(topology, how, range(nodes), gpus, seed)).text


def hops(how: str, topology: Topology, gpus: int, nodes: list[int]) -> RingHops:
    return choose_placement(how, topology, gpus, on_nodes=nodes).ring_hops(topology)


@pytest.mark.parametrize(
    ("how", "nodes", "gpus", "places"),
    [
        ("block", 2, 2, "0:0:1 0:1:2 1:0:1 1:1:2"),
        ("cyclic", 2, 2, "0:0:1 1:0:1 0:1:2 1:1:2"),
        ("cyclic", 3, 1, "0:0:1 1:0:1 2:0:1"),
        # Down one node and up the next: on to the next node by rail 2, back to the first by rail 1.
        ("rail-aligned", 2, 2, "0:0:1 0:1:2 1:1:2 1:0:1"),
        ("rail-aligned", 4, 2, "0:0:1 0:1:2 1:1:2 1:0:1 2:0:1 2:1:2 3:1:2 3:0:1"),
        # Three nodes and three rails: on by rail 3, rail 2, and back by rail 1.
        ("rail-aligned", 3, 3, "0:0:1 0:1:2 0:2:3 1:2:3 1:0:1 1:1:2 2:1:2 2:2:3 2:0:1"),
        # Three nodes and two rails: node 1 is come by twice.
        ("rail-aligned", 3, 2, "0:0:1 0:1:2 1:1:2 2:1:2 2:0:1 1:0:1"),
        ("rail-aligned", 2, 1, "0:0:1 1:0:1"),
        ("rail-aligned", 1, 3, "0:0:1 0:1:2 0:2:3"),
    ],
)
def test_who_sits_where(how: str, nodes: int, gpus: int, places: str) -> None:
    assert text(how, RAIL, nodes, gpus) == places


def test_rail_aligned_takes_gpus_on_as_many_rails_as_there_are() -> None:
    shared = FABRICS["two GPUs per HCA"]
    assert text("block", shared, 2, 2) == "0:0:1 0:1:1 1:0:1 1:1:1"
    assert text("rail-aligned", shared, 2, 2) == "0:0:1 0:2:2 1:2:2 1:0:1"
    # A fifth GPU has to share an HCA; an odd number of nodes then comes and goes by that rail.
    places = deal(shared, "rail-aligned", range(3), 5)
    assert {place.gpu for place in places} == {0, 1, 2, 4, 6}


def test_hops_of_the_ring_in_rank_order() -> None:
    # 2 nodes x 2 GPUs: in blocks each change of node changes the rail; dealt in turn, every second does.
    assert hops("block", RAIL, 2, [0, 1]) == RingHops(inside=2, along=0, across=2, between_leaves=2)
    assert hops("cyclic", RAIL, 2, [0, 1]) == RingHops(0, 2, 2, 2)
    assert hops("rail-aligned", RAIL, 2, [0, 1]) == RingHops(2, 2, 0, 0)
    assert hops("block", RAIL, 1, [0]) == RingHops(0, 0, 0, 0)


def test_which_nodes_are_used_in_which_order_decides_how_often_leaves_change() -> None:
    # Two nodes on each leaf.
    leaves = load_topology("fat-tree,radix=36", 4)
    assert [leaves.fabric_link(leaves.hca(node, 1)).dst for node in range(4)] == ["leaf1", "leaf1", "leaf2", "leaf2"]
    assert hops("block", leaves, 1, [0, 1, 2, 3]).between_leaves == 2
    assert hops("block", leaves, 1, [0, 2, 1, 3]).between_leaves == 4
    assert hops("block", leaves, 1, [2, 3]).between_leaves == 0


def test_numbers_mean_what_torchrun_means() -> None:
    placement = choose_placement("cyclic", RAIL, 2, on_nodes=[4, 1])
    assert [placement.local_rank(rank) for rank in range(4)] == [0, 0, 1, 1]
    assert placement.environment(3) == {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "FAUXRDMA_NODE": "1",
        "FAUXRDMA_GPU": "1",
        "FAUXRDMA_HCA": "hca2",
        "FAUXRDMA_PLACES": "4:0:1 1:0:1 4:1:2 1:1:2",
    }
    assert placement.active_gpus == 2


def test_pacing_counts_the_hcas_that_are_used() -> None:
    shared = FABRICS["two GPUs per HCA"]
    assert choose_placement("block", shared, 4).gpus_to_pace(shared) == 3  # GPUs 0-3 on two HCAs, as GPUs 0-2 are
    assert choose_placement("rail-aligned", shared, 4).gpus_to_pace(shared) == 7  # four HCAs


everything = st.tuples(
    st.sampled_from(sorted(FABRICS)), st.integers(1, 6), st.integers(1, 8), st.integers(0, 2**32), st.randoms()
)


@pytest.mark.parametrize("how", PLACEMENTS)
@given(case=everything)
def test_every_placement_is_a_bijection_onto_seats(how: str, case: tuple[str, int, int, int, object]) -> None:
    name, number, gpus, seed, shuffle = case
    topology = FABRICS[name]
    nodes = list(range(6))
    shuffle.shuffle(nodes)  # type: ignore[attr-defined]
    nodes = nodes[:number]
    places = deal(topology, how, nodes, gpus, seed)
    assert len({(place.node, place.gpu) for place in places}) == len(places) == number * gpus
    assert Counter(place.node for place in places) == dict.fromkeys(nodes, gpus)
    for place in places:
        assert place.hca == topology.hca_of(topology.gpu(place.node, place.gpu)).index
    assert places == deal(topology, how, nodes, gpus, seed)
    # What the ranks are told is a bijection, too.
    placement = Placement(how, places)
    told = [placement.environment(rank) for rank in range(placement.world_size)]
    assert len({(env["GROUP_RANK"], env["LOCAL_RANK"]) for env in told}) == len(places)
    assert {env["LOCAL_RANK"] for env in told} == {str(local) for local in range(gpus)}
    first_of_group = [next(rank for rank, env in enumerate(told) if env["GROUP_RANK"] == str(g)) for g in range(number)]
    assert first_of_group == sorted(first_of_group)
    assert first_of_group[0] == 0


@given(case=everything)
def test_a_rail_aligned_ring_never_changes_rails_between_nodes(case: tuple[str, int, int, int, object]) -> None:
    name, number, gpus, _, _ = case
    topology = FABRICS[name]
    placement = choose_placement("rail-aligned", topology, gpus, on_nodes=range(number))
    hops = placement.ring_hops(topology)
    assert hops.across == 0
    # It goes between nodes as seldom as can be: once for each, and once more where two rails cannot close else.
    rails = set(rails_of_places(topology, placement.places))
    if number > 1 and gpus > 1:
        braided = number % 2 == 1 and gpus == 2 and len(rails) == 2
        assert hops.along == number + (1 if braided else 0)
    most = len({topology.hca_of(topology.gpu(0, gpu)).index for gpu in range(8)})
    assert len(rails) <= most
    if name == "rail":
        assert len(rails) == min(gpus, 8)


def test_random_is_reproducible_by_its_seed() -> None:
    draws = [text("random", RAIL, 3, 2, seed) for seed in range(20)]
    assert draws == [text("random", RAIL, 3, 2, seed) for seed in range(20)]
    assert len(set(draws)) > 15
    assert choose_placement("random:3", RAIL, 2, on_nodes=[0, 1, 2]).text == draws[3]
    assert choose_placement("random", RAIL, 2, on_nodes=[0, 1, 2], seed=4).text == draws[4]
    # And it stays what it is: a comparison of last year can be repeated.
    assert draws[0] == "0:6:7 2:4:5 0:7:8 1:6:7 2:7:8 1:0:1"


@pytest.mark.parametrize(
    ("spec", "gpus", "on_nodes", "message"),
    [
        ("rail_aligned", 1, None, r"unknown placement 'rail_aligned': did you mean 'rail-aligned'\?"),
        ("random:x", 1, None, r"'random:x': the seed must be a whole number"),
        ("block:2", 1, None, "unknown placement 'block:2'"),
        ("block", 9, None, "between 1 and 8, not 9"),
        ("block", 1, [6], r"no node 6: it was built with nodes 0\.\.5; for node 6 build at least 7"),
        ("cyclic", 1, [1, 2, 1], "node 1 is named twice"),
        ("block", 1, [], "at least one node"),
        ("file:some.places", 1, [0], "leave --on-nodes away"),
    ],
)
def test_what_cannot_be_is_refused(spec: str, gpus: int, on_nodes: list[int] | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        choose_placement(spec, RAIL, gpus, on_nodes=on_nodes)


def test_nodes_are_numbers_and_ranges() -> None:
    assert parse_nodes("0,3,5-7") == [0, 3, 5, 6, 7]
    assert parse_nodes(" n2 , 0") == [2, 0]
    for wrong in ("", "a", "1,,2", "1-", "-1", "3-1"):
        with pytest.raises(ConfigError, match="--on-nodes"):
            parse_nodes(wrong)


def test_the_nodes_are_used_in_the_order_given() -> None:
    for how in ("block", "cyclic", "rail-aligned"):
        nodes = [place.node for place in deal(RAIL, how, [5, 0, 3], 1)]
        assert nodes == [5, 0, 3]
    blocks = itertools.groupby(place.node for place in deal(RAIL, "rail-aligned", [5, 0, 3, 1], 2))
    assert [node for node, _ in blocks] == [5, 0, 3, 1]
