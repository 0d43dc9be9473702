"""What a rank finds in its environment: what torchrun sets, and what of its lab it has to know."""

from __future__ import annotations

import os
from pathlib import Path

from fauxrdma.fabric.record import TOPOLOGY_VARIABLE
from fauxrdma.topology.placement import Placement

__all__ = ["rank_environment"]


def rank_environment(
    placement: Placement, rank: int, *, master: tuple[str, int], socket: str | Path, stats_dir: Path, record: Path
) -> dict[str, str]:
    """The environment of `rank`, to be merged into os.environ. `master`: where ranks meet, host and port; `socket`: of
    the HCA daemon of its node; `stats_dir`: where it writes its statistics; `record`: the file that says what fabric
    it is on."""
    env = {
        **placement.environment(rank),
        "MASTER_ADDR": master[0],
        "MASTER_PORT": str(master[1]),
        "DIST_BACKEND": "fauxrdma",
        "FAUXRDMA_SOCKET": str(socket),
        "FAUXRDMA_STATS_DIR": str(stats_dir),
        TOPOLOGY_VARIABLE: str(record),
    }
    if "OMP_NUM_THREADS" not in os.environ:
        env["OMP_NUM_THREADS"] = "1"
    return env
