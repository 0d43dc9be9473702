"""What the model of the fabric alone says about an all-reduce: no host, no scheduling, no computation.

It is the yardstick beside the measured time: the part of the difference that no fabric explains is the emulating
machine's.
"""

from __future__ import annotations

from collections.abc import Sequence

from fauxrdma.collectives.algorithms import ALL_REDUCE, all_reduce_plan
from fauxrdma.collectives.fabric_cost import fabric_cost
from fauxrdma.collectives.rank_paths import RankPaths
from fauxrdma.errors import FabricUnhealthy
from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.topology.graph import Topology
from fauxrdma.topology.rank_places import RankPlace

__all__ = ["all_reduce_ns"]

_SLOT_BYTES, _LANES = 2 << 20, 2
"""What a Communicator stages with unless told otherwise."""


def all_reduce_ns(
    topology: Topology, places: Sequence[RankPlace], nbytes: int, algorithm: str = "ring"
) -> float | None:
    """Fabric ns of an all-reduce of `nbytes` by ranks at `places`, which all start together over their HCAs; None for
    an algorithm that is not one of `ALL_REDUCE`, and where two ranks that talk have no path.

    The plan's messages are played over the fabric's links, which flows that meet share fairly.
    """
    if algorithm not in ALL_REDUCE:
        return None
    plan = all_reduce_plan(algorithm, nbytes, len(places), 1, _SLOT_BYTES, _LANES)
    try:
        return float(fabric_cost(plan, 1, RankPaths(SubnetManager(topology), places)).predicted_ns)
    except FabricUnhealthy:
        return None
