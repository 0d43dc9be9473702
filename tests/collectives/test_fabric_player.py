"""The played time against the paced clock's own parts: one LinkScheduler for all flows and the fabric's FabricModel."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fauxrdma.collectives.algorithms import ALL_REDUCE, all_reduce_plan
from fauxrdma.collectives.barrier import dissemination_barrier
from fauxrdma.collectives.cost import predict_ns
from fauxrdma.collectives.direct import all_to_all
from fauxrdma.collectives.fabric_cost import fabric_cost
from fauxrdma.collectives.fabric_player import PlayedFlow, play
from fauxrdma.collectives.plan import Plan, Put, Signal, Wait
from fauxrdma.collectives.rank_paths import RankPaths
from fauxrdma.errors import LocalProtocolError
from fauxrdma.fabric.link_scheduler import LinkScheduler
from fauxrdma.fabric.model import FabricModel
from fauxrdma.fabric.subnet import Path, SubnetManager
from fauxrdma.topology.loading import load_topology
from fauxrdma.topology.rank_places import block_places
from fauxrdma.units import Rate


def paths_of(fabric: str, nodes: int, gpus: int, intra_node: str = "hca") -> RankPaths:
    topology = load_topology(fabric, nodes, gpus)
    return RankPaths(SubnetManager(topology), block_places(topology, nodes, gpus), intra_node)


class SlowWorld:
    """All ranks over the real scheduler and model, event by event, without any shortcut."""

    def __init__(self, plan: Plan, itemsize: int, paths: RankPaths) -> None:
        self.plan, self.itemsize, self.paths = plan, itemsize, paths
        self.scheduler = LinkScheduler()
        rates = {(link.id,): paths.manager.payload_rate(link.id) for link in paths.topology.links}
        for a in range(plan.world_size):
            for b in range(plan.world_size):
                if a != b:
                    rates |= {hop: paths.hop_rate(hop) for hop in paths.path(a, b).hops}
        self.hops = list(rates)
        self.model: FabricModel[int] = FabricModel(list(rates.values()))
        self.arrived: dict[tuple[int, int], int] = {}
        self.position = [0] * plan.world_size
        self.end = [0] * plan.world_size

    def flow(self, source: int, target: int) -> int:
        number = source * self.plan.world_size + target
        path = self.paths.path(source, target)
        self.scheduler.open(number, path.rate.bits_per_s, path.latency_ns)
        return number

    def put(self, source: int, target: int, nbytes: int, now: int) -> None:
        number = self.flow(source, target)
        self.scheduler.submit(number, (source, target), nbytes, now, ordered=True)
        if nbytes and number not in self.model:
            path = self.paths.path(source, target)
            links = tuple(self.hops.index(hop) for hop in path.hops)
            ways = tuple(tuple(self.hops.index((link,)) for link in way) for way in path.ways)
            self.model.start(number, Path(links, 0, path.latency_ns, path.rate, ways))

    def advance(self, rank: int, now: int) -> None:
        steps = self.plan.program(rank).steps
        while self.position[rank] < len(steps):
            step = steps[self.position[rank]]
            if isinstance(step, Wait) and self.arrived.get((step.peer, rank), 0) <= step.index:
                return
            if isinstance(step, Put | Signal):
                nbytes = step.src.count * self.itemsize if isinstance(step, Put) else 0
                self.put(rank, step.peer, nbytes, now)
            self.position[rank] += 1
            self.end[rank] = now

    def run(self) -> list[int]:
        now: int | None = 0
        while now is not None:
            departures = self.scheduler.poll(now)
            for flow in self.scheduler.idle_flows(now):
                self.model.stop(flow)
            for departure in departures:
                source, target = departure.item  # type: ignore[misc]
                self.arrived[source, target] = self.arrived.get((source, target), 0) + 1
            for rank in range(self.plan.world_size):
                self.advance(rank, now)
            for flow, rate in self.model.changes().items():
                self.scheduler.set_rate(flow, rate, now)
            now = self.scheduler.next_ns()
        return self.end


FABRICS = [
    ("seed-rail8", 2, 2, "hca"),
    ("seed-two-switch", 2, 3, "hca"),
    ("seed-two-switch", 3, 4, "hca"),
    ("fat-tree", 3, 2, "hca"),
    ("fat-tree:edr,oversubscription=3", 3, 2, "hca"),
    ("superpod", 2, 4, "nvlink"),
    ("seed-rail8", 2, 4, "nvlink"),
    ("fat-tree,transport=rocev2", 4, 2, "nvlink"),
    ("fat-tree,oversubscription=3,transport=rocev2,routing=spray", 4, 2, "hca"),
    ("seed-rail8,transport=rocev2,routing=spray", 2, 3, "hca"),
]


@pytest.mark.parametrize("algorithm", [*ALL_REDUCE, "all_to_all", "barrier"])
@settings(max_examples=15, deadline=None)
@given(where=st.sampled_from(FABRICS), count=st.integers(0, 40_000))
def test_to_the_nanosecond_what_scheduler_and_model_do(
    algorithm: str, where: tuple[str, int, int, str], count: int
) -> None:
    paths = paths_of(*where)
    n = paths.world_size
    if algorithm == "barrier":
        plan = dissemination_barrier(n)
    elif algorithm == "all_to_all":
        plan = all_to_all([[count // n] * n for _ in range(n)], chunk=1000, lanes=2, pairwise=False)
    else:
        plan = all_reduce_plan(algorithm, count, n, 4, 16 << 10, 2)
    cost = fabric_cost(plan, 4, paths)
    assert list(cost.end_ns) == SlowWorld(plan, 4, paths).run()


@pytest.mark.parametrize("algorithm", ["ring", "recursive-doubling", "halving-doubling"])
@pytest.mark.parametrize("size", [8, 1 << 16, 1 << 22])
def test_on_equal_links_that_nobody_shares_it_is_the_alpha_beta_model(algorithm: str, size: int) -> None:
    # Four nodes on one switch, a rank each: every rank sends to one other at a time, over a path of one length.
    paths = paths_of("single-switch", 4, 1)
    path = paths.path(0, 1)
    plan = all_reduce_plan(algorithm, size // 4, 4, 4, 2 << 20, 2)
    ideal = predict_ns(plan, path.latency_ns, path.rate.bytes_per_ns, itemsize=4)
    assert fabric_cost(plan, 4, paths).predicted_ns == pytest.approx(ideal, rel=1e-6, abs=2 * plan.rounds)


def test_two_flows_share_what_one_has_alone() -> None:
    rate = Rate.gbps(8).bits_per_s  # a byte per ns
    alone = PlayedFlow(1, [0], rate, 100)
    assert play([[(alone, 1000)], [(alone, ~0)]], [alone], [rate]) == [0, 1100]
    first, second = (PlayedFlow(target, [0], rate, 100) for target in (1, 2))
    programs = [[(first, 1000), (second, 500)], [(first, ~0)], [(second, ~0)]]
    # Half each until the second is done at 1000; the first then has 500 bytes left at the full rate.
    assert play(programs, [first, second], [rate]) == [0, 1600, 1100]


def test_ranks_that_wait_for_each_other_are_named() -> None:
    there, back = PlayedFlow(1, [0], 10**9, 1), PlayedFlow(0, [1], 10**9, 1)
    with pytest.raises(LocalProtocolError, match=r"ranks \[0, 1\] wait"):
        play([[(back, ~0), (there, 1)], [(there, ~0), (back, 1)]], [there, back], [10**9, 10**9])
