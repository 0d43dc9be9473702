"""The TCP store: blocking gets, ranks in any order, errors that say what is wrong."""

from __future__ import annotations

import socket
import threading

import pytest

from fauxrdma.communicator import RendezvousStore
from fauxrdma.errors import CollectiveError, ConfigError
from fauxrdma.lab.ports import free_port


def test_get_blocks_until_set_by_another_rank() -> None:
    with RendezvousStore("127.0.0.1", 0, 0, timeout_s=10) as first:
        assert first.port
        got: list[bytes] = []

        def other() -> None:
            with RendezvousStore("127.0.0.1", first.port or 0, 1, timeout_s=10) as second:
                asking.set()
                got.append(second.get("key"))
                second.set("answer", b"\x00\xff")

        asking = threading.Event()
        thread = threading.Thread(target=other)
        thread.start()
        assert asking.wait(10)
        first.set("key", b"value")
        assert first.get("answer") == b"\x00\xff"
        thread.join(10)
        assert got == [b"value"]
        first.set("key", b"")
        assert first.get("key") == b""


def test_a_rank_may_come_before_rank_0() -> None:
    port = free_port()
    got: list[bytes] = []

    def early() -> None:
        with RendezvousStore("127.0.0.1", port, 1, timeout_s=20) as store:
            store.set("here", b"")
            got.append(store.get("k"))

    thread = threading.Thread(target=early)
    thread.start()
    with RendezvousStore("127.0.0.1", port, 0, timeout_s=20) as store:
        store.get("here")
        store.set("k", b"v")
        # Leaving waits for who is there: closing rank 0 first must not cut it off.
    thread.join(20)
    assert got == [b"v"]


def test_nobody_serves() -> None:
    port = free_port()
    with pytest.raises(CollectiveError, match=rf"rank 3 found no rendezvous store at 127.0.0.1:{port} within 0.2 s"):
        RendezvousStore("127.0.0.1", port, 3, timeout_s=0.2)


def test_a_key_that_never_comes() -> None:
    store = RendezvousStore("127.0.0.1", 0, 0, timeout_s=0.2)
    with pytest.raises(
        CollectiveError, match=r"nobody set 'lost' in the rendezvous store at 127.0.0.1:\d+ within 0.2 s"
    ):
        store.get("lost")
    store.close(leave_s=0)


def test_port_in_use_names_the_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"rank 0 cannot serve the rendezvous at 127.0.0.1:{port}.*MASTER_PORT"):
            RendezvousStore("127.0.0.1", port, 0)


def test_something_else_listens_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:

        def answer() -> None:
            client, _ = stranger.accept()
            client.recv(100)
            client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            client.close()

        threading.Thread(target=answer, daemon=True).start()
        port = stranger.getsockname()[1]
        with pytest.raises(CollectiveError, match=f"what listens at 127.0.0.1:{port} is not a fauxrdma rendezvous"):
            RendezvousStore("127.0.0.1", port, 1, timeout_s=5)


def test_garbage_does_not_hurt_the_server() -> None:
    with RendezvousStore("127.0.0.1", 0, 0, timeout_s=10) as store:
        for garbage in (b"\xff\xff\xff\xff", b"\x03\x00\x00\x00abc", b""):
            with socket.create_connection(("127.0.0.1", store.port or 0)) as sock:
                sock.sendall(garbage)
        store.set("k", b"v")
        assert store.get("k") == b"v"


def test_missing_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MASTER_PORT", raising=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ConfigError, match=r"^MASTER_PORT not set: run under `fauxrdma run`"):
        RendezvousStore.from_env()
