"""The model's own time for an all-reduce, against the formula worked out by hand."""

from __future__ import annotations

import pytest

from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.report.prediction import all_reduce_ns
from fauxrdma.topology.loading import load_topology
from fauxrdma.topology.rank_places import block_places


def predicted_ns(fabric: str, nodes: int, gpus: int, nbytes: int, algorithm: str = "ring") -> float:
    topology = load_topology(fabric, nodes=nodes, gpus=gpus)
    found = all_reduce_ns(topology, block_places(topology, nodes, gpus), nbytes, algorithm)
    assert found is not None
    return found


def test_one_leaf_two_ranks() -> None:
    manager = SubnetManager(load_topology("fat-tree", nodes=2, gpus=1))
    path = manager.path(manager.lid("n0.hca1"), manager.lid("n1.hca1"))
    half = 500_000 / path.rate.bytes_per_ns
    assert predicted_ns("fat-tree", 2, 1, 1_000_000) == pytest.approx(2 * (path.latency_ns + half), rel=1e-4)


def test_more_switches_take_longer_and_rate_counts() -> None:
    assert predicted_ns("fat-tree", 2, 2, 8) < predicted_ns("seed-rail8", 2, 2, 8)
    large = [predicted_ns(fabric, 2, 2, 10**8) for fabric in ("fat-tree:ndr", "fat-tree")]
    assert large[1] / large[0] == pytest.approx(2, rel=0.02)


def test_a_trunk_that_several_flows_share_is_divided() -> None:
    # seed-two-switch: within a node the ring goes from odd to even HCAs and back over 4 trunk cables, and so do
    # the last ranks of 4 nodes: 8 GPUs a node are 8 flows over the trunk in each node's part of the ring.
    few = predicted_ns("seed-two-switch", 1, 2, 10**8)
    many = predicted_ns("seed-two-switch", 4, 8, 10**8)
    per_byte_few, per_byte_many = few / (2 * 1 / 2), many / (2 * 31 / 32)
    assert per_byte_many > 1.9 * per_byte_few


def test_algorithms_differ_and_unknown_ones_have_no_prediction() -> None:
    assert predicted_ns("single-switch", 4, 1, 8, "recursive-doubling") < predicted_ns("single-switch", 4, 1, 8)
    topology = load_topology("fat-tree", nodes=2, gpus=1)
    assert all_reduce_ns(topology, block_places(topology, 2, 1), 10**6, "my own") is None


def test_no_prediction_where_ranks_cannot_reach_each_other() -> None:
    topology = load_topology("rail-only", nodes=2, gpus=2)
    assert all_reduce_ns(topology, block_places(topology, 2, 2), 8) is None


def test_one_rank_needs_no_time() -> None:
    assert predicted_ns("fat-tree", 1, 1, 10**6) == 0.0
