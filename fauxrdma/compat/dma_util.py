"""Stores to memory that a device reads (pyverbs.dma_util, until 35): plain stores here."""

from __future__ import annotations

from fauxrdma.compat.mem_alloc import writebe32, writebe64

__all__ = ["mmio_write32_as_be", "mmio_write64_as_be"]


def mmio_write32_as_be(addr: int, val: int) -> None:
    """Store `val` as 32 bits in network order at `addr`."""
    writebe32(addr, val)


def mmio_write64_as_be(addr: int, val: int) -> None:
    """Store `val` as 64 bits in network order at `addr`."""
    writebe64(addr, val)
