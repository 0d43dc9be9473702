"""Fake HCA daemons and labs that speak the control protocol, for tests of the subnet manager service."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from fauxrdma.wire.control import Message, MessageBuffer, pack_frame
from fauxrdma.wire.fabric_messages import CONTROL_VERSION, LabHello, LabWelcome, NodeHello, NodeWelcome, RateGrant

M = TypeVar("M", bound=Message)

WAIT_S = 20.0
"""Only reached when a test fails."""


class Peer:
    """One connection to the service. `recv(Type)` returns the next message and fails if it is of another type."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._buffer = MessageBuffer()
        self._got: list[Message] = []

    @classmethod
    async def connect(cls, address: tuple[str, int]) -> Peer:
        return cls(*await asyncio.open_connection(*address))

    @classmethod
    async def node(cls, address: tuple[str, int], node: int) -> tuple[Peer, NodeWelcome]:
        """A daemon that has been welcomed."""
        peer = await cls.connect(address)
        peer.send(hello(node))
        return peer, await peer.recv(NodeWelcome)

    @classmethod
    async def lab(cls, address: tuple[str, int]) -> tuple[Peer, LabWelcome]:
        """A lab that has been welcomed."""
        peer = await cls.connect(address)
        peer.send(LabHello(CONTROL_VERSION))
        return peer, await peer.recv(LabWelcome)

    def send(self, *messages: Message) -> None:
        """All messages in one write, so that the service sees them together."""
        self._writer.write(b"".join(map(pack_frame, messages)))

    def send_raw(self, data: bytes) -> None:
        self._writer.write(data)

    async def next(self) -> Message | None:
        """The next message, or None at the end of the connection."""
        while not self._got:
            data = await asyncio.wait_for(self._reader.read(65536), WAIT_S)
            if not data:
                return None
            self._buffer.feed(data)
            self._got.extend(self._buffer)
        return self._got.pop(0)

    async def recv(self, kind: type[M]) -> M:
        got = await self.next()
        assert isinstance(got, kind), f"expected {kind.__name__}, got {got}"
        return got

    async def rates(self, want: dict[int, int]) -> None:
        """Take in grants until the flows named in `want` have those rates; fails if they are passed over."""
        have: dict[int, int] = {}
        while have != want:
            have |= (await self.recv(RateGrant)).rates

    async def close(self) -> None:
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except ConnectionError:
            pass


def hello(node: int, version: int = CONTROL_VERSION) -> NodeHello:
    return NodeHello(version, node, "127.0.0.1", 9000 + node, "host-id", 4242 + node)
