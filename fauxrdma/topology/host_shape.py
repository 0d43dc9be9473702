"""What is inside a host. All hosts of a fabric are alike, so one shape describes them.

::

    gpu0  gpu1      gpu2  gpu3            nvsw0 .. nvswN   every GPU to every NVSwitch (kind "nvlink")
      \\   /  \\       \\   /  \\
      pcie0  hca1    pcie1  hca2   pcie2 - hca3 (storage)
        \\              |            /
         `----------  mem  --------'      host memory, behind the root complex (kind "pcie")

With GPUDirect RDMA an HCA reads and writes GPU memory through the PCIe switch they share. Without it every message is
copied through host memory and crosses the uplinks of the PCIe switches: GPU, switch, memory, switch, HCA.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fauxrdma.errors import ConfigError
from fauxrdma.units import Rate

__all__ = ["GPUS_PER_HCA", "PCIE_GEN4_X16", "HostShape"]

PCIE_GEN4_X16 = Rate.gbps(252)
"""16 lanes x 16 GT/s x 128/130 line coding, before TLP headers."""

GPUS_PER_HCA = (0, 1, 2, 4)
"""How many GPUs may share a compute HCA; 0: there are none, and GPUs use the storage HCAs."""


@dataclass(frozen=True, slots=True)
class HostShape:
    """One host. Compute HCAs come first (``hca1``...), storage HCAs after them.

    `gpus_per_hca` GPUs with consecutive numbers share a compute HCA, which sits on the PCIe switch of the first of
    them; each storage HCA has a PCIe switch of its own. `pcie_rate` is the rate of each device's lanes and of each PCIe
    switch's uplink to host memory. `nvlink_rate` is what one GPU can send over NVLink (in one direction), split evenly
    over `nvswitches`; None means no NVLink. Raises ConfigError for a shape that cannot be.
    """

    gpus: int = 8
    gpus_per_hca: int = 1
    storage_hcas: int = 1
    gpus_per_pcie_switch: int = 2
    pcie_rate: Rate = PCIE_GEN4_X16
    nvlink_rate: Rate | None = None
    nvswitches: int = 0
    gpudirect: bool = True

    def __post_init__(self) -> None:
        if self.gpus < 0 or self.storage_hcas < 0:
            raise ConfigError(f"a host cannot have {self.gpus} GPUs and {self.storage_hcas} storage HCAs")
        if self.gpus_per_hca not in GPUS_PER_HCA:
            raise ConfigError(f"GPUs per HCA must be 1, 2 or 4, or 0 for no compute HCAs, not {self.gpus_per_hca}")
        if self.gpus_per_pcie_switch < 1:
            raise ConfigError(f"GPUs per PCIe switch must be at least 1, not {self.gpus_per_pcie_switch}")
        if self.hcas < 1:
            raise ConfigError("a host needs an HCA: with no compute HCAs (gpus_per_hca 0) it needs a storage HCA")
        if (self.nvlink_rate is None) != (self.nvswitches == 0) or self.nvswitches < 0:
            raise ConfigError(
                f"NVLink needs a rate and NVSwitches, or neither: got {self.nvlink_rate or 'no rate'} and "
                f"{self.nvswitches} NVSwitches"
            )

    @property
    def compute_hcas(self) -> int:
        """HCAs that serve GPUs, the storage HCAs not counted."""
        return -(-self.gpus // self.gpus_per_hca) if self.gpus_per_hca else 0

    @property
    def hcas(self) -> int:
        """All HCAs of a host."""
        return self.compute_hcas + self.storage_hcas

    @property
    def gpu_pcie_switches(self) -> int:
        """PCIe switches that GPUs sit on; one more follows for each storage HCA."""
        return -(-self.gpus // self.gpus_per_pcie_switch)

    def hca_of_gpu(self, gpu: int) -> int:
        """The index (from 1) of the HCA that GPU `gpu` (from 0) uses. Without compute HCAs the storage HCAs are shared
        out among the GPUs in blocks."""
        if self.gpus_per_hca:
            return gpu // self.gpus_per_hca + 1
        return gpu * self.storage_hcas // self.gpus + 1

    def gpus_of_hca(self, hca: int) -> list[int]:
        """The GPUs (from 0) that use HCA `hca` (from 1); none for one that only serves storage."""
        return [gpu for gpu in range(self.gpus) if self.hca_of_gpu(gpu) == hca]

    def pcie_switch_of_hca(self, hca: int) -> int:
        """The PCIe switch (from 0) that HCA `hca` (from 1) sits on."""
        if hca <= self.compute_hcas:
            return (hca - 1) * self.gpus_per_hca // self.gpus_per_pcie_switch
        return self.gpu_pcie_switches + hca - self.compute_hcas - 1

    def to_dict(self) -> dict[str, Any]:
        """Plain data, rates in bits/s."""
        return {
            "gpus": self.gpus,
            "gpus_per_hca": self.gpus_per_hca,
            "storage_hcas": self.storage_hcas,
            "gpus_per_pcie_switch": self.gpus_per_pcie_switch,
            "pcie_rate_bps": self.pcie_rate.bits_per_s,
            "nvlink_rate_bps": None if self.nvlink_rate is None else self.nvlink_rate.bits_per_s,
            "nvswitches": self.nvswitches,
            "gpudirect": self.gpudirect,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> HostShape:
        """The shape that `to_dict` described. Raises KeyError or TypeError for anything else."""
        nvlink_bps = data["nvlink_rate_bps"]
        return cls(
            gpus=data["gpus"],
            gpus_per_hca=data["gpus_per_hca"],
            storage_hcas=data["storage_hcas"],
            gpus_per_pcie_switch=data["gpus_per_pcie_switch"],
            pcie_rate=Rate(data["pcie_rate_bps"]),
            nvlink_rate=None if nvlink_bps is None else Rate(nvlink_bps),
            nvswitches=data["nvswitches"],
            gpudirect=data["gpudirect"],
        )
