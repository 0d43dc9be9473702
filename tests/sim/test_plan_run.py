"""Plans over emulated queue pairs in virtual time: right, deterministic, and robust against a lossy link."""

from __future__ import annotations

import numpy as np
import pytest

from fauxrdma.collectives import ring_all_reduce, ring_broadcast
from fauxrdma.errors import CollectiveError
from fauxrdma.sim.plan_run import run_plan
from fauxrdma.sim.world import LinkFaults, World


def all_reduce(n: int, count: int, seed: int, faults: LinkFaults | None = None) -> tuple[list[str], int]:
    world = World(n, seed=seed, faults=faults)
    plan = ring_all_reduce(count, n, itemsize=4, chunk=4096, lanes=1)
    rng = np.random.default_rng(seed)
    arrays = [rng.integers(0, 1000, count).astype(np.float32) for _ in range(n)]
    expected = np.sum(arrays, axis=0)
    took_ns = run_plan(world, plan, [{"data": array} for array in arrays], op="sum")
    for array in arrays:
        np.testing.assert_array_equal(array, expected)
    return world.trace, took_ns


@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize("count", [1, 1000, 50_000])
def test_all_reduce_is_right(n: int, count: int) -> None:
    all_reduce(n, count, seed=n)


def test_the_same_seed_and_plan_give_the_same_trace_twice() -> None:
    assert all_reduce(2, 20_000, seed=7) == all_reduce(2, 20_000, seed=7)
    lossy = LinkFaults(loss=0.05, duplicate=0.05, delay=0.05)
    first, second = (all_reduce(4, 20_000, seed=7, faults=lossy) for _ in range(2))
    assert first == second
    assert first[0] != all_reduce(4, 20_000, seed=8, faults=lossy)[0]


def test_a_lossy_link_costs_time_and_nothing_else() -> None:
    _, clean_ns = all_reduce(3, 30_000, seed=1)
    _, lossy_ns = all_reduce(3, 30_000, seed=1, faults=LinkFaults(loss=0.1))
    assert lossy_ns > clean_ns


def test_broadcast_from_any_root() -> None:
    for root in range(3):
        arrays = [np.full(5000, rank, np.float64) for rank in range(3)]
        run_plan(World(3), ring_broadcast(5000, 3, root, chunk=1000), [{"data": array} for array in arrays])
        assert all((array == root).all() for array in arrays)


def test_a_dead_hca_is_named() -> None:
    world = World(3)
    world.kill(world.hcas[2])
    arrays = [np.zeros(5000, np.float32) for _ in range(3)]
    plan = ring_all_reduce(5000, 3, itemsize=4, chunk=4096, lanes=1)
    with pytest.raises(CollectiveError, match=r"rank \d: queue pair 0x\w+ to rank 2 completed with IBV_WC_RETRY_EXC"):
        run_plan(world, plan, [{"data": array} for array in arrays], op="sum")
