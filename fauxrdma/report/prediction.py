"""What the model of the fabric alone says about an all-reduce: no host, no scheduling, no computation.

It is the yardstick beside the measured time: the part of the difference that no fabric explains is the emulating
machine's.
"""

from __future__ import annotations

from collections.abc import Sequence

from fauxrdma.collectives.rank_paths import RankPaths
from fauxrdma.collectives.selector import Selector
from fauxrdma.errors import ConfigError, FabricUnhealthy
from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.topology.graph import Topology
from fauxrdma.topology.rank_places import RankPlace

__all__ = ["all_reduce_ns"]


def all_reduce_ns(
    topology: Topology, places: Sequence[RankPlace], nbytes: int, algorithm: str = "ring"
) -> float | None:
    """Fabric ns of an all-reduce of `nbytes` by ranks at `places`, which all start together; None for
    an algorithm that these ranks do not have, and where two that talk have no path.

    The plan's messages are played over the fabric's links, which flows that meet share fairly.
    """
    selector = Selector(RankPaths(SubnetManager(topology), places))
    try:
        return float(selector.cost("all_reduce", algorithm, nbytes).predicted_ns)
    except (ConfigError, FabricUnhealthy):
        return None
