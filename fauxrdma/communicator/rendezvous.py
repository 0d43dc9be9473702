"""A small key-value store over TCP, so that ranks find each other without torch.

Rank 0 serves it in a thread; every rank, rank 0 too, connects as a client. `set` stores bytes under a key; `get` blocks
until somebody has set the key. The protocol is one msgpack frame each way: ``[op, key, value]`` and ``[ok, value]``,
behind a 4-byte little-endian length.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from typing import Any

import msgpack

from fauxrdma.errors import CollectiveError, ConfigError, RemoteProtocolError

__all__ = ["RendezvousStore"]

_LENGTH = struct.Struct("<I")
_HELLO = "fauxrdma-store-1"
MAX_FRAME_BYTES = 1 << 20
_NOT_SERVING = -1
LEAVE_S = 10.0
"""How long rank 0 keeps serving, after it is done itself, for ranks that have not said goodbye (seconds)."""

UNREACHABLE_S = 10.0
"""How long bytes for the store may stay unacknowledged before it counts as gone (seconds). A machine whose link was cut
is told nothing; one that is there acknowledges in its kernel, also while rank 0 is stopped."""


def _receive_exactly(sock: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = sock.recv(count - len(data))
        if not piece:
            raise ConnectionError("the other side of the rendezvous store closed the connection")
        data += piece
    return bytes(data)


def _send(sock: socket.socket, message: list[Any]) -> None:
    body: bytes = msgpack.packb(message, use_bin_type=True)
    sock.sendall(_LENGTH.pack(len(body)) + body)


def _receive(sock: socket.socket) -> list[Any]:
    (length,) = _LENGTH.unpack(_receive_exactly(sock, 4))
    if length > MAX_FRAME_BYTES:
        raise RemoteProtocolError(f"a rendezvous frame claims {length} bytes, over the limit {MAX_FRAME_BYTES}")
    message = msgpack.unpackb(_receive_exactly(sock, length), raw=False)
    if not isinstance(message, list):
        raise RemoteProtocolError(f"a rendezvous frame must be a list, got {type(message).__name__}")
    return message


class _Server:
    """Serves the store from daemon threads: one that accepts, one per client."""

    def __init__(self, host: str, port: int) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._clients: set[socket.socket] = set()
        self._closed = False
        try:
            self._listener = socket.create_server((host, port))
        except OSError as error:
            raise ConfigError(
                f"rank 0 cannot serve the rendezvous at {host}:{port}: {error.strerror}; set MASTER_PORT to a free port"
            ) from None
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, name="fauxrdma-store", daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._changed:
                self._clients.add(client)
            threading.Thread(target=self._serve, args=(client,), name="fauxrdma-store-client", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if _receive(client) != [_HELLO]:
                return
            _send(client, [True, b""])
            while True:
                operation, key, value = _receive(client)
                if operation == "set":
                    with self._changed:
                        self._values[key] = value
                        self._changed.notify_all()
                    _send(client, [True, b""])
                elif operation == "get":
                    with self._changed:
                        while key not in self._values and not self._closed:
                            self._changed.wait()
                        found = self._values.get(key)
                    _send(client, [found is not None, found or b""])
                elif operation == "check":
                    with self._changed:
                        there = key in self._values
                    _send(client, [True, b"1" if there else b""])
                else:
                    return
        except (OSError, ConnectionError, ValueError, RemoteProtocolError):
            return
        finally:
            client.close()
            with self._changed:
                self._clients.discard(client)
                self._changed.notify_all()

    def close(self, leave_s: float) -> None:
        """Wait up to `leave_s` seconds until every client has left, then stop."""
        with self._changed:
            self._changed.wait_for(lambda: not self._clients, timeout=leave_s)
            self._closed = True
            self._changed.notify_all()
            clients = list(self._clients)
        # shutdown() wakes the threads blocked in accept and recv; close() alone would not.
        for sock in (self._listener, *clients):
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        self._listener.close()
        self._thread.join(timeout=1)


class RendezvousStore:
    """Key-value store shared by all ranks. Rank 0 serves it at `host`:`port`, the others connect to it.

    Connecting is retried while the server is not up, for `timeout_s` seconds. Raises CollectiveError when nobody serves
    it by then or a key does not come in time, ConfigError when rank 0 cannot have the port.
    """

    def __init__(self, host: str, port: int, rank: int, *, timeout_s: float = 60.0) -> None:
        self._server = _Server(host, port) if rank == 0 else None
        self._where = f"{host}:{port if self._server is None else self._server.port}"
        self._lock = threading.Lock()
        self._timeout_s = timeout_s
        try:
            self._socket = self._connect(host, self._server.port if self._server else port, rank)
        except BaseException:
            if self._server is not None:
                self._server.close(0)
            raise

    @classmethod
    def from_env(cls, *, timeout_s: float = 60.0) -> RendezvousStore:
        """The store at MASTER_ADDR:MASTER_PORT for rank RANK. Raises ConfigError when one is missing."""
        missing = [name for name in ("MASTER_ADDR", "MASTER_PORT", "RANK") if name not in os.environ]
        if missing:
            raise ConfigError(
                f"{', '.join(missing)} not set: run under `fauxrdma run`, or set MASTER_ADDR, MASTER_PORT, RANK and "
                "WORLD_SIZE"
            )
        env = os.environ
        return cls(env["MASTER_ADDR"], int(env["MASTER_PORT"]), int(env["RANK"]), timeout_s=timeout_s)

    @property
    def port(self) -> int | None:
        """The port served, on rank 0 (useful when 0 was asked for)."""
        return None if self._server is None else self._server.port

    def _connect(self, host: str, port: int, rank: int) -> socket.socket:
        deadline = time.monotonic() + self._timeout_s
        pause = 0.01
        while True:
            try:
                sock = socket.create_connection((host, port), timeout=max(0.1, deadline - time.monotonic()))
                break
            except (ConnectionRefusedError, socket.gaierror, TimeoutError) as error:
                if time.monotonic() + pause > deadline:
                    raise CollectiveError(
                        f"rank {rank} found no rendezvous store at {host}:{port} within {self._timeout_s:g} s "
                        f"({error}): is rank 0 running, and do MASTER_ADDR and MASTER_PORT name it?"
                    ) from None
                time.sleep(pause)
                pause = min(0.5, pause * 2)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux: tcp(7)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNREACHABLE_S * 1000))
        sock.settimeout(self._timeout_s)
        try:
            _send(sock, [_HELLO])
            if _receive(sock)[0] is not True:
                raise ConnectionError("refused")
        except (OSError, RemoteProtocolError) as error:
            sock.close()
            raise CollectiveError(
                f"what listens at {host}:{port} is not a fauxrdma rendezvous store: {error}"
            ) from None
        return sock

    def _call(self, operation: str, key: str, value: bytes) -> bytes:
        with self._lock:
            try:
                _send(self._socket, [operation, key, value])
                ok, answer = _receive(self._socket)
            except TimeoutError as error:
                if error.errno is not None:  # the kernel's, for what was sent; socket's own has none
                    raise CollectiveError(
                        f"the rendezvous store at {self._where} cannot be reached ({error}): is the link to rank 0's "
                        "machine up?"
                    ) from None
                raise CollectiveError(
                    f"nobody set {key!r} in the rendezvous store at {self._where} within {self._timeout_s:g} s: "
                    "a rank is missing or late"
                ) from None
            except OSError as error:
                raise CollectiveError(
                    f"the rendezvous store at {self._where} is gone ({error}): did rank 0 end?"
                ) from None
        if not ok:
            raise CollectiveError(f"the rendezvous store at {self._where} was closed while waiting for {key!r}")
        return bytes(answer)

    def set(self, key: str, value: bytes) -> None:
        """Store `value` under `key`, replacing what was there."""
        self._call("set", key, bytes(value))

    def get(self, key: str) -> bytes:
        """The value of `key`; blocks until it is set. Raises CollectiveError after the timeout."""
        return self._call("get", key, b"")

    def check(self, keys: list[str]) -> bool:
        """Whether all of `keys` are set, without waiting."""
        return all(self._call("check", key, b"") for key in keys)

    def clone(self) -> RendezvousStore:
        """Another connection to the same store, which blocking calls over this one do not hold up."""
        host, _, port = self._where.rpartition(":")
        return RendezvousStore(host, int(port), _NOT_SERVING, timeout_s=self._timeout_s)

    def close(self, *, leave_s: float = LEAVE_S) -> None:
        """Leave. Rank 0 goes on serving until the others have left, for at most `leave_s` seconds. Idempotent."""
        self._socket.close()
        if self._server is not None:
            server, self._server = self._server, None
            server.close(leave_s)

    def __enter__(self) -> RendezvousStore:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
