"""Plans told as rounds, and the times of single messages."""

from __future__ import annotations

import pytest

from fauxrdma.collectives.algorithms import ALL_REDUCE, all_reduce_plan
from fauxrdma.collectives.barrier import dissemination_barrier
from fauxrdma.collectives.fabric_cost import fabric_cost
from fauxrdma.collectives.plan import Plan, Program, Traffic, Wait
from fauxrdma.collectives.plan_rounds import describe_step, plan_messages
from fauxrdma.collectives.rank_paths import RankPaths
from fauxrdma.collectives.ring import ring_all_reduce
from fauxrdma.collectives.symbolic import PlanDefect
from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.topology.loading import load_topology
from fauxrdma.topology.rank_places import block_places


@pytest.mark.parametrize("algorithm", [name for name in ALL_REDUCE if name != "double-tree"])
@pytest.mark.parametrize("n", [2, 3, 4, 7, 8])
def test_a_plan_has_the_rounds_it_declares(algorithm: str, n: int) -> None:
    plan = all_reduce_plan(algorithm, 4096, n, 4, 1 << 20, 1)
    messages = plan_messages(plan)
    # Declared rounds count steps that all take together; a rank that has nothing to wait for is ahead of them.
    last = max(message.round for message in messages)
    assert last == plan.rounds or (n & (n - 1) and last < plan.rounds)
    for rank in range(n):
        own = [message for message in messages if message.source == rank]
        assert len(own) == plan.traffic(rank).messages
        assert sum(message.count for message in own) == plan.traffic(rank).elements


def test_a_ring_in_words() -> None:
    plan = ring_all_reduce(6, 3, itemsize=4, chunk=2, lanes=1)
    told = [(m.round, m.source, m.target, m.what, m.then) for m in plan_messages(plan) if m.source == 0]
    assert told == [
        (1, 0, 2, "data[2:4]", "reduced with data[2:4], sent to 1"),
        (2, 0, 2, "data[4:6]", "reduced with data[4:6], sent to 1"),
        (3, 0, 2, "data[0:2]", "sent to 1, to data[0:2]"),
        (4, 0, 2, "message 2 from 1", "to data[2:4]"),
    ]
    words = [describe_step(step) for step in plan.program(0).steps]
    assert words[:5] == [
        "message 0 to 2 = data[2:4]",
        "put message 0 to 2, 2 elements",
        "wait for message 0 from 1, 2 elements",
        "message 1 to 2 = data[4:6] op message 0 from 1",
        "free message 0 from 1",
    ]
    assert words[-1] == "free message 3 from 1"
    assert "put message 3 to 2 with message 2 from 1, 2 elements" in words


def test_signals_carry_nothing() -> None:
    messages = plan_messages(dissemination_barrier(4))
    assert {(m.round, m.count, m.what) for m in messages} == {(1, 0, ""), (2, 0, "")}
    assert describe_step(dissemination_barrier(4).program(0).steps[0]).startswith("signal ")


def test_a_plan_that_never_ends_is_told() -> None:
    def build(rank: int) -> Program:
        return Program((Wait(1 - rank, 0, 1),), {}, {1 - rank: 1})

    plan = Plan("stuck", "none", 2, {}, 1, 1, 1, "", build, lambda rank: Traffic(0, 0))
    with pytest.raises(PlanDefect, match=r"ranks \[0, 1\] wait for each other"):
        plan_messages(plan)


@pytest.mark.parametrize("algorithm", ["ring", "double-tree", "direct"])
@pytest.mark.parametrize("fabric", ["seed-two-switch", "fat-tree"])
def test_messages_have_times_that_make_sense(algorithm: str, fabric: str) -> None:
    topology = load_topology(fabric, 2, 3)
    paths = RankPaths(SubnetManager(topology), block_places(topology, 2, 3))
    plan = all_reduce_plan(algorithm, 50_000, 6, 4, 16 << 10, 2)
    cost = fabric_cost(plan, 4, paths, messages_too=True)
    assert fabric_cost(plan, 4, paths).messages_ns == ()
    assert {(t.source, t.target, t.index) for t in cost.messages_ns} == {
        (m.source, m.target, m.index) for m in plan_messages(plan)
    }
    counts = {(m.source, m.target, m.index): m.count for m in plan_messages(plan)}
    for time in cost.messages_ns:
        path = paths.path(time.source, time.target)
        assert time.arrived_ns == time.departed_ns + path.latency_ns
        at_best = path.rate.transfer_ns(4 * counts[time.source, time.target, time.index])
        assert time.departed_ns - time.started_ns >= at_best - 1
    assert max(time.arrived_ns for time in cost.messages_ns) == cost.predicted_ns
