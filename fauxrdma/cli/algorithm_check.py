"""Whether ranks at given places can use the algorithms that they are asked to use, before anything is started."""

from __future__ import annotations

from fauxrdma.collectives.algorithms import ALGORITHMS, algorithms_for
from fauxrdma.collectives.candidates import OPERATIONS
from fauxrdma.collectives.rank_paths import NVLINK, RankPaths
from fauxrdma.collectives.request import Request
from fauxrdma.collectives.selector import Selector
from fauxrdma.communicator.settings.algorithm_rules import parse_own_algo
from fauxrdma.errors import ConfigError, FabricUnhealthy
from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.topology.graph import Topology
from fauxrdma.topology.placement import Placement
from fauxrdma.topology.rank_places import ranks_by_node

__all__ = ["check_algorithm"]

_PROBE_BYTES_PER_RANK = 8


def check_algorithm(text: str, topology: Topology, placement: Placement) -> None:
    """`text` is what FAUXRDMA_ALGO is to hold. Raises ConfigError for an algorithm there is not, one that goes by nodes
    where there are not several with several ranks, and one whose ranks cannot reach each other on a fabric of islands.
    """
    nodes = tuple(map(tuple, ranks_by_node(placement.places)))
    for operation, name in parse_own_algo(text, ALGORITHMS).by_operation.items():
        if name not in ALGORITHMS[operation]:
            continue  # auto, or a file
        possible = algorithms_for(Request(operation, placement.world_size, 1, 1, 1, 1, nodes=nodes))
        if name not in possible:
            ranks = ", ".join(map(str, sorted({len(found) for found in nodes})))
            raise ConfigError(
                f"{name} goes by nodes and needs several with several ranks each, but there are {len(nodes)} with "
                f"{ranks} each: raise --nodes or --gpus, or choose {', '.join(possible)}"
            )
        if topology.islands > 1 and operation in OPERATIONS:
            _check_ways(operation, name, topology, placement)


def _check_ways(operation: str, name: str, topology: Topology, placement: Placement) -> None:
    selector = Selector(RankPaths(SubnetManager(topology), placement.places, NVLINK))
    try:
        selector.cost(operation, name, _PROBE_BYTES_PER_RANK * placement.world_size)
    except FabricUnhealthy as error:
        raise ConfigError(f"{operation} by {name} with the placement {placement.name}: {error}") from None
