"""File descriptors over a Unix socket (SCM_RIGHTS), for both ends of the control socket."""

from __future__ import annotations

import array
import socket
from collections.abc import Sequence

__all__ = ["receive_with_descriptors", "send_with_descriptors"]

_MAX_DESCRIPTORS = 16
_READ_BYTES = 65536


def receive_with_descriptors(sock: socket.socket) -> tuple[bytes, list[int]]:
    """What the socket holds (empty at end of file) and the descriptors that came along, now ours to close.

    Raises OSError as `recvmsg` does: BlockingIOError when there is nothing yet, TimeoutError after the timeout.
    """
    data, ancillary, _, _ = sock.recvmsg(_READ_BYTES, socket.CMSG_SPACE(_MAX_DESCRIPTORS * 4), socket.MSG_CMSG_CLOEXEC)
    received = array.array("i")
    for level, kind, raw in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            received.frombytes(raw[: len(raw) - len(raw) % received.itemsize])
    return data, received.tolist()


def send_with_descriptors(sock: socket.socket, data: bytes, fds: Sequence[int]) -> int:
    """Send `data` with `fds`; returns how many bytes went out. Raises OSError as `sendmsg` does."""
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    return sock.sendmsg([data], ancillary)
