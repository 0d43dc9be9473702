"""An HCA daemon's connection to the subnet manager."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import cast

from fauxrdma.errors import FabricUnhealthy, RemoteProtocolError, SetupError
from fauxrdma.wire.control import Message, MessageBuffer, pack_frame
from fauxrdma.wire.fabric_messages import (
    MulticastJoin,
    MulticastJoined,
    MulticastLeave,
    NodeHello,
    NodeWelcome,
    PathAnswer,
    PathQuery,
    Refusal,
)

__all__ = ["SubnetClient"]

log = logging.getLogger(__name__)


class SubnetClient(asyncio.Protocol):
    """Talks wire/fabric_messages.py. Messages other than answers go to `on_message`; `on_lost` hears of the end."""

    def __init__(self, on_message: Callable[[Message], None], on_lost: Callable[[str], None]) -> None:
        self._on_message = on_message
        self._on_lost = on_lost
        self._buffer = MessageBuffer()
        self._transport: asyncio.Transport | None = None
        self._welcome: asyncio.Future[NodeWelcome] | None = None
        self._paths: dict[tuple[int, int], PathAnswer] = {}
        self._waiting: dict[tuple[int, int], asyncio.Future[PathAnswer]] = {}
        self._joined: dict[tuple[int, int], asyncio.Future[None]] = {}  # by HCA LID and multicast LID
        self._joining: dict[int, asyncio.Future[None]] = {}  # by token
        self._next_token = 1
        self._closing = False

    @classmethod
    async def connect(
        cls,
        address: tuple[str, int],
        hello: NodeHello,
        on_message: Callable[[Message], None],
        on_lost: Callable[[str], None],
        timeout_s: float = 10.0,
    ) -> tuple[SubnetClient, NodeWelcome]:
        """Connect and say hello. Raises SetupError when there is no manager, FabricUnhealthy when it refuses."""
        loop = asyncio.get_running_loop()
        client = cls(on_message, on_lost)
        client._welcome = loop.create_future()
        try:
            async with asyncio.timeout(timeout_s):
                await loop.create_connection(lambda: client, *address)
                client.send(hello)
                return client, await client._welcome
        except (OSError, TimeoutError) as error:
            raise SetupError(
                f"no subnet manager answers at {address[0]}:{address[1]} ({error or 'timeout'}): "
                "start one with fauxrdma-subnet-manager, or check --subnet-manager"
            ) from None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer.feed(data)
        try:
            for msg in self._buffer:
                self._dispatch(msg)
        except RemoteProtocolError as error:
            log.error("the subnet manager broke the protocol: %s", error)
            assert self._transport is not None
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        welcome = self._welcome
        if welcome is not None and not welcome.done():
            welcome.set_exception(FabricUnhealthy("the subnet manager closed the connection during the hello"))
        for waiter in self._waiting.values():
            if not waiter.done():
                waiter.set_exception(FabricUnhealthy("the subnet manager is gone: no new paths"))
        self._waiting.clear()
        for joining in self._joining.values():
            if not joining.done():
                joining.set_exception(FabricUnhealthy("the subnet manager is gone: no joining of multicast groups"))
                joining.exception()  # whoever waited is told; nobody may have
        self._joining.clear()
        joined = welcome is not None and welcome.done() and not welcome.cancelled() and welcome.exception() is None
        if joined and not self._closing:
            self._on_lost(str(exc) if exc else "connection closed")

    def _dispatch(self, msg: Message) -> None:
        if isinstance(msg, PathAnswer):
            key = (msg.slid, msg.dlid)
            self._paths[key] = msg
            waiter = self._waiting.pop(key, None)
            if waiter is not None and not waiter.done():
                waiter.set_result(msg)
        elif isinstance(msg, MulticastJoined):
            joining = self._joining.pop(msg.token, None)
            if joining is not None and not joining.done():
                joining.set_result(None)
        elif isinstance(msg, NodeWelcome) and self._welcome is not None and not self._welcome.done():
            self._welcome.set_result(msg)
        elif isinstance(msg, Refusal):
            error = FabricUnhealthy(f"the subnet manager refused: {msg.reason}")
            if self._welcome is not None and not self._welcome.done():
                self._welcome.set_exception(error)
            else:
                log.error("%s", error)
        else:
            self._on_message(msg)

    def send(self, msg: Message) -> None:
        """Send a message; dropped when the manager is gone."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(pack_frame(msg))

    def known_path(self, slid: int, dlid: int) -> PathAnswer | None:
        """The path, if it was asked for before."""
        return self._paths.get((slid, dlid))

    def learn(self, paths: list[PathAnswer]) -> None:
        """Paths that are others now."""
        self._paths |= {(path.slid, path.dlid): path for path in paths}

    async def path(self, slid: int, dlid: int) -> PathAnswer:
        """The path from the manager's tables. Raises FabricUnhealthy when the manager is gone."""
        key = (slid, dlid)
        known = self._paths.get(key)
        if known is not None:
            return known
        if self._transport is None or self._transport.is_closing():
            raise FabricUnhealthy("the subnet manager is gone: no new paths")
        waiter = self._waiting.get(key)
        if waiter is None:
            waiter = self._waiting[key] = asyncio.get_running_loop().create_future()
            self.send(PathQuery(slid, dlid))
        return await asyncio.shield(waiter)

    async def join(self, lid: int, group: int) -> None:
        """Have the HCA with `lid` hear a multicast LID: returns when every daemon delivers to it; at once when it does
        already. Raises FabricUnhealthy when the manager is gone."""
        joined = self._joined.get((lid, group))
        if joined is None:
            if self._transport is None or self._transport.is_closing():
                raise FabricUnhealthy("the subnet manager is gone: no joining of multicast groups")
            token, self._next_token = self._next_token, self._next_token + 1
            joined = self._joined[lid, group] = self._joining[token] = asyncio.get_running_loop().create_future()
            self.send(MulticastJoin(lid, group, token))
        await asyncio.shield(joined)

    def leave(self, lid: int, group: int) -> None:
        """Have the HCA with `lid` hear a multicast LID no more."""
        if self._joined.pop((lid, group), None) is not None:
            self.send(MulticastLeave(lid, group))

    def close(self) -> None:
        """Say nothing and hang up; the manager drops the node."""
        self._closing = True
        if self._transport is not None:
            self._transport.close()
