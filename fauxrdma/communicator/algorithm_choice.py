"""`algorithm="auto"`: the selector of a communicator, made when it is first asked."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from fauxrdma.collectives.algorithms import DEFAULTS
from fauxrdma.collectives.candidates import OPERATIONS, Ranks
from fauxrdma.collectives.rank_paths import RankPaths
from fauxrdma.collectives.request import Request
from fauxrdma.collectives.selector import Selector
from fauxrdma.communicator.channel_set import ChannelSet, channel_slot_bytes
from fauxrdma.communicator.layout import Layout
from fauxrdma.errors import ConfigError
from fauxrdma.fabric.record import TOPOLOGY_VARIABLE, read_fabric_record

__all__ = ["AUTO", "AlgorithmChoice"]

AUTO = "auto"


class AlgorithmChoice:
    """Chooses by predicted time, from what all ranks share: the fabric that FAUXRDMA_TOPOLOGY_FILE names, where the
    ranks sit, and the staging."""

    def __init__(
        self, *, slot_bytes: int, lanes: int, intra_node: str, environment: Mapping[str, str] = os.environ
    ) -> None:
        self._slot_bytes = slot_bytes
        self._lanes = lanes
        self._intra_node = intra_node
        self._environment = environment
        self._selector: Selector | None = None

    def choose(self, request: Request, layout: Callable[[], Layout], channels: ChannelSet) -> tuple[str, int]:
        """The algorithm for `request` and into how many pieces it should cut its buffer (0: as usual); the default
        where nothing is to choose, or ranks do not see the same sizes.

        At the first choice `layout` says where the ranks sit, and `channels` over which HCAs rings and trees are cut.
        Raises ConfigError where no fabric is named, FabricUnhealthy when no algorithm has paths for its messages.
        """
        if request.operation not in OPERATIONS or request.partial:
            return DEFAULTS[request.operation], 0
        if self._selector is None:
            self._selector = self._make(layout, channels)
        choice = self._selector.choose(request.operation, size_of(request))
        return choice.algorithm, choice.pieces.get(choice.algorithm, 0)

    def _make(self, ask_layout: Callable[[], Layout], channels: ChannelSet) -> Selector:
        path = self._environment.get(TOPOLOGY_VARIABLE)
        if not path:
            raise ConfigError(
                f'algorithm "auto" needs to know the fabric: set {TOPOLOGY_VARIABLE}, as `fauxrdma run` does, or name '
                "an algorithm"
            )
        layout = ask_layout()
        paths = RankPaths(read_fabric_record(path), layout.places, self._intra_node)
        nodes = tuple(map(tuple, layout.nodes))
        return Selector(
            paths,
            ranks=Ranks(nodes, tuple(layout.rails), self._slot_bytes, self._lanes),
            routes=() if channels.plain else channels.routes,
            channel_slot_bytes=channel_slot_bytes(self._slot_bytes, channels.count),
        )


def size_of(request: Request) -> int:
    """The size in bytes that algorithms are chosen by, the same on all ranks: as nccl-tests counts, blocks of unequal
    sizes by their sum."""
    if isinstance(request.counts, int):
        return request.counts * request.itemsize
    if request.table:
        return sum(map(sum, request.table)) * request.itemsize // request.world_size
    return sum(request.blocks) * request.itemsize
