"""Which memory of its node a registered byte is in, as one number: what the fabric charges its way to the HCA by.

- 0: **host memory**, behind the root complex. What a region is in unless it says otherwise.
- n > 0: the memory of **GPU** n - 1 of the node.
- -1: the **HCA's own** memory (DM): no PCIe link is crossed.
"""

from __future__ import annotations

__all__ = ["HCA_MEMORY", "HOST_MEMORY", "Extent", "gpu_memory"]

HOST_MEMORY = 0
HCA_MEMORY = -1

Extent = tuple[int, int]
"""A memory's number and how many bytes of a payload are in it."""


def gpu_memory(gpu: int | None) -> int:
    """The number of the memory of GPU `gpu` (from 0); of host memory for None."""
    return HOST_MEMORY if gpu is None else gpu + 1
