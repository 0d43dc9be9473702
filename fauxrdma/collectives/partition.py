"""How a buffer is cut: into one block per rank, and each block into chunks that fit a staging slot.

The blocks are those of gloo's ring all-reduce (gloo/allreduce.cc): at least two segments per rank, none longer than
1 MiB, all of the same length, so that the last blocks may be short or empty. With the same blocks and the same ring
direction, every element is reduced in the same order as by gloo, and the results agree bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "GLOO_SEGMENT_BYTES",
    "SMALLEST_PIPELINED_BYTES",
    "Partition",
    "chunk_elements",
    "equal_blocks",
    "gloo_blocks",
]

GLOO_SEGMENT_BYTES = 1 << 20
"""The longest segment of gloo's ring all-reduce, in bytes."""

SMALLEST_CHUNK_BYTES = 1 << 20
"""Ring blocks are not cut finer than this: all links are busy anyway, and a message costs more than overlap gains."""

SMALLEST_PIPELINED_BYTES = 64 << 10
"""The same for a pipeline of ranks, where chunks are what keeps the links busy."""


@dataclass(frozen=True, slots=True)
class Partition:
    """`blocks` blocks of `block` elements over `count` elements; the last ones may be short or empty."""

    count: int
    blocks: int
    block: int

    def offset(self, index: int) -> int:
        """First element of block `index`."""
        return min(index * self.block, self.count)

    def length(self, index: int) -> int:
        """Elements in block `index`."""
        return min(self.count, (index + 1) * self.block) - self.offset(index)

    def chunks(self, index: int, chunk: int) -> int:
        """Number of non-empty chunks of `chunk` elements in block `index`."""
        return -(-self.length(index) // chunk)

    def piece(self, index: int, chunk: int, number: int) -> tuple[int, int]:
        """Offset in the buffer and length, in elements, of chunk `number` of block `index` (length 0 past its end)."""
        length = self.length(index)
        start = min(number * chunk, length)
        return self.offset(index) + start, min(length - start, chunk)


def gloo_blocks(count: int, world_size: int, itemsize: int) -> Partition:
    """The blocks of gloo's ring all-reduce over `count` elements of `itemsize` bytes."""
    longest = max(1, GLOO_SEGMENT_BYTES // itemsize)
    segments = max(-(-count // longest), 2 * world_size)
    segments = -(-segments // world_size) * world_size
    per_rank = segments // world_size
    return Partition(count, world_size, per_rank * -(-count // segments))


def equal_blocks(block: int, world_size: int) -> Partition:
    """`world_size` blocks of exactly `block` elements each."""
    return Partition(block * world_size, world_size, block)


def chunk_elements(
    block: int, itemsize: int, slot_bytes: int, lanes: int, *, smallest_bytes: int = SMALLEST_CHUNK_BYTES
) -> int:
    """Elements per chunk for blocks of `block` elements of `itemsize` bytes: as many chunks as lanes, unless that makes
    them smaller than `smallest_bytes` or larger than a slot.

    Chunks of one block come out equal to within the rounding. At least 1, also for an empty block.
    """
    if block <= 0:
        return 1
    target = min(max(smallest_bytes, -(-block * itemsize // lanes)), slot_bytes)
    most = max(1, target // itemsize)
    return -(-block // -(-block // most))
