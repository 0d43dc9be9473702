"""Seats of ranks: names, the usual placement, and the ranks of each node."""

from __future__ import annotations

import pytest

from fauxrdma.errors import ConfigError
from fauxrdma.topology.loading import load_topology
from fauxrdma.topology.rank_places import RankPlace, block_places, place_of, ranks_by_node


def test_blocks_follow_torchrun_and_each_gpu_uses_its_hca() -> None:
    topology = load_topology("seed-rail8", 2, 3)
    places = block_places(topology, 2, 3)
    assert [(place.node, place.gpu, place.hca) for place in places] == [
        (node, gpu, gpu + 1) for node in range(2) for gpu in range(3)
    ]
    assert (places[4].hca_name, places[4].gpu_name) == ("n1.hca2", "n1.gpu1")
    assert all(place.hca_name in topology.nodes and place.gpu_name in topology.nodes for place in places)


def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"n0\.gpu9"):
        place_of(load_topology("seed-rail8", 1, 1), 0, 9)


def test_ranks_of_a_node_come_in_gpu_order_whatever_their_numbers() -> None:
    places = [RankPlace(3, 1, 2), RankPlace(0, 0, 1), RankPlace(3, 0, 1), RankPlace(0, 1, 2)]
    assert ranks_by_node(places) == [[1, 3], [2, 0]]
