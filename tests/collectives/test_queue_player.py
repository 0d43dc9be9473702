"""Plans played through queues: as fast as over fair links where nothing meets, and what happens where much does."""

from __future__ import annotations

import pytest

from fauxrdma.collectives.fabric_cost import fabric_cost
from fauxrdma.collectives.fabric_player import Flight, Operation, PlayedFlow
from fauxrdma.collectives.queue_player import play_in_queues
from fauxrdma.collectives.rank_paths import RankPaths
from fauxrdma.collectives.selector import Selector
from fauxrdma.errors import FabricUnhealthy, LocalProtocolError
from fauxrdma.fabric.queues.settings import QueueSettings
from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.fabric.transport import CongestionControl
from fauxrdma.topology.loading import load_topology
from fauxrdma.topology.rank_places import block_places

MEGABYTE = 1 << 20


def selectors(fabric: str, nodes: int, gpus: int = 1, **settings: object) -> tuple[Selector, Selector]:
    """The same ranks over fair links and through queues."""
    topology = load_topology(fabric, nodes)
    manager = SubnetManager(topology)
    places = block_places(topology, nodes, gpus)
    queues = QueueSettings.of(manager.transport, **settings)  # type: ignore[arg-type]
    return Selector(RankPaths(manager, places)), Selector(RankPaths(manager, places, queues=queues))


@pytest.mark.parametrize("transport", ["infiniband", "rocev2", "iwarp"])
@pytest.mark.parametrize("nbytes", [8, 64 << 10, MEGABYTE])
def test_where_nothing_meets_both_models_agree(transport: str, nbytes: int) -> None:
    fair, queued = selectors(f"fat-tree,transport={transport}", 4, congestion_control=CongestionControl.NONE)
    for algorithm in ("ring", "halving-doubling", "recursive-doubling"):
        expected = fair.cost("all_reduce", algorithm, nbytes).predicted_ns
        assert queued.cost("all_reduce", algorithm, nbytes).predicted_ns == pytest.approx(expected, rel=0.03), algorithm


def test_messages_of_two_ranks_by_hand() -> None:
    """Rank 0 sends 100,000 bytes twice, rank 1 answers the first with 50,000 as soon as it has it."""
    topology = load_topology("single-switch", 2)
    manager = SubnetManager(topology)
    there, back = (manager.path(*ends) for ends in ((1, 10), (10, 1)))
    go, answer = (
        PlayedFlow(rank, path.links, path.rate.bits_per_s, path.latency_ns) for rank, path in ((1, there), (0, back))
    )
    programs: list[list[Operation]] = [
        [(go, 100_000), (go, 100_000), (answer, ~0)],
        [(go, ~0), (answer, 50_000), (go, ~1)],
    ]
    flights: list[Flight] = []
    ends = play_in_queues(
        programs,
        {go: (there.links,), answer: (back.links,)},
        {go: 0, answer: 0},
        [manager.payload_rate(link.id).bits_per_s for link in topology.links],
        topology,
        QueueSettings.of(manager.transport),
        flights,
    )
    rate, latency = there.rate.bytes_per_ns, there.latency_ns
    first = 100_000 / rate + latency
    assert ends[0] == pytest.approx(first + 50_000 / rate + latency, abs=30)
    assert ends[1] == pytest.approx(200_000 / rate + latency, abs=30)
    assert [(flow, round(arrived)) for flow, _, _, arrived in flights if flow is answer] == [(answer, ends[0])]
    assert len(flights) == 3


def test_a_plan_that_never_ends() -> None:
    topology = load_topology("single-switch", 2)
    manager = SubnetManager(topology)
    path = manager.path(1, 10)
    flow = PlayedFlow(1, path.links, path.rate.bits_per_s, path.latency_ns)
    rates = [manager.payload_rate(link.id).bits_per_s for link in topology.links]
    with pytest.raises(LocalProtocolError, match=r"ranks \[1\] wait"):
        play_in_queues(
            [[(flow, 8)], [(flow, ~0), (flow, ~1)]],
            {flow: (path.links,)},
            {flow: 0},
            rates,
            topology,
            QueueSettings.of(manager.transport),
        )


def test_an_exchange_that_deadlocks_is_not_usable() -> None:
    """Ten ranks around a ring of five switches: in round 2 of the pairwise exchange everybody sends two switches on."""
    fair, queued = selectors("ring,switches=5", 10)
    assert set(fair.compare("all_to_all", MEGABYTE).predicted_ns) == {"pairwise", "direct"}
    choice = queued.compare("all_to_all", MEGABYTE)
    assert set(choice.predicted_ns) == {"direct"}
    assert choice.unusable["pairwise"].startswith("the fabric deadlocks: leaf1->leaf2 -> leaf2->leaf3")
    with pytest.raises(FabricUnhealthy, match="deadlocks"):
        queued.cost("all_to_all", "pairwise", MEGABYTE)
    # Not so with virtual lanes.
    _, free = selectors("ring,switches=5,routing=dfsssp", 10)
    assert set(free.compare("all_to_all", MEGABYTE).predicted_ns) == {"pairwise", "direct"}


def test_dcqcn_costs_where_flows_meet() -> None:
    fair, queued = selectors("examples/fabrics/roce-two-tier.yaml", 4, 2)
    _, paused = selectors("examples/fabrics/roce-two-tier.yaml", 4, 2, congestion_control=CongestionControl.NONE)
    ideal, slow, held = (
        each.cost("all_reduce", "direct", 16 * MEGABYTE).predicted_ns for each in (fair, queued, paused)
    )
    # The senders find their shares in steps of 40 Mb/s; without DCQCN, PAUSE keeps the cables full.
    assert slow > 1.5 * ideal
    assert held < 1.2 * ideal


def test_bytes_and_messages_are_those_of_the_plan() -> None:
    fair, queued = selectors("fat-tree", 4)
    plan = fair.plan("all_reduce", "ring", MEGABYTE)
    one, two = (fabric_cost(plan, 1, each.paths, messages_too=True) for each in (fair, queued))
    assert (one.pairs, one.link_bytes, one.between_nodes) == (two.pairs, two.link_bytes, two.between_nodes)
    assert len(one.messages_ns) == len(two.messages_ns) == one.messages
    assert two == fabric_cost(plan, 1, queued.paths, messages_too=True)
