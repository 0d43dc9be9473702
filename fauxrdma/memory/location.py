"""Which memory of its node a registered byte is in, as one number: what the fabric charges its way to the HCA by.

- 0: **host memory**, behind the root complex. What a region is in unless it says otherwise.
- n > 0: the memory of **GPU** n - 1 of the node.
- -1: the **HCA's own** memory (DM): no PCIe link is crossed.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["HCA_MEMORY", "HOST_MEMORY", "Extent", "gpu_memory", "main_memory"]

HOST_MEMORY = 0
HCA_MEMORY = -1

Extent = tuple[int, int]
"""A memory's number and how many bytes of a payload are in it."""


def gpu_memory(gpu: int | None) -> int:
    """The number of the memory of GPU `gpu` (from 0); of host memory for None."""
    return HOST_MEMORY if gpu is None else gpu + 1


def main_memory(extents: Sequence[Extent]) -> int:
    """The memory that most bytes of a payload are in, the first of several with as many; host memory of none."""
    if len(extents) == 1:
        return extents[0][0]
    nbytes: dict[int, int] = {}
    for memory, size in extents:
        nbytes[memory] = nbytes.get(memory, 0) + size
    return max(nbytes, key=nbytes.__getitem__, default=HOST_MEMORY)
