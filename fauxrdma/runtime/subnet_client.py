"""An HCA daemon's connection to the subnet manager."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, cast

from fauxrdma.errors import FabricUnhealthy, RemoteProtocolError, SetupError
from fauxrdma.wire.control import Message, MessageBuffer, pack_frame
from fauxrdma.wire.fabric_messages import (
    ClockGo,
    ClockLook,
    Counters,
    FlowsForgotten,
    GidAnswer,
    GidQuery,
    GidsChanged,
    GidsKnown,
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

Flow = tuple[int, int, int]
"""Source LID, destination LID, label (0 where flows of a pair go the same way)."""
_MANY = 256


class SubnetClient(asyncio.Protocol):
    """Talks wire/fabric_messages.py. Messages other than answers go to `on_message`; `on_lost` hears of the end."""

    def __init__(self, on_message: Callable[[Message], None], on_lost: Callable[[str], None]) -> None:
        self._on_message = on_message
        self._on_lost = on_lost
        self._buffer = MessageBuffer()
        self._transport: asyncio.Transport | None = None
        self._welcome: asyncio.Future[NodeWelcome] | None = None
        self._paths: dict[Flow, PathAnswer] = {}
        self._waiting: dict[Flow, asyncio.Future[PathAnswer]] = {}
        self._labels: dict[tuple[int, int], set[int]] = {}  # of paths with a label: LIDs by source and label
        self._gone: list[Flow] = []  # the manager is yet to hear of
        self._joined: dict[tuple[int, int], asyncio.Future[None]] = {}  # by HCA LID and multicast LID
        self._joining: dict[int, asyncio.Future[None]] = {}  # by token
        self._asked: dict[int, asyncio.Future[Any]] = {}  # about addresses, by token
        self._next_token = 1
        self._closing = False
        self.heard = 0
        """Messages taken in, those of virtual time itself left out."""

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
                if not isinstance(msg, ClockGo | ClockLook):
                    self.heard += 1
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
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(FabricUnhealthy("the subnet manager is gone: no resolving of addresses"))
        self._asked.clear()
        joined = welcome is not None and welcome.done() and not welcome.cancelled() and welcome.exception() is None
        if joined and not self._closing:
            self._on_lost(str(exc) if exc else "connection closed")

    def _dispatch(self, msg: Message) -> None:
        if isinstance(msg, PathAnswer):
            key = (msg.slid, msg.dlid, msg.label)
            self._paths[key] = msg
            waiter = self._waiting.pop(key, None)
            if waiter is not None and not waiter.done():
                waiter.set_result(msg)
        elif isinstance(msg, MulticastJoined):
            joining = self._joining.pop(msg.token, None)
            if joining is not None and not joining.done():
                joining.set_result(None)
        elif isinstance(msg, GidAnswer | GidsKnown):
            asked = self._asked.pop(msg.token, None)
            if asked is not None and not asked.done():
                asked.set_result(msg)
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

    def known_path(self, slid: int, dlid: int, label: int = 0) -> PathAnswer | None:
        """The path of a flow, if it was asked for before; else that of the pair, if that was."""
        return self._paths.get((slid, dlid, label)) or self._paths.get((slid, dlid, 0))

    def knows(self, slid: int, dlid: int, label: int) -> bool:
        """Whether the path of just this flow is known."""
        return (slid, dlid, label) in self._paths

    def learn(self, paths: list[PathAnswer]) -> None:
        """Paths that are others now. Those of flows that were forgotten meanwhile are not news."""
        self._paths |= {flow: path for path in paths if (flow := (path.slid, path.dlid, path.label)) in self._paths}

    def forget_label(self, slid: int, label: int) -> bool:
        """A queue pair is gone, and so the paths of its own, if it had any. Returns whether many are gone that the
        manager has not heard of: it is time for a report."""
        for dlid in self._labels.pop((slid, label), ()):
            self._paths.pop((slid, dlid, label), None)
            self._gone.append((slid, dlid, label))
        return len(self._gone) > _MANY

    def report(self, counters: Counters) -> None:
        """Send what the daemon has counted, and with it which flows are gone."""
        self.send(counters)
        gone = [flow for flow in self._gone if flow not in self._paths and flow not in self._waiting]
        self._gone.clear()
        if gone:
            slids, dlids, labels = map(list, zip(*gone, strict=True))
            self.send(FlowsForgotten(slids, dlids, labels))

    async def path(self, slid: int, dlid: int, label: int = 0) -> PathAnswer:
        """The path of a flow as the manager has it. Raises FabricUnhealthy when the manager is gone."""
        key = (slid, dlid, label)
        known = self._paths.get(key)
        if known is not None:
            return known
        if self._transport is None or self._transport.is_closing():
            raise FabricUnhealthy("the subnet manager is gone: no new paths")
        waiter = self._waiting.get(key)
        if waiter is None:
            waiter = self._waiting[key] = asyncio.get_running_loop().create_future()
            if label:
                self._labels.setdefault((slid, label), set()).add(dlid)
            self.send(PathQuery(slid, dlid, label))
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

    async def find(self, gid: str) -> GidAnswer:
        """Which port has this address. Raises FabricUnhealthy when the manager is gone."""
        answer: GidAnswer = await self._ask(lambda token: GidQuery(gid, token))
        return answer

    async def set_gids(self, lid: int, gids: list[str]) -> str:
        """Have others find the HCA with `lid` by these addresses besides its own. Returns "" when they do, else the
        address that another port has. Raises FabricUnhealthy when the manager is gone."""
        answer: GidsKnown = await self._ask(lambda token: GidsChanged(lid, gids, token))
        return answer.taken

    async def _ask(self, question: Callable[[int], Message]) -> Any:
        if self._transport is None or self._transport.is_closing():
            raise FabricUnhealthy("the subnet manager is gone: no resolving of addresses")
        token, self._next_token = self._next_token, self._next_token + 1
        asked = self._asked[token] = asyncio.get_running_loop().create_future()
        self.send(question(token))
        return await asked

    def leave(self, lid: int, group: int) -> None:
        """Have the HCA with `lid` hear a multicast LID no more."""
        if self._joined.pop((lid, group), None) is not None:
            self.send(MulticastLeave(lid, group))

    def close(self) -> None:
        """Say nothing and hang up; the manager drops the node."""
        self._closing = True
        if self._transport is not None:
            self._transport.close()
