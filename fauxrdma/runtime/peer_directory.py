"""Where every HCA of the fabric is, and this daemon's links there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from fauxrdma.runtime.flows import Flow
from fauxrdma.runtime.peer_links import LocalLink, PeerLink, TcpLink
from fauxrdma.wire.fabric_messages import Directory, PathAnswer
from fauxrdma.wire.headers import Frame

__all__ = ["PeerDirectory"]


class PeerDirectory:
    """Links by LID, opened when the first frame wants one. `path(flow)` is what the manager said of its path;
    `deliver(frame)` takes what stays within this node; `on_writable(link)` hears that a link has room again."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        node: int,
        epoch_ns: int,
        path: Callable[[Flow], PathAnswer | None],
        deliver: Callable[[Frame], None],
        on_writable: Callable[[PeerLink], None],
    ) -> None:
        self._loop = loop
        self._node = node
        self._epoch_ns = epoch_ns
        self._path = path
        self._on_writable = on_writable
        self._where: dict[int, tuple[str, int]] = {}  # LID to host, port
        self._links: dict[tuple[str, int], TcpLink] = {}
        self._local = LocalLink(loop, deliver, on_writable)
        self._own: set[int] = set()

    def add_own(self, lid: int) -> None:
        """An HCA of this node: frames to it stay here."""
        self._own.add(lid)

    def update(self, directory: Directory) -> list[TcpLink]:
        """Who is where now. Links to addresses that are gone are closed and returned: frames to them vanish."""
        self._where = {entry.lid: (entry.host, entry.port) for entry in directory.entries}
        alive = set(self._where.values())
        gone = [self._links.pop(address) for address in list(self._links) if address not in alive]
        for link in gone:
            link.close()
        return gone

    def link_of(self, flow: Flow) -> PeerLink | None:
        """Where a flow's frames go; None where the fabric loses them."""
        path = self._path(flow)
        if path is not None and (path.lost_at or not path.reachable):
            return None
        if flow.group and (path is None or flow.dlid not in path.members):
            return None
        return self._link_to(flow.dlid)

    def _link_to(self, dlid: int) -> PeerLink | None:
        if dlid in self._own:
            return self._local
        address = self._where.get(dlid)
        if address is None:
            return None
        link = self._links.get(address)
        if link is None:
            link = self._links[address] = self._make_link(address)
        return link

    def _make_link(self, address: tuple[str, int]) -> TcpLink:
        return TcpLink(self._loop, address, self._node, self._epoch_ns, self._on_writable)

    def links(self) -> Iterable[PeerLink]:
        """All that are open."""
        return (self._local, *self._links.values())

    def close(self) -> None:
        """Close every link."""
        for link in self.links():
            link.close()
