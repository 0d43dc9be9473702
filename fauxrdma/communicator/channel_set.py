"""The channels of one rank: a mesh of peers for each, over the HCA that the channel's route gives this rank.

Channel 0 of a communicator with nothing set is its main mesh. Others are made when a collective is first cut over them,
on all ranks at the same time.
"""

from __future__ import annotations

from collections.abc import Callable

from fauxrdma.collectives.channels import PREFER_SAME_NIC, ChannelRoute, channel_routes
from fauxrdma.communicator.mesh import PeerMesh
from fauxrdma.errors import FauxrdmaError
from fauxrdma.verbs import Context

__all__ = ["ChannelSet", "channel_slot_bytes"]

MeshMaker = Callable[[Context, str], PeerMesh]
"""Makes a mesh over an open context, whose keys in the store begin with a prefix."""


LEAST_SLOT_BYTES = 64 << 10


def channel_slot_bytes(slot_bytes: int, channels: int) -> int:
    """The staging slots of `channels` channels together take the memory of one with `slot_bytes`, down to a limit."""
    return min(slot_bytes, max(LEAST_SLOT_BYTES, slot_bytes // channels // 64 * 64))


class ChannelSet:
    """`count` channels by cross-NIC policy `cross_nic` (None: rings in rank order over each rank's own HCA while there
    is one channel, else as with 2)."""

    def __init__(self, main: PeerMesh, count: int, cross_nic: int | None, make: MeshMaker) -> None:
        self.count = count
        self._main = main
        self._cross_nic = cross_nic
        self._make = make
        self._routes: tuple[ChannelRoute, ...] | None = None
        self._contexts: dict[int, Context] = {}
        self._meshes: list[PeerMesh] = []

    @property
    def plain(self) -> bool:
        """Whether everything goes over the main mesh."""
        return self.count == 1 and self._cross_nic is None

    @property
    def routes(self) -> tuple[ChannelRoute, ...]:
        """The way of each channel. The first use waits until all ranks have made their communicator."""
        if self._routes is None:
            layout = self._main.layout
            hcas = [place.hca for place in layout.places]
            policy = PREFER_SAME_NIC if self._cross_nic is None else self._cross_nic
            self._routes = channel_routes(layout.nodes, hcas, layout.rails, self.count, policy)
        return self._routes

    def meshes(self, many: int) -> list[PeerMesh]:
        """The meshes of the first `many` channels, made if they are new. Raises VerbsError or SetupError when an HCA
        cannot be opened."""
        while len(self._meshes) < many:
            channel = len(self._meshes)
            context = self._context(self.routes[channel].hcas[self._main.rank])
            self._meshes.append(self._make(context, f"channel{channel}/"))
        return self._meshes[:many]

    def _context(self, hca: int) -> Context:
        main = self._main.context
        if hca == main.hca.index:
            return main
        if hca not in self._contexts:
            self._contexts[hca] = Context(f"hca{hca}", socket=main.socket)
        return self._contexts[hca]

    @property
    def opened(self) -> tuple[PeerMesh, ...]:
        """The meshes made so far."""
        return tuple(self._meshes)

    def close(self) -> None:
        """Free everything but the main mesh. Never raises."""
        for mesh in self._meshes:
            mesh.close()
        self._meshes.clear()
        for context in self._contexts.values():
            try:
                context.close()
            except (FauxrdmaError, OSError):
                pass
        self._contexts.clear()
