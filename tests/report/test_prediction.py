"""The model's own time for a ring all-reduce, against the formula worked out by hand."""

from __future__ import annotations

import pytest

from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.report.prediction import ring_all_reduce_ns
from fauxrdma.topology.loading import load_topology


def test_one_leaf_two_ranks() -> None:
    topology = load_topology("fat-tree", nodes=2, gpus=1)
    manager = SubnetManager(topology)
    path = manager.path(manager.lid("n0.hca1"), manager.lid("n1.hca1"))
    half = 500_000 / path.rate.bytes_per_ns
    assert ring_all_reduce_ns(topology, 2, 1, 1_000_000) == pytest.approx(2 * (path.latency_ns + half))


def test_more_switches_take_longer_and_rate_counts() -> None:
    small = [ring_all_reduce_ns(load_topology(f, nodes=2, gpus=2), 2, 2, 8) for f in ("fat-tree", "seed-rail8")]
    assert small[0] < small[1]
    large = [ring_all_reduce_ns(load_topology(f, nodes=2, gpus=2), 2, 2, 10**8) for f in ("fat-tree:ndr", "fat-tree")]
    assert large[1] / large[0] == pytest.approx(2, rel=0.02)


def test_a_trunk_that_several_flows_share_is_divided() -> None:
    # seed-two-switch: within a node the ring goes from odd to even HCAs and back over 4 trunk cables, and so do
    # the last ranks of 4 nodes: 8 GPUs a node are 8 flows over the trunk in each node's part of the ring.
    few = ring_all_reduce_ns(load_topology("seed-two-switch", nodes=1, gpus=2), 1, 2, 10**8)
    many = ring_all_reduce_ns(load_topology("seed-two-switch", nodes=4, gpus=8), 4, 8, 10**8)
    per_byte_few, per_byte_many = few / (2 * 1 / 2), many / (2 * 31 / 32)
    assert per_byte_many > 1.9 * per_byte_few


def test_one_rank_needs_no_time() -> None:
    assert ring_all_reduce_ns(load_topology("fat-tree", nodes=1, gpus=1), 1, 1, 10**6) == 0.0
