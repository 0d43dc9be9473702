"""Ranks of a node share memory, others talk over daemons: what crosses the spines is arithmetic, and every link of the
fabric, NVLink and PCIe included, carried what the plan says.

N nodes of G GPUs, n = N G ranks, S bytes. Each hop of a ring carries 2 S (n-1)/n; between nodes it stays on its rail,
and off the spines, when the placement or the cross-NIC policy sees to it. Hierarchical algorithms always do.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from rank_threads import all_well, run_ranks

from fauxrdma.collectives.candidates import LANES, SLOT_BYTES, Ranks
from fauxrdma.collectives.channels import channel_routes
from fauxrdma.collectives.fabric_cost import FabricCost, fabric_cost
from fauxrdma.collectives.rank_paths import NVLINK, RankPaths
from fauxrdma.collectives.request import Request
from fauxrdma.collectives.selector import Selector
from fauxrdma.communicator import Communicator, mesh
from fauxrdma.communicator.channel_set import channel_slot_bytes
from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.lab.local import LocalLab

COUNT = 9 << 14
SIZE = 4 * COUNT
"""Bytes of float32: divisible by all that rings of four and six ranks, and their channels, cut it into."""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is repeated only because this host stalls for half a second."""
    monkeypatch.setattr(mesh, "ACK_TIMEOUT_S", 30.0)


def predicted(lab: LocalLab, algorithm: str, channels: int = 1, cross_nic: int | None = None) -> FabricCost:
    """By the plan, the routes of the channels and the forwarding tables."""
    places = lab.placement.places
    paths = RankPaths(SubnetManager(lab.topology, lab.seed), places, NVLINK)
    ranks = Ranks.of(lab.topology, places, SLOT_BYTES, LANES)
    routes = ()
    if cross_nic is not None:
        hcas = [place.hca for place in places]
        routes = channel_routes(ranks.nodes, hcas, ranks.rails or (), channels, cross_nic)
    slots = channel_slot_bytes(SLOT_BYTES, channels)
    selector = Selector(paths, ranks=ranks, routes=routes, channel_slot_bytes=slots)
    request = Request("all_reduce", len(places), COUNT, 4, SLOT_BYTES, LANES, nodes=ranks.nodes, rails=ranks.rails)
    return fabric_cost(selector.plan_of(request, algorithm), 4, paths)


def measured(lab: LocalLab, algorithm: str, **options: Any) -> dict[str, int]:
    """Bytes by link, of one all-reduce."""

    def work(communicator: Communicator) -> None:
        data = np.full(COUNT, communicator.rank, "f4")
        communicator.all_reduce(data, algorithm=algorithm)
        assert (data == sum(range(communicator.world_size))).all()

    for _ in range(5):
        lab.report(reset=True)
        all_well(run_ranks(lab, lab.world_size, work, **options))
        report = lab.report()
        if report.retransmits == 0:
            return {link.name: link.nbytes for link in report.links if link.nbytes}
    pytest.fail("five runs, and in each of them frames were repeated: this host is too slow now")


def over_spines(lab: LocalLab, carried: dict[str, int]) -> int:
    tiers = {switch.name: switch.tier or 0 for switch in lab.topology.switches()}
    return sum(
        carried.get(link.name, 0) for link in lab.topology.links if tiers.get(link.src) == 0 and tiers.get(link.dst)
    )


@pytest.mark.parametrize(
    ("nodes", "placement", "algorithm", "options", "hops_over_spines"),
    [
        (2, "block", "ring", {}, 2),
        (2, "cyclic", "ring", {}, 2),
        (2, "rail-aligned", "ring", {}, 0),
        (3, "block", "ring", {}, 3),
        (3, "rail-aligned", "ring", {}, 0),
        (2, "block", "ring", {"channels": 2, "cross_nic": 0}, 0),
        (2, "block", "ring", {"channels": 2, "cross_nic": 1}, 2),
        (2, "block", "ring", {"channels": 2, "cross_nic": 2}, 0),
        (3, "block", "ring", {"channels": 2, "cross_nic": 0}, 0),
        (2, "block", "hierarchical", {}, 0),
        (3, "block", "hierarchical", {}, 0),
        (2, "rail-aligned", "hierarchical", {}, 0),
        (2, "block", "hierarchical-tree", {}, 0),
    ],
)
def test_every_link_carries_what_the_plan_says(
    nodes: int, placement: str, algorithm: str, options: dict[str, Any], hops_over_spines: int
) -> None:
    with LocalLab("seed-rail8,nvlink=on", nodes=nodes, gpus=2, clock="none", placement=placement) as lab:
        carried = measured(lab, algorithm, **options)
        cost = predicted(lab, algorithm, **options)
        assert carried == {lab.topology.links[link].name: nbytes for link, nbytes in cost.link_bytes.items()}
        n = lab.world_size
        assert over_spines(lab, carried) == cost.over_spines == hops_over_spines * 2 * SIZE * (n - 1) // n
        if placement != "cyclic":  # whose ring of two nodes goes from node to node all the time
            assert any("nv" in name for name in carried)
