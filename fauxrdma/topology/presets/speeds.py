"""Generations of hardware by the name of their InfiniBand rate."""

from __future__ import annotations

from dataclasses import dataclass

from fauxrdma.topology.host_shape import PCIE_GEN4_X16
from fauxrdma.units import Rate

__all__ = ["SPEEDS", "Speed"]


@dataclass(frozen=True, slots=True)
class Speed:
    """A generation: the rate of every cable (4x port), of the PCIe lanes behind each HCA and GPU, and the NVLink of a
    host of eight GPUs of that time: what one GPU can send, and over how many NVSwitches."""

    name: str
    cable: Rate
    pcie: Rate
    nvlink: Rate
    nvswitches: int


def _gigabytes(per_second: int) -> Rate:
    return Rate.gbps(8 * per_second)


SPEEDS = {
    # HGX-2 (V100): 6 NVLinks of 25 GB/s each way per GPU, 6 NVSwitches on a board of 8 GPUs
    "edr": Speed("edr", Rate.gbps(100), PCIE_GEN4_X16, _gigabytes(150), 6),
    # DGX A100: 12 NVLinks of 25 GB/s, 6 NVSwitches
    "hdr": Speed("hdr", Rate.gbps(200), PCIE_GEN4_X16, _gigabytes(300), 6),
    # DGX H100: 18 NVLinks of 25 GB/s, 4 NVSwitches; PCIe gen5 x16
    "ndr": Speed("ndr", Rate.gbps(400), Rate.gbps(504), _gigabytes(450), 4),
    # DGX B300: 18 NVLinks of 50 GB/s, 2 NVSwitches; PCIe gen6 x16, where 236 of every 256-byte flit carry packets
    "xdr": Speed("xdr", Rate.gbps(800), Rate.gbps(944), _gigabytes(900), 2),
}
