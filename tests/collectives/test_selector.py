"""The selector picks the plan that is done first, the same on every rank, and remembers it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fauxrdma.collectives.algorithms import algorithms_for
from fauxrdma.collectives.candidates import OPERATIONS, request_of
from fauxrdma.collectives.fabric_cost import fabric_cost
from fauxrdma.collectives.rank_paths import RankPaths
from fauxrdma.collectives.selector import PIECES, Selector, rounded_size
from fauxrdma.collectives.symbolic import run_symbolically
from fauxrdma.errors import ConfigError, FabricUnhealthy
from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.topology.loading import load_topology
from fauxrdma.topology.rank_places import block_places


def selector_of(fabric: str, nodes: int, gpus: int, intra_node: str = "hca") -> Selector:
    topology = load_topology(fabric, nodes, gpus)
    return Selector(RankPaths(SubnetManager(topology), block_places(topology, nodes, gpus), intra_node))


def test_latency_decides_for_small_sizes_and_bytes_for_large_ones() -> None:
    selector = selector_of("single-switch", 4, 1)
    table = selector.table("all_reduce", [8 << k for k in range(0, 26, 5)])
    small, large = table.choices[0], table.choices[-1]
    # log2 n rounds against 2 (n - 1); twice the buffer against log2 n times.
    assert small.predicted_ns["recursive-doubling"] < small.predicted_ns["ring"]
    assert large.predicted_ns["recursive-doubling"] > 1.3 * large.predicted_ns["ring"]
    assert small.algorithm != large.algorithm
    assert table.crossovers[0].instead_of == small.algorithm
    assert table.crossovers[-1].algorithm == large.algorithm
    for choice in table.choices:
        assert choice.predicted_ns[choice.algorithm] == min(choice.predicted_ns.values())


def test_on_rails_with_nvlink_large_all_reduces_are_hierarchical() -> None:
    selector = selector_of("superpod", 4, 8, "nvlink")
    choice = selector.choose("all_reduce", 64 << 20)
    assert choice.algorithm == "hierarchical"
    assert choice.predicted_ns["hierarchical"] < 0.5 * choice.predicted_ns["ring"]


def test_the_fabric_decides() -> None:
    names = {
        fabric: selector_of(fabric, 4, 8).choose("all_reduce", 1 << 20).algorithm
        for fabric in ("seed-two-switch", "fat-tree")
    }
    # Four trunk cables between odd and even HCAs: what halves first over the other nodes crosses them once.
    assert names == {"seed-two-switch": "halving-doubling", "fat-tree": "direct"}


def test_what_has_no_path_is_not_chosen_and_why_is_told() -> None:
    selector = selector_of("rail-only", 2, 4, "nvlink")
    choice = selector.choose("all_to_all", 1 << 20)
    assert choice.algorithm == "pxn"
    assert set(choice.unusable) == {"pairwise", "direct"}
    assert "no route" in choice.unusable["direct"]
    with pytest.raises(FabricUnhealthy, match="no algorithm can do broadcast here"):
        selector_of("rail-only", 2, 2).choose("broadcast", 1024)


def test_a_choice_is_remembered_by_rounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    selector = selector_of("fat-tree", 2, 2)
    first = selector.choose("all_reduce", 1000)
    assert first.nbytes == 1024
    monkeypatch.setattr(Selector, "compare", None)
    assert selector.choose("all_reduce", 1000) is first
    assert selector.choose("all_reduce", 1024) is selector.choose("all_reduce", 1440) is first


def test_pipelines_are_cut_as_suits_their_size() -> None:
    selector = selector_of("single-switch", 4, 1)
    small, large = (selector.compare("broadcast", size, ["chain"]) for size in (1 << 18, 1 << 25))
    # 64 KiB is the smallest piece, a slot the largest; in between, the more ranks are busy the better.
    assert (small.pieces["chain"], large.pieces["chain"]) == (4, 64)
    times = {pieces: selector.cost("broadcast", "chain", 1 << 25, pieces).predicted_ns for pieces in PIECES}
    assert large.predicted_ns["chain"] == times[64] == min(times.values())
    assert times[16] == selector.cost("broadcast", "chain", 1 << 25).predicted_ns
    assert selector.plan("broadcast", "chain", 1 << 25, 64).chunk == 1 << 19


def test_two_ranks_that_compute_apart_choose_alike() -> None:
    one, other = (selector_of("seed-rail8", 3, 2) for _ in range(2))
    for operation in OPERATIONS:
        for size in (0, 7, 5000, 3_000_000):
            assert one.choose(operation, size) == other.choose(operation, size)


@given(st.integers(0, 1 << 40))
def test_sizes_are_rounded_by_ratio(nbytes: int) -> None:
    near = rounded_size(nbytes)
    assert near & (near - 1) == 0
    assert near / 1.4143 <= max(1, nbytes) <= near * 1.4143


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(OPERATIONS), st.integers(1, 3), st.integers(1, 3), st.integers(0, 200))
def test_every_candidate_ends_and_costs_what_it_declares(operation: str, nodes: int, gpus: int, nbytes: int) -> None:
    selector = selector_of("fat-tree", nodes, gpus)
    selector.ranks = replace(selector.ranks, slot_bytes=64)
    for name in algorithms_for(request_of(operation, nbytes, selector.ranks)):
        plan = selector.plan(operation, name, nbytes)
        declared = sum(plan.traffic(rank).elements for rank in range(plan.world_size))
        assert selector.cost(operation, name, nbytes).nbytes == declared
        run_symbolically(plan, slots=2 * plan.lanes + 1)
        assert plan.name == operation


def test_unknown_names_are_refused() -> None:
    selector = selector_of("fat-tree", 2, 1)
    with pytest.raises(ConfigError, match="'all_sum': it is one of all_reduce, broadcast"):
        selector.choose("all_sum", 8)
    # On one GPU per node there is nothing to go through the node for.
    with pytest.raises(ConfigError, match="no algorithm 'hierarchical' for all_reduce by these ranks: choose ring"):
        selector.plan("all_reduce", "hierarchical", 8)
    assert fabric_cost(selector.plan("all_reduce", "ring", 8), 1, selector.paths).nbytes == 16
