"""Ranks drawn: the map of nodes and rails, and the ring."""

from __future__ import annotations

from fauxrdma.topology.drawing.seats import draw_ring, draw_seats
from fauxrdma.topology.loading import load_topology
from fauxrdma.topology.placement import Placement, choose_placement
from fauxrdma.topology.rank_places import RankPlace

RAIL = load_topology("seed-rail8", 4)


def test_a_map_of_nodes_and_rails() -> None:
    assert draw_seats(RAIL, choose_placement("rail-aligned", RAIL, 2, on_nodes=[0, 2])) == (
        "         rail 0   rail 1\nnode 0   r0 gpu0  r1 gpu1\nnode 2   r3 gpu0  r2 gpu1"
    )


def test_gpus_that_share_a_rail_share_a_cell_and_empty_cells_have_a_dot() -> None:
    shared = load_topology("fat-tree,gpus_per_hca=2", 2)
    uneven = Placement("p", (RankPlace(0, 0, 1), RankPlace(0, 1, 1), RankPlace(1, 7, 4)))
    assert draw_seats(shared, uneven) == (
        "         rail 0            rail 3\nnode 0   r0 gpu0, r1 gpu1  .\nnode 1   .                 r2 gpu7"
    )


def test_the_ring_says_how_it_gets_from_rank_to_rank() -> None:
    def ring(how: str, gpus: int, nodes: list[int]) -> str:
        return draw_ring(RAIL, choose_placement(how, RAIL, gpus, on_nodes=nodes))

    assert ring("block", 2, [0, 1]) == "n0[r0 - r1] ~ n1[r2 - r3] ~ r0"
    assert ring("cyclic", 2, [0, 1]) == "n0[r0] = n1[r1] ~ n0[r2] = n1[r3] ~ r0"
    assert ring("rail-aligned", 2, [3, 1]) == "n3[r0 - r1] = n1[r2 - r3] = r0"
    assert ring("block", 3, [1]) == "n1[r0 - r1 - r2 - r0]"
    assert ring("block", 1, [1]) == "n1[r0]"


def test_large_jobs_are_cut_short() -> None:
    many = load_topology("fat-tree", 60)
    placement = choose_placement("block", many, 8)
    lines = draw_seats(many, placement).splitlines()
    assert (len(lines), lines[-1]) == (1 + 40 + 1, "... and 20 more nodes")
    ring = draw_ring(many, placement, width=80).splitlines()
    assert max(map(len, ring)) <= 80
    assert ring[-1].endswith("...")
    assert len(ring) < 12
