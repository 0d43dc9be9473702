"""Links from this daemon to others: one TCP connection each way, frames written straight from registered memory.

A link whose peer is gone swallows frames, as a dead cable does; the engines notice by their timers. It tries again now
and then, in case the peer was only unreachable. Links within the
daemon (two HCAs of one node, or an HCA to itself) copy from region to region without a socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import deque
from collections.abc import Callable
from typing import Protocol

from fauxrdma.errors import RemoteProtocolError
from fauxrdma.runtime.revocation import copied, copy_payload
from fauxrdma.wire.headers import Frame, encode_header
from fauxrdma.wire.link_hello import ANSWER_BYTES, check_answer, encode_hello

__all__ = ["HeldLink", "LocalLink", "PeerLink", "TcpLink"]

log = logging.getLogger(__name__)

_SOCKET_BUFFER_BYTES = 1024 * 1024
_JOIN_BELOW_BYTES = 4096
_LOCAL_FRAMES = 8
_HELD_FRAMES = 256
_CONNECT_TIMEOUT_S = 5.0
_RETRY_S = 1.0
"""A dead link is tried again when there is something to send and this much wall time has passed."""


class PeerLink(Protocol):
    """Somewhere frames can be sent. `send` never blocks; hold back while not `writable`."""

    writable: bool

    def send(self, frame: Frame) -> None:
        """Send, or keep until there is room."""

    def let_go(self, memory: object) -> None:
        """Keep no view of this memory; bytes that wait to be sent are copied."""

    def close(self) -> None:
        """Drop everything."""


class TcpLink:
    """Frames to the daemon at `address`; connects by itself. `on_writable` is called when there is room again."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        address: tuple[str, int],
        node: int,
        epoch_ns: int,
        on_writable: Callable[[PeerLink], None],
    ) -> None:
        self._loop = loop
        self._address = address
        self._node = node
        self._epoch_ns = epoch_ns
        self._on_writable = on_writable
        self._pending: deque[memoryview | bytes] = deque()
        self._socket: socket.socket | None = None
        self._fd = -1
        self._waiting = False
        self.dead = False
        self.writable = False
        self._closed = False
        self._retry_at_s = 0.0
        self._task = loop.create_task(self._connect())

    async def _connect(self) -> None:
        sock = socket.socket(socket.AF_INET6 if ":" in self._address[0] else socket.AF_INET, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER_BYTES)
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                await self._loop.sock_connect(sock, self._address)
                await self._loop.sock_sendall(sock, encode_hello(self._node, self._epoch_ns))
                answer = b""
                while len(answer) < ANSWER_BYTES:
                    part = await self._loop.sock_recv(sock, ANSWER_BYTES - len(answer))
                    if not part:
                        raise RemoteProtocolError("the peer daemon closed the connection during the hello")
                    answer += part
            check_answer(answer)
        except (OSError, TimeoutError, RemoteProtocolError) as error:
            sock.close()
            self._die(f"cannot connect: {error or type(error).__name__}")
            return
        except asyncio.CancelledError:
            sock.close()
            raise
        self._socket = sock
        self._retry_at_s = 0.0
        self._fd = sock.fileno()
        # The peer sends nothing on this connection: readable means it is gone.
        self._loop.add_reader(self._fd, self._peer_gone)
        self._flush()

    def send(self, frame: Frame) -> None:
        """Send as much as the socket takes, keep views of the rest."""
        head = encode_header(frame)
        payload = frame.payload
        if not payload:
            parts: tuple[memoryview | bytes, ...] = (head,)
        elif frame.nbytes < _JOIN_BELOW_BYTES:
            parts = (b"".join((head, *payload)),)
        else:
            parts = (head, *payload)
        self.send_parts(parts)

    def send_parts(self, parts: tuple[memoryview | bytes, ...]) -> None:
        """Send a frame that is encoded already."""
        if self.dead:
            if self._closed or self._loop.time() < self._retry_at_s:
                return
            self.dead = False
            self._task = self._loop.create_task(self._connect())
        if self._pending or self._socket is None:
            self._pending.extend(parts)
            self.writable = False
            return
        try:
            sent = self._socket.send(parts[0]) if len(parts) == 1 else self._socket.sendmsg(parts)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._die(str(error))
            return
        if len(parts) != 1 or sent != len(parts[0]):
            self._keep_rest(parts, sent)

    def _keep_rest(self, parts: tuple[memoryview | bytes, ...], sent: int) -> None:
        for part in parts:
            size = len(part)
            if sent >= size:
                sent -= size
                continue
            self._pending.append(memoryview(part)[sent:] if sent else part)
            sent = 0
        if self._pending:
            self.writable = False
            if not self._waiting:
                self._waiting = True
                self._loop.add_writer(self._fd, self._flush)

    def _flush(self) -> None:
        assert self._socket is not None
        pending = self._pending
        while pending:
            batch = tuple(pending[i] for i in range(min(len(pending), 64)))
            try:
                sent = self._socket.sendmsg(batch)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                self._die(str(error))
                return
            total = sum(map(len, batch))
            for _ in batch:
                pending.popleft()
            if sent < total:
                rest: list[memoryview | bytes] = []
                for part in batch:
                    if sent >= len(part):
                        sent -= len(part)
                        continue
                    rest.append(memoryview(part)[sent:] if sent else part)
                    sent = 0
                pending.extendleft(reversed(rest))
                if not self._waiting:
                    self._waiting = True
                    self._loop.add_writer(self._fd, self._flush)
                return
        if self._waiting:
            self._waiting = False
            self._loop.remove_writer(self._fd)
        self.writable = True
        self._on_writable(self)

    def let_go(self, memory: object) -> None:
        """As in PeerLink."""
        for i, part in enumerate(self._pending):
            self._pending[i] = copied(part, memory)

    def _peer_gone(self) -> None:
        self._die("the peer daemon closed the connection")

    def _die(self, reason: str) -> None:
        if self.dead:
            return
        # Said once: retries of a link that stays dead are not news.
        level = logging.DEBUG if self._retry_at_s else logging.WARNING
        log.log(level, "link to %s:%d is down: %s; frames to it are lost", *self._address, reason)
        self.dead = True
        self._retry_at_s = self._loop.time() + _RETRY_S
        self._release()
        # Room for everything: what is sent vanishes, and the engines' timers find out.
        self.writable = True
        self._on_writable(self)

    def _release(self) -> None:
        self._pending.clear()
        if self._socket is not None:
            self._loop.remove_reader(self._fd)
            if self._waiting:
                self._loop.remove_writer(self._fd)
                self._waiting = False
            self._socket.close()
            self._socket = None

    def close(self) -> None:
        """Close the connection without a word. Idempotent."""
        self.dead = self._closed = True
        self._task.cancel()
        with contextlib.suppress(OSError):
            self._release()


class HeldLink:
    """In place of the link of a flow that is paused: keeps its frames for when it moves again, which is by as much
    later that they arrive. `now_ns()` is fabric time."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._frames: deque[tuple[int, Frame]] = deque()
        self.writable = True

    def send(self, frame: Frame) -> None:
        """Keep a frame. The fabric's buffers take some: a requester's timers run while what it sent is stuck there."""
        self._frames.append((self._now_ns(), frame))
        self.writable = len(self._frames) < _HELD_FRAMES

    def release(self, link: PeerLink | None) -> None:
        """Send what was kept over `link`; None: it is lost."""
        frames, self._frames = self._frames, deque()
        if link is not None:
            for since_ns, frame in frames:
                if frame.arrival_ns:
                    frame.arrival_ns += self._now_ns() - since_ns
                link.send(frame)

    def let_go(self, memory: object) -> None:
        """As in PeerLink."""
        copy_payload((frame for _, frame in self._frames), memory)

    def close(self) -> None:
        """Drop what is kept."""
        self._frames.clear()


class LocalLink:
    """Frames between HCAs of this daemon: delivered by `deliver(frame)` on a later turn of the loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        deliver: Callable[[Frame], None],
        on_writable: Callable[[PeerLink], None],
    ) -> None:
        self._loop = loop
        self._deliver = deliver
        self._on_writable = on_writable
        self._frames: deque[Frame] = deque()
        self._scheduled = False
        self.writable = True

    def send(self, frame: Frame) -> None:
        """Queue a frame; a few fill the link, so that a long transfer leaves the loop time for others."""
        self._frames.append(frame)
        if len(self._frames) >= _LOCAL_FRAMES:
            self.writable = False
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        frames = self._frames
        for _ in range(len(frames)):
            self._deliver(frames.popleft())
        if not self.writable and len(frames) < _LOCAL_FRAMES:
            self.writable = True
            self._on_writable(self)

    def let_go(self, memory: object) -> None:
        """As in PeerLink."""
        copy_payload(self._frames, memory)

    def close(self) -> None:
        """Drop what is queued."""
        self._frames.clear()
