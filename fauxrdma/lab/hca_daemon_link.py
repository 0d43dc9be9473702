"""Asking an HCA daemon which devices it has, over its Unix socket (see abi/control_verbs.py)."""

from __future__ import annotations

import socket
from pathlib import Path

from fauxrdma.abi.control_verbs import HcaList, ListHcas, VerbFailed
from fauxrdma.abi.layout import ABI_VERSION
from fauxrdma.errors import FabricUnhealthy, RemoteProtocolError, SetupError
from fauxrdma.wire.control import MessageBuffer, pack_frame
from fauxrdma.wire.fabric_messages import Refusal

__all__ = ["list_hcas"]


def list_hcas(path: str | Path, timeout_s: float = 5.0) -> HcaList:
    """The devices of the daemon at the Unix socket `path`.

    Raises SetupError when nobody listens there, FabricUnhealthy when the daemon does not answer in `timeout_s`, and
    RemoteProtocolError when it refuses.
    """
    buffer = MessageBuffer()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(timeout_s)
        try:
            link.connect(str(path))
        except OSError as error:
            raise SetupError(
                f"no HCA daemon answers at {path} ({error.strerror or error}): start a fabric, or name one, as in "
                "`fauxrdma devinfo fat-tree`"
            ) from None
        try:
            link.sendall(pack_frame(ListHcas(version=ABI_VERSION)))
            while data := link.recv(65536):
                buffer.feed(data)
                for message in buffer:
                    if isinstance(message, HcaList):
                        return message
                    reason = message.text if isinstance(message, VerbFailed) else None
                    reason = message.reason if isinstance(message, Refusal) else reason
                    raise RemoteProtocolError(f"the HCA daemon at {path} refuses: {reason or type(message).__name__}")
        except OSError as error:
            raise FabricUnhealthy(f"the HCA daemon at {path} does not answer: {error.strerror or error}") from None
    raise FabricUnhealthy(f"the HCA daemon at {path} closed the connection without an answer")
