"""The receiving end of a daemon-to-daemon connection: payload lands in registered memory, straight from the kernel.

asyncio asks where the next bytes go (`get_buffer`); between frames that is a small staging buffer, inside a payload it
is the destination the responder named, so bulk data is never copied in user space. A payload that was refused goes to
a scratch buffer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import cast

from fauxrdma.errors import RemoteProtocolError
from fauxrdma.wire.headers import (
    FRAME_HEADER_BYTES,
    WRITE_ONLY_BYTES,
    Frame,
    SmallWrite,
    decode_header,
    decode_write_only,
    frame_lengths,
)
from fauxrdma.wire.link_hello import HELLO_BYTES, LinkHello, choose_version, decode_hello, encode_answer

__all__ = ["FrameReceiver"]

log = logging.getLogger(__name__)

_STAGING_BYTES = 16 * 1024
_SCRATCH_BYTES = 256 * 1024


class FrameReceiver(asyncio.BufferedProtocol):
    """One incoming connection. `place(frame)` names destinations, `received(frame)` is called when they are filled.

    `small_write(header, payload)` is offered frames that qualify for the express lane first.
    """

    def __init__(
        self,
        epoch_ns: int,
        place: Callable[[Frame], tuple[memoryview, ...] | None],
        received: Callable[[Frame], None],
        small_write: Callable[[SmallWrite, memoryview], bool],
        opened: Callable[[FrameReceiver], None],
        closed: Callable[[FrameReceiver], None],
    ) -> None:
        self._epoch_ns = epoch_ns
        self._place = place
        self._received = received
        self._small_write = small_write
        self._opened = opened
        self._closed = closed
        self._staging = bytearray(_STAGING_BYTES)
        self._staging_view = memoryview(self._staging)
        self._filled = 0
        self._scratch: memoryview | None = None
        self._hello: LinkHello | None = None
        self._frame: Frame | None = None
        self._views: list[memoryview] = []  # destinations not yet filled, next one first
        self._drain = 0  # bytes of a refused payload still to come
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._frame = None
        self._views.clear()
        self._closed(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the kernel is to put the next bytes."""
        if self._views:
            return self._views[0]
        if self._drain:
            if self._scratch is None:
                self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
            return self._scratch[: min(self._drain, _SCRATCH_BYTES)]
        return self._staging_view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """`nbytes` were put where `get_buffer` said."""
        if self._views:
            view = self._views[0]
            if nbytes < len(view):
                self._views[0] = view[nbytes:]
                return
            self._views.pop(0)
            if not self._views:
                self._finish()
            return
        if self._drain:
            self._drain -= nbytes
            if self._drain == 0:
                self._finish()
            return
        self._filled += nbytes
        try:
            self._parse()
        except RemoteProtocolError as error:
            log.warning("connection from node %s refused: %s", self._hello.node if self._hello else "?", error)
            assert self.transport is not None
            self.transport.abort()

    def let_go(self, memory: object) -> None:
        """Receive nothing more into this memory: what is still to come of the frame goes to scratch memory."""
        self._views = [memoryview(bytearray(len(view))) if view.obj is memory else view for view in self._views]

    def _finish(self) -> None:
        frame, self._frame = self._frame, None
        assert frame is not None
        self._received(frame)

    def _parse(self) -> None:
        """Take every complete header (and what the staging buffer holds of its payload) off the staging buffer."""
        at, end = 0, self._filled
        if self._hello is None:
            if end < HELLO_BYTES:
                return
            at = self._greet()
            if self._hello is None:
                self._filled = 0
                return
        staging = self._staging_view
        while end - at >= FRAME_HEADER_BYTES:
            write = decode_write_only(staging, at, end)
            if write is not None:
                begin = at + WRITE_ONLY_BYTES
                if self._small_write(write, staging[begin : begin + write[8]]):
                    at = begin + write[8]
                    continue
            size, nbytes = frame_lengths(staging, at)
            if end - at < size:
                break
            frame = decode_header(staging, at)
            at += size
            views = self._place(frame)
            if nbytes:
                here = min(nbytes, end - at)
                if views is None:
                    rest = nbytes - here
                    at += here
                    if rest:
                        self._frame, self._drain = frame, rest
                        break
                else:
                    left = self._copy(views, staging[at : at + here])
                    at += here
                    if left:
                        self._frame, self._views = frame, left
                        break
            self._received(frame)
        # Only an incomplete header can remain; move it to the front.
        rest = end - at
        if rest and at:
            staging[:rest] = bytes(staging[at:end])
        self._filled = rest

    @staticmethod
    def _copy(views: tuple[memoryview, ...], data: memoryview) -> list[memoryview]:
        """Copy `data` into the views; what remains of them is returned."""
        left: list[memoryview] = []
        for view in views:
            size = min(len(view), len(data))
            if size:
                view[:size] = data[:size]
                data = data[size:]
            if size < len(view):
                left.append(view[size:])
        return left

    def _greet(self) -> int:
        """Answer the hello; `_hello` stays None when it was refused, and the connection closes after the answer."""
        hello = decode_hello(self._staging)
        version, reason = choose_version(hello, self._epoch_ns)
        assert self.transport is not None
        self.transport.write(encode_answer(version, reason))
        if version == 0:
            log.warning("link hello of node %d refused (reason %d)", hello.node, reason)
            self.transport.close()
        else:
            self._hello = hello
        return HELLO_BYTES
