"""One peer of the subnet manager, a daemon or a lab: bytes become messages for the service, and who breaks the rules is
refused."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol, cast

from fauxrdma.errors import RemoteProtocolError
from fauxrdma.wire.control import Message, MessageBuffer, pack_frame
from fauxrdma.wire.fabric_messages import Refusal

__all__ = ["HELLO_TIMEOUT_S", "MAX_UNSENT_BYTES", "ManagerConnection"]

HELLO_TIMEOUT_S = 10.0
"""A connection that has not introduced itself by then is closed."""
MAX_UNSENT_BYTES = 64 * 1024 * 1024
"""A peer that lets more than this pile up does not read; it is cut off."""

_log = logging.getLogger(__name__)


class Service(Protocol):
    """Whom a connection serves."""

    def connected(self, connection: ManagerConnection) -> None:
        """A peer connected; it has yet to introduce itself."""

    def disconnected(self, connection: ManagerConnection) -> None:
        """A connection is gone."""

    def greet(self, connection: ManagerConnection, message: Message) -> None:
        """The first message. Raises RemoteProtocolError to refuse the peer."""

    def from_node(self, connection: ManagerConnection, node: int, message: Message) -> None:
        """A later message of a daemon. Raises RemoteProtocolError to refuse it."""

    def from_lab(self, connection: ManagerConnection, message: Message) -> None:
        """A later message of a lab. Raises RemoteProtocolError to refuse it."""

    def told(self, node: int, message: Message) -> None:
        """A daemon was sent a message."""


class ManagerConnection(asyncio.Protocol):
    """One peer. Turns bytes into messages for the service and refuses a peer that breaks the rules."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._buffer = MessageBuffer()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.node: int | None = None
        self.is_lab = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass of it
        self._timer = asyncio.get_running_loop().call_later(HELLO_TIMEOUT_S, self._no_hello)
        self._service.connected(self)

    def data_received(self, data: bytes) -> None:
        self._buffer.feed(data)
        try:
            for message in self._buffer:
                self._handle(message)
        except RemoteProtocolError as error:
            self.refuse(str(error))

    def _handle(self, message: Message) -> None:
        if self.node is not None:
            self._service.from_node(self, self.node, message)
        elif self.is_lab:
            self._service.from_lab(self, message)
        else:
            self._service.greet(self, message)
            self._stop_timer()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._stop_timer()
        self._service.disconnected(self)

    def send(self, message: Message) -> None:
        """Send, unless the peer is gone; cut it off if it does not read."""
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.write(pack_frame(message))
        if self.node is not None:
            self._service.told(self.node, message)
        if self._transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            _log.warning("a peer (node %s) does not read what it is sent: cut off", self.node)
            self._transport.abort()

    def refuse(self, reason: str) -> None:
        """Tell the peer why it is not served, and close."""
        _log.info("refused: %s", reason)
        self.send(Refusal(reason))
        self.close()

    def close(self, *, now: bool = False) -> None:
        """Close once what was written is out; with `now` at once. Further input is ignored."""
        transport, self._transport = self._transport, None
        self._stop_timer()
        if transport is None:
            return
        if now and transport.get_write_buffer_size():
            transport.abort()
        else:
            transport.close()

    def _no_hello(self) -> None:
        self.refuse(f"no NodeHello or LabHello within {HELLO_TIMEOUT_S:g} s")

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
