"""Every example fabric file has routes between all its HCAs, and its transport's costs."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest

from fauxrdma.errors import FabricUnhealthy
from fauxrdma.fabric.dilation import delay_dilation
from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.fabric.transport import INFINIBAND, ROCEV2
from fauxrdma.topology.graph import Topology
from fauxrdma.topology.loading import load_topology

EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "fabrics").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_hca_reaches_every_other_of_its_island(path: Path) -> None:
    topology = load_topology(str(path))
    manager = SubnetManager(topology)
    assert manager.transport.name == topology.transport
    assert topology.routing in (None, manager.engine)
    islands = topology.members_of_islands()
    assert len(islands) == topology.islands
    for island in islands:
        for a, b in permutations([manager.lid(hca.name) for hca in island], 2):
            way = manager.path(a, b)
            assert way.switches >= 1
            assert way.rate.bits_per_s > 0
    for one, other in permutations([manager.lid(island[0].name) for island in islands], 2):
        with pytest.raises(FabricUnhealthy):
            manager.path(one, other)


def test_ethernet_costs_more_per_packet_and_per_message() -> None:
    path = next(path for path in EXAMPLES if path.stem == "roce-two-tier")
    ethernet = load_topology(str(path))
    infiniband = Topology.from_dict({**ethernet.to_dict(), "transport": "infiniband"})
    assert ROCEV2.efficiency(4096) == pytest.approx(0.9804, abs=5e-5)  # REFERENCE B
    slow, fast = SubnetManager(ethernet).path(1, 2), SubnetManager(infiniband).path(1, 2)
    # Two HCAs on one leaf that stores and forwards one packet of 4096 bytes at 100 Gb/s.
    more = ROCEV2.tx_ns + ROCEV2.rx_ns - INFINIBAND.tx_ns - INFINIBAND.rx_ns
    assert slow.latency_ns - fast.latency_ns == more + (82 - 26) * 8 // 100 + 1
    assert 3000 <= slow.latency_ns <= 5000  # REFERENCE C: 3-5 us
    assert delay_dilation(ethernet) < delay_dilation(infiniband)
