"""What a communicator asks the algorithms for: an operation, its sizes, and the staging there is."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FILE_PREFIX", "Counts", "Request"]

FILE_PREFIX = "file:"
"""What an algorithm's name begins with when it is the path of a plan file."""

Counts = int | tuple[int, ...] | tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Request:
    """One collective over `world_size` ranks, the same on all of them, so that all come to the same plan.

    `counts` in elements: of the whole buffer for all_reduce, reduce and broadcast; a tuple with each rank's block for
    all_gather, reduce_scatter, gather and scatter; a tuple of rows, `counts[a][b]` from rank a to rank b, for
    all_to_all. `slot_bytes` is what one message can carry, `lanes` how many of them travel at once. `nodes` are the
    ranks of each node and `rails` the rail of each rank, where they are known: what the algorithms in
    `algorithms.NEED_NODES` go by. `pieces` is into how many pieces the algorithms in `algorithms.PIPELINED` cut their
    buffer, as far as a message can carry one and it is not too small; 0: as many as usual.
    `partial`: the table of an all_to_all holds this rank's row and column only.
    """

    operation: str
    world_size: int
    counts: Counts
    itemsize: int
    slot_bytes: int
    lanes: int
    root: int = 0
    nodes: tuple[tuple[int, ...], ...] | None = None
    rails: tuple[int, ...] | None = None
    pieces: int = 0
    partial: bool = False

    @property
    def count(self) -> int:
        """Elements of the whole buffer."""
        assert isinstance(self.counts, int)
        return self.counts

    @property
    def blocks(self) -> tuple[int, ...]:
        """Elements of each rank's block."""
        assert isinstance(self.counts, tuple)
        return tuple(block for block in self.counts if isinstance(block, int))

    @property
    def table(self) -> tuple[tuple[int, ...], ...]:
        """Elements from each rank (rows) to each rank."""
        assert isinstance(self.counts, tuple)
        return tuple(row for row in self.counts if isinstance(row, tuple))
