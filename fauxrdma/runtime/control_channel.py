"""An application's end of the control socket: one blocking request at a time, descriptors along with it."""

from __future__ import annotations

import errno
import os
import select
import socket
import threading
from collections.abc import Callable
from typing import TypeVar

from fauxrdma.abi import control_verbs as V
from fauxrdma.errors import FauxrdmaError, SetupError, VerbsError
from fauxrdma.runtime.descriptor_passing import receive_with_descriptors, send_with_descriptors
from fauxrdma.wire.control import LENGTH_BYTES, Message, MessageBuffer, decode, pack_frame

__all__ = ["IN_PROCESS", "ControlChannel", "open_channel"]

M = TypeVar("M", bound=Message)


def _checked(msg: Message) -> bytes:
    """The frame of a request that the daemon will understand: it hangs up on others, and that would cost the program
    everything it has made. Raises VerbsError(EINVAL) for a value of a wrong type or size."""
    try:
        data = pack_frame(msg)
        decode(memoryview(data)[LENGTH_BYTES:])
    except (TypeError, OverflowError, FauxrdmaError) as error:
        raise VerbsError(errno.EINVAL, f"{type(msg).__name__}: {error}") from None
    return data


class ControlChannel:
    """Requests and answers over the daemon's Unix socket. Safe to share between threads.

    A child process made by fork must not use its parent's channel: answers would be mixed up, so it is refused.
    """

    def __init__(self, path: str, timeout_s: float = 30.0) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._broken = False
        self._buffer = MessageBuffer()
        self._fds: list[int] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout_s)
        try:
            self._socket.connect(path)
        except OSError as error:
            self._socket.close()
            raise SetupError(
                f"no HCA daemon answers at {path!r} ({error.strerror}): run the program under `fauxrdma run`, or set "
                "FAUXRDMA_SOCKET to the socket of a running fauxrdma-hca"
            ) from None

    def request(
        self, msg: Message, answer: type[M], fds: tuple[int, ...] = (), expect_fds: int = 0
    ) -> tuple[M, list[int]]:
        """Send a request and wait for its answer; returns it and the descriptors that came along.

        Raises VerbsError with the daemon's errno when it refuses, VerbsError(EIO) when it is gone.
        """
        if os.getpid() != self._pid:
            raise VerbsError(errno.EPERM, "this context was opened before fork(): the child must open its own")
        if self._socket.fileno() < 0:
            raise VerbsError(errno.EINVAL, f"{type(msg).__name__}: the context is closed")
        data = _checked(msg)
        with self._lock:
            if self._broken:
                raise self._gone(
                    "it did not answer in time before, or the wait was interrupted, and what it says now would be taken"
                    " for the answer"
                )
            self._broken = True  # until the answer is here, whatever may interrupt the wait for it
            try:
                sent = send_with_descriptors(self._socket, data, fds)
                if sent < len(data):
                    self._socket.sendall(data[sent:])
                reply = self._receive()
            except TimeoutError:
                raise VerbsError(errno.ETIMEDOUT, f"the HCA daemon did not answer {type(msg).__name__}") from None
            except OSError as error:
                raise self._gone(str(error)) from None
            self._broken = False
            came, self._fds = self._fds, []
        if isinstance(reply, answer) and len(came) == expect_fds:
            return reply, came
        for fd in came:
            os.close(fd)
        if isinstance(reply, V.VerbFailed):
            raise VerbsError(reply.errno_, reply.text)
        raise VerbsError(
            errno.EPROTO,
            f"the daemon answered {type(msg).__name__} by {type(reply).__name__} and {len(came)} descriptors",
        )

    def _receive(self) -> Message:
        while True:
            for msg in self._buffer:
                return msg
            data, came = receive_with_descriptors(self._socket)
            self._fds += came
            if not data:
                raise self._gone("it closed the connection")
            self._buffer.feed(data)

    def _gone(self, reason: str) -> VerbsError:
        return VerbsError(errno.EIO, f"the HCA daemon at {self.path!r} is gone ({reason})")

    def fileno(self) -> int:
        """The socket's descriptor; -1 once closed."""
        return self._socket.fileno()

    def wait(self, poller: select.poll, timeout_s: float | None) -> list[tuple[int, int]]:
        """What is ready of what `poller` looks at; nothing when `timeout_s` have passed. All waiting of this context's
        objects is done here."""
        return poller.poll(None if timeout_s is None else timeout_s * 1000)

    def daemon_gone(self) -> bool:
        """Whether the daemon has closed the connection."""
        if self._socket.fileno() < 0:
            return True
        if not self._lock.acquire(blocking=False):
            return False  # a request is under way and will find out
        try:
            return not self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True
        finally:
            self._lock.release()

    def close(self) -> None:
        """Hang up: the daemon releases everything this application owned. Idempotent."""
        self._socket.close()


IN_PROCESS: dict[str, Callable[[], ControlChannel]] = {}
"""Daemons that live in this process, by the path that stands for their socket: what makes a channel to each."""


def open_channel(path: str) -> ControlChannel:
    """A channel to the daemon at `path`. Raises SetupError when nobody answers there."""
    make = IN_PROCESS.get(path)
    return ControlChannel(path) if make is None else make()
