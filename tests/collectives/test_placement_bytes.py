"""What a ring all-reduce puts on the spines under each placement, by the plan and the forwarding tables alone.

Every hop of the ring carries 2 S (n - 1) / n bytes: spines carry that for every hop whose two HCAs are on two leaves.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fauxrdma.collectives.algorithms import all_reduce_plan
from fauxrdma.collectives.fabric_cost import FabricCost, fabric_cost
from fauxrdma.collectives.rank_paths import HCA, NVLINK, RankPaths
from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.topology.loading import load_topology
from fauxrdma.topology.placement import PLACEMENTS, Placement, choose_placement

RAILS = SubnetManager(load_topology("seed-rail8", 5))
LEAVES = SubnetManager(load_topology("fat-tree,radix=36", 5))  # two nodes to a leaf
BYTES_PER_RANK = 1024


def ring_all_reduce(manager: SubnetManager, placement: Placement, intra_node: str) -> tuple[FabricCost, int]:
    """The cost of an all-reduce of 1 KiB per rank, and what each hop of the ring carries."""
    n = placement.world_size
    plan = all_reduce_plan("ring", n * BYTES_PER_RANK, n, 1, 64 << 10, 2)
    return fabric_cost(plan, 1, RankPaths(manager, placement.places, intra_node)), 2 * BYTES_PER_RANK * (n - 1)


def spine_bytes(manager: SubnetManager, cost: FabricCost) -> int:
    """Bytes that leaves sent up, link by link."""
    tiers = {switch.name: switch.tier for switch in manager.topology.switches()}
    links = [(manager.topology.links[link], nbytes) for link, nbytes in cost.link_bytes.items()]
    return sum(nbytes for link, nbytes in links if (tiers.get(link.src), tiers.get(link.dst)) == (0, 1))


@given(st.sampled_from([RAILS, LEAVES]), st.sampled_from(PLACEMENTS), st.permutations(range(5)), st.integers(1, 5),
       st.integers(1, 3), st.integers(0, 9))  # fmt: skip
def test_spine_bytes_are_the_hops_between_leaves(
    manager: SubnetManager, how: str, order: list[int], nodes: int, gpus: int, seed: int
) -> None:
    topology = manager.topology
    placement = choose_placement(how, topology, gpus, on_nodes=order[:nodes], seed=seed)
    hops = placement.ring_hops(topology)
    by_nvlink, hop = ring_all_reduce(manager, placement, NVLINK)
    assert spine_bytes(manager, by_nvlink) == by_nvlink.over_spines == hops.between_leaves * hop
    # Without NVLink, hops inside nodes cross spines too where the node's HCAs are on several leaves.
    by_hca, _ = ring_all_reduce(manager, placement, HCA)
    inside = hops.inside if manager is RAILS else 0
    assert spine_bytes(manager, by_hca) == (hops.between_leaves + inside) * hop


@pytest.mark.parametrize("gpus", range(1, 5))
@pytest.mark.parametrize("nodes", range(2, 6))
def test_aligned_to_rails_nothing_crosses_spines(nodes: int, gpus: int) -> None:
    topology = RAILS.topology
    aligned = choose_placement("rail-aligned", topology, gpus, on_nodes=range(nodes))
    cost, hop = ring_all_reduce(RAILS, aligned, NVLINK)
    assert spine_bytes(RAILS, cost) == cost.across_rails == 0
    # The others: a block changes rails from node to node, cyclic from one round of the nodes to the next.
    if gpus > 1:
        for how, changes in (("block", nodes), ("cyclic", gpus)):
            other, _ = ring_all_reduce(RAILS, choose_placement(how, topology, gpus, on_nodes=range(nodes)), NVLINK)
            assert spine_bytes(RAILS, other) == changes * hop


def test_nodes_of_a_leaf_side_by_side_cross_spines_least() -> None:
    found = {}
    for order in ([0, 1, 2, 3], [0, 2, 1, 3]):
        cost, hop = ring_all_reduce(LEAVES, choose_placement("block", LEAVES.topology, 1, on_nodes=order), NVLINK)
        found[tuple(order)] = spine_bytes(LEAVES, cost) // hop
    assert found == {(0, 1, 2, 3): 2, (0, 2, 1, 3): 4}
