"""Bus bandwidth, the figure that can be held against the speed of a link whatever the number of ranks (nccl-tests,
doc/PERFORMANCE.md)."""

from __future__ import annotations

__all__ = ["bus_factor"]

_BLOCKS = ("reduce_scatter", "all_gather", "all_to_all", "gather", "scatter")
_WHOLE = ("broadcast", "reduce", "sendrecv")


def bus_factor(operation: str, world_size: int) -> float | None:
    """Bus bandwidth over algorithm bandwidth (size over time); None for an operation that has none."""
    n = world_size
    if operation == "all_reduce":
        return 2 * (n - 1) / n
    if operation in _BLOCKS:
        return (n - 1) / n
    return 1.0 if operation in _WHOLE else None
