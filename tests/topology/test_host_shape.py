"""What is inside a host: who sits where, who uses which HCA, and which shapes cannot be."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from fauxrdma.errors import ConfigError
from fauxrdma.topology.building import TopologyBuilder
from fauxrdma.topology.graph import NodeKind, Topology
from fauxrdma.topology.host_shape import HostShape
from fauxrdma.units import Rate


def host(shape: HostShape) -> Topology:
    """One host of this shape on one switch."""
    builder = TopologyBuilder(shape)
    builder.add_switch("leaf1", 0, 64)
    builder.add_host(0)
    for i in range(1, shape.hcas + 1):
        builder.connect(f"n0.hca{i}", "leaf1", Rate.gbps(200), 3.0)
    return builder.build(name="one", description="", hosts=1)


@pytest.mark.parametrize(
    ("shape", "hca_of_gpus", "pcie_of_hcas"),
    [
        (HostShape(), [1, 2, 3, 4, 5, 6, 7, 8], [0, 0, 1, 1, 2, 2, 3, 3, 4]),
        (HostShape(gpus_per_hca=2), [1, 1, 2, 2, 3, 3, 4, 4], [0, 1, 2, 3, 4]),
        (HostShape(gpus_per_hca=4), [1, 1, 1, 1, 2, 2, 2, 2], [0, 2, 4]),
        (HostShape(gpus_per_hca=4, gpus_per_pcie_switch=4, storage_hcas=0), [1, 1, 1, 1, 2, 2, 2, 2], [0, 1]),
        (HostShape(gpus_per_hca=0), [1] * 8, [4]),
        (HostShape(gpus_per_hca=0, storage_hcas=2), [1, 1, 1, 1, 2, 2, 2, 2], [4, 5]),
        (HostShape(gpus=3, gpus_per_hca=2, storage_hcas=2), [1, 1, 2], [0, 1, 2, 3]),
        (HostShape(gpus=0, storage_hcas=2), [], [0, 1]),
    ],
)
def test_gpus_share_hcas_in_blocks_and_each_hca_has_its_place(
    shape: HostShape, hca_of_gpus: list[int], pcie_of_hcas: list[int]
) -> None:
    topology = host(shape)
    gpus = [topology.gpu(0, g) for g in range(shape.gpus)]
    assert [topology.hca_of(gpu).index for gpu in gpus] == hca_of_gpus
    assert shape.hcas == topology.hcas_per_host == len(topology.hcas()) == len(pcie_of_hcas)
    for hca, pcie in zip(topology.hcas(), pcie_of_hcas, strict=True):
        assert [k.dst for k in topology.links_from(hca.name) if k.kind == "pcie"] == [f"n0.pcie{pcie}"]
        assert topology.gpus_of(hca) == [gpu for gpu, i in zip(gpus, hca_of_gpus, strict=True) if i == hca.index]
    for gpu in gpus:
        assert [k.dst for k in topology.links_from(gpu.name)] == [f"n0.pcie{gpu.index // shape.gpus_per_pcie_switch}"]
    uplinks = [k.dst for k in topology.links_from(topology.memory(0).name)]
    assert uplinks == [node.name for node in topology.nodes.values() if node.kind is NodeKind.PCIE]
    assert Topology.from_dict(json.loads(json.dumps(topology.to_dict()))) == topology


def test_every_gpu_has_a_share_of_its_nvlink_rate_to_every_nvswitch() -> None:
    topology = host(HostShape(gpus=4, nvlink_rate=Rate.gbps(3600), nvswitches=4))
    links = [link for link in topology.links if link.kind == "nvlink"]
    assert {link.rate for link in links} == {Rate.gbps(900)}
    out = Counter((link.src, link.dst) for link in links if link.src.startswith("n0.gpu"))
    assert out == {(f"n0.gpu{g}", f"n0.nvsw{s}"): 1 for g in range(4) for s in range(4)}
    assert len(links) == 2 * len(out)


def test_active_hcas_are_those_of_the_gpus_in_use() -> None:
    topology = host(HostShape(gpus_per_hca=2))
    topology.active_gpus = 3
    assert [hca.name for hca in topology.active_hcas(0)] == ["n0.hca1", "n0.hca2"]


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"gpus_per_hca": 3}, "GPUs per HCA must be 1, 2 or 4, or 0 for no compute HCAs, not 3"),
        ({"gpus_per_hca": 0, "storage_hcas": 0}, "a host needs an HCA"),
        ({"gpus": -1}, "-1 GPUs"),
        ({"gpus_per_pcie_switch": 0}, "at least 1, not 0"),
        ({"nvswitches": 2}, "NVLink needs a rate and NVSwitches, or neither: got no rate and 2"),
        ({"nvlink_rate": Rate.gbps(100)}, "100 Gb/s and 0 NVSwitches"),
    ],
)
def test_shapes_that_cannot_be_are_refused(keys: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        HostShape(**keys)  # type: ignore[arg-type]
