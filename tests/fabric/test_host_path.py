"""From memory to the HCA: with GPUDirect through one PCIe switch, without it through host memory."""

from __future__ import annotations

import pytest

from fauxrdma.errors import FabricUnhealthy
from fauxrdma.fabric.host_path import links_to_hca
from fauxrdma.fabric.model import FabricModel
from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.topology.building import TopologyBuilder
from fauxrdma.topology.graph import Topology
from fauxrdma.topology.host_shape import HostShape
from fauxrdma.topology.loading import load_topology
from fauxrdma.units import Rate

HDR = Rate(200 * 10**9 * 4096 // 4122)
LANES = Rate(252 * 10**9 * 256 // 280)
"""Payload rates of a cable and of PCIe gen4 x16."""


def host(shape: HostShape) -> Topology:
    """One host of this shape on one switch."""
    builder = TopologyBuilder(shape)
    builder.add_switch("leaf1", 0, 64)
    builder.add_host(0)
    for i in range(1, shape.hcas + 1):
        builder.connect(f"n0.hca{i}", "leaf1", Rate.gbps(200), 3.0)
    return builder.build(name="one", description="", hosts=1)


@pytest.mark.parametrize(
    ("shape", "memory", "hca", "way"),
    [
        (HostShape(), "gpu2", 3, "gpu2 pcie1 hca3"),
        (HostShape(gpudirect=False), "gpu2", 3, "gpu2 pcie1 mem pcie1 hca3"),
        (HostShape(), "mem", 3, "mem pcie1 hca3"),
        (HostShape(gpudirect=False), "mem", 3, "mem pcie1 hca3"),
        (HostShape(), "mem", 9, "mem pcie4 hca9"),
        (HostShape(gpus_per_hca=4), "gpu3", 1, "gpu3 pcie1 mem pcie0 hca1"),  # the HCA is behind another switch
        (HostShape(gpus_per_hca=4, gpus_per_pcie_switch=4), "gpu3", 1, "gpu3 pcie0 hca1"),
        (HostShape(gpus_per_hca=0), "gpu7", 1, "gpu7 pcie3 mem pcie4 hca1"),
    ],
)
def test_the_way_from_memory_to_the_hca(shape: HostShape, memory: str, hca: int, way: str) -> None:
    topology = host(shape)
    links = links_to_hca(topology, topology.nodes[f"n0.{memory}"], topology.hca(0, hca))
    stops = [f"n0.{stop}" for stop in way.split()]
    assert [links[0].src, *(link.dst for link in links)] == stops
    assert all(link.src == before for link, before in zip(links, stops, strict=False))


@pytest.mark.parametrize("name", ["rail-only", "dual-plane", "superpod"])
def test_a_way_leads_to_the_own_island_only(name: str) -> None:
    topology = load_topology(name, 3)
    manager = SubnetManager(topology)
    islands = topology.members_of_islands()
    assert len(islands) == topology.islands > 1
    for here, members in enumerate(islands, start=1):
        source = members[0]
        for target in members:
            path = manager.path(manager.lid(source.name), manager.lid(target.name))
            assert topology.links[path.links[0]].src.startswith(f"n{source.host}.")
        for there, others in enumerate(islands, start=1):
            if there != here:
                low, high = sorted((here, there))
                says = rf"from {source.name} to {others[-1].name}: they are on islands {low} and {high} of {name}.*PXN"
                with pytest.raises(FabricUnhealthy, match=says):
                    manager.path(manager.lid(source.name), manager.lid(others[-1].name))


@pytest.mark.parametrize(
    ("options", "rate"),
    [
        ("", HDR),  # every GPU its own lanes and cable, both ways at once
        (",gpudirect=off", Rate(LANES.bits_per_s // 4)),  # two GPUs send and receive over one uplink, twice each
        (",gpudirect=off,gpus_per_pcie_switch=1", Rate(LANES.bits_per_s // 2)),
        (",gpus_per_hca=2", Rate(HDR.bits_per_s // 2)),  # two GPUs, one cable
        (",gpus_per_hca=4", Rate(HDR.bits_per_s // 4)),
        (",gpus_per_hca=0", Rate(HDR.bits_per_s // 8)),  # all over the storage HCA
    ],
)
def test_gpus_that_exchange_with_another_node_share_what_is_narrowest(options: str, rate: Rate) -> None:
    """Every GPU of two nodes on one switch sends to its opposite number at the same time."""
    topology = load_topology(f"single-switch{options}", 2)
    manager = SubnetManager(topology)
    model: FabricModel[tuple[int, int]] = FabricModel.of(manager)
    for node in range(2):
        for gpu in range(8):
            source, target = (topology.hca_of(topology.gpu(host, gpu)) for host in (node, 1 - node))
            model.start((node, gpu), manager.path(manager.lid(source.name), manager.lid(target.name)))
    rates = list(model.changes().values())
    assert len(rates) == 16
    assert rates == pytest.approx([rate.bits_per_s] * 16, abs=1)
