"""A fabric in one process: plans are right, its traces repeat, and times are those of the model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fauxrdma.collectives import Plan, ring_all_reduce
from fauxrdma.collectives.fabric_cost import fabric_cost
from fauxrdma.collectives.hierarchical import hierarchical_all_reduce
from fauxrdma.collectives.rank_paths import HCA, RankPaths
from fauxrdma.hca.work_queue import SendWqe
from fauxrdma.ib.enums import IBV_SEND_SIGNALED, IBV_WC_SUCCESS, IBV_WR_RDMA_WRITE, IBV_WR_SEND
from fauxrdma.sim.fabric_world import FabricWorld
from fauxrdma.sim.plan_run import run_plan
from fauxrdma.topology.rank_places import block_places, ranks_by_node

COUNT = 1 << 16


def all_reduce(world: FabricWorld, plan: Plan) -> int:
    arrays = [np.full(COUNT, rank + 1, np.float32) for rank in range(plan.world_size)]
    took_ns = run_plan(world, plan, [{"data": array} for array in arrays], op="sum")
    assert all((array == sum(range(1, plan.world_size + 1))).all() for array in arrays)
    return took_ns


def traced(seed: int, fabric: str = "fat-tree") -> str:
    world = FabricWorld(fabric, 2, 2, seed=seed, traced=True)
    all_reduce(world, ring_all_reduce(COUNT, 4, itemsize=4, chunk=4096, lanes=1))
    return "".join(world.trace_lines())


@pytest.mark.parametrize("fabric", ["fat-tree", "fat-tree,transport=rocev2"])
def test_the_same_seed_gives_the_same_trace(fabric: str) -> None:
    first = traced(1, fabric)
    assert first == traced(1, fabric)
    assert first != traced(2, fabric)  # by the numbers of the queue pairs
    events = [json.loads(line) for line in first.splitlines()]
    assert {event["event"] for event in events} == {"posted", "sent", "arrived", "completed"}
    assert [event["t"] for event in events] == sorted(event["t"] for event in events)


@pytest.mark.parametrize("fabric", ["seed-rail8", "fat-tree", "fat-tree,transport=rocev2"])
def test_plans_take_what_they_are_predicted_to_take(fabric: str) -> None:
    world = FabricWorld(fabric, 2, 2)
    places = block_places(world.topology, 2, 2)
    plans = [
        ring_all_reduce(COUNT, 4, itemsize=4, chunk=16384, lanes=2),
        hierarchical_all_reduce(COUNT, ranks_by_node(places), chunk=COUNT // 8, lanes=2),
    ]
    for plan in plans:
        predicted = fabric_cost(plan, 4, RankPaths(world.manager, places, HCA)).predicted_ns
        assert all_reduce(world, plan) == pytest.approx(predicted, rel=0.05), plan.algorithm


def test_a_flow_alone_has_the_rate_of_its_path_and_two_share_it() -> None:
    world = FabricWorld("fat-tree", 2, 2)
    length = 1 << 20

    def took(sources: list[int]) -> int:
        began = world.now
        target = world.hcas[2]
        for source in sources:
            a, b = world.hcas[source].create_qp(), target.create_qp()
            world.connect(a, b, timeout=14)
            mine, theirs = world.hcas[source].alloc(length)[0], target.alloc(length)[0]
            a.post_send(
                SendWqe(
                    0, 1, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, ((mine.base, length, mine.lkey),),
                    theirs.base, theirs.rkey,
                )
            )  # fmt: skip
        assert world.run()
        return world.now - began

    path = world.manager.path(world.hcas[0].lid, world.hcas[2].lid)
    alone = took([0])
    assert alone == path.rate.transfer_ns(length) + 2 * path.latency_ns
    assert took([0, 1]) == pytest.approx(2 * path.rate.transfer_ns(length) + 2 * path.latency_ns, rel=0.01)


def test_a_send_without_a_receive_is_tried_again_in_fabric_time() -> None:
    world = FabricWorld("fat-tree", 2, 1)
    a, b = world.pair(timeout=14, rnr_retry=7, min_rnr_timer=12)
    a.post_send(SendWqe(0, 1, IBV_WR_SEND, IBV_SEND_SIGNALED))
    world.at(1_000_000, lambda: b.post_recv(9))
    assert world.run()
    (sent,), (received,) = a.completions, b.completions
    assert (sent.status, received.status, received.wr_id) == (IBV_WC_SUCCESS, IBV_WC_SUCCESS, 9)
    assert 1_000_000 < received.timestamp_ns < 1_700_000


def test_work_without_end_is_an_error() -> None:
    world = FabricWorld("fat-tree", 2, 1)
    a, _ = world.pair(timeout=14, rnr_retry=7)
    a.post_send(SendWqe(0, 1, IBV_WR_SEND, IBV_SEND_SIGNALED))
    with pytest.raises(RuntimeError, match="past the limit"):
        world.run(limit_ns=10**8)


def test_the_example_of_the_page_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "clocks.md").read_text()
    code = page.split("```python\n")[1].split("```")[0]
    exec(code, {})
    assert f"It prints `{capsys.readouterr().out.strip()}`" in page
