"""fork() (pyverbs.fork): memory that a device uses needs no care here, since daemons map it, not the device's DMA."""

from __future__ import annotations

from fauxrdma.compat.libibverbs_enums import ibv_fork_status

__all__ = ["fork_init", "is_fork_initialized"]


def fork_init() -> None:
    """Nothing to do: a child may touch and free what its parent registered. It must open contexts of its own."""


def is_fork_initialized() -> int:
    """IBV_FORK_UNNEEDED."""
    return int(ibv_fork_status.IBV_FORK_UNNEEDED)
