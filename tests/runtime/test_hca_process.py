"""The HCA daemon as a process: ready line, signals, exit codes, one-line errors, and strangers at its ports."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fauxrdma.errors import RemoteProtocolError
from fauxrdma.wire.headers import Frame, encode_header
from fauxrdma.wire.link_hello import ANSWER_BYTES, LINK_VERSION, check_answer, encode_hello


class Manager:
    """A subnet manager process for two nodes."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "daemons.subnet_manager", "fat-tree", "--nodes", "2", "--clock", "none"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        ready = json.loads(self.process.stdout.readline())
        self.address = f"{ready['host']}:{ready['port']}"

    def close(self) -> None:
        assert self.process.stdout is not None
        self.process.terminate()
        self.process.wait(20)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def manager() -> Iterator[Manager]:
    running = Manager()
    yield running
    running.close()


def start(*options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "daemons.hca", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def options(manager: Manager, path: Path, *more: str, node: int = 0) -> list[str]:
    return ["--node", str(node), "--subnet-manager", manager.address, "--socket", str(path), *more]


def ready_line(daemon: subprocess.Popen[str]) -> dict[str, object]:
    assert daemon.stdout is not None
    line = daemon.stdout.readline()
    if not line:
        pytest.fail(f"no ready line; it said: {daemon.communicate()[1]}")
    found: dict[str, object] = json.loads(line)
    return found


def fails(code: int, words: str, *arguments: str) -> None:
    """It ends at once with `code` and one line on standard error that has `words` in it."""
    daemon = start(*arguments)
    out, err = daemon.communicate(timeout=30)
    assert (daemon.returncode, out) == (code, "")
    assert err.startswith("fauxrdma-hca: ")
    assert err.count("\n") == 1
    assert words in err


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_it_says_when_it_is_ready_and_ends_cleanly(manager: Manager, tmp_path: Path, signum: signal.Signals) -> None:
    path = tmp_path / "n0.sock"
    daemon = start(*options(manager, path))
    ready = ready_line(daemon)
    assert (ready["node"], ready["socket"], ready["pid"]) == (0, str(path), daemon.pid)
    assert path.is_socket()
    daemon.send_signal(signum)
    out, err = daemon.communicate(timeout=20)
    assert (daemon.returncode, out, err) == (0, "", "")
    assert not path.exists()


def test_what_cannot_start_says_why(manager: Manager, tmp_path: Path) -> None:
    path = tmp_path / "n.sock"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        fails(3, f"cannot listen on 127.0.0.1:{port}", *options(manager, path, "--listen", f"127.0.0.1:{port}"))
        closed = socket.socket()
        closed.bind(("127.0.0.1", 0))
        absent = f"127.0.0.1:{closed.getsockname()[1]}"
        closed.close()
    fails(3, f"no subnet manager answers at {absent}", "--node", "0", "--subnet-manager", absent, "--socket", str(path))
    fails(4, "refused", *options(manager, path, node=7))
    fails(2, "--subnet-manager", "--node", "0", "--subnet-manager", "nonsense", "--socket", str(path))
    fails(3, "cannot create the socket", *options(manager, tmp_path / "absent" / "n.sock"))
    assert not path.exists()


def test_two_daemons_cannot_share_a_socket_but_a_dead_ones_is_taken_over(manager: Manager, tmp_path: Path) -> None:
    path = tmp_path / "n0.sock"
    first = start(*options(manager, path))
    ready_line(first)
    fails(3, "is another daemon running there?", *options(manager, path, node=1))
    first.kill()
    first.communicate()
    assert path.exists()
    second = start(*options(manager, path, node=1))
    ready_line(second)
    second.terminate()
    assert second.communicate(timeout=20)[1] == ""


def test_strangers_at_the_link_port_are_refused_and_it_lives(manager: Manager, tmp_path: Path) -> None:
    daemon = start(*options(manager, tmp_path / "n0.sock"))
    port = ready_line(daemon)["port"]

    def say(*parts: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", int(str(port))), 20) as link:
            link.settimeout(20)
            for part in parts:
                link.sendall(part)
            link.shutdown(socket.SHUT_WR)
            heard = b""
            try:
                while chunk := link.recv(4096):
                    heard += chunk
            except ConnectionResetError:
                pass
            return heard

    try:
        assert say(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n") == b""
        newer = bytearray(encode_hello(1, 0))
        newer[8:12] = (LINK_VERSION + 1).to_bytes(2, "big") * 2
        with pytest.raises(RemoteProtocolError, match="no common version"):
            check_answer(say(bytes(newer)))
        answer = say(encode_hello(1, 12345))
        assert len(answer) == ANSWER_BYTES
        with pytest.raises(RemoteProtocolError, match="another fabric"):
            check_answer(answer)
        # A frame over the limits, or of no kind, ends its own connection only.
        epoch = epoch_of(tmp_path / "n0.sock")
        huge = bytearray(encode_header(Frame(4, 1, 2, 3, 4)))
        huge[4:8] = (1 << 30).to_bytes(4, "big")
        assert len(say(encode_hello(1, epoch), bytes(huge))) in (0, ANSWER_BYTES)
        assert len(say(encode_hello(1, epoch), os.urandom(100))) in (0, ANSWER_BYTES)
        assert daemon.poll() is None
        assert epoch_of(tmp_path / "n0.sock") == epoch
    finally:
        daemon.terminate()
        _, err = daemon.communicate(timeout=20)
    assert "1073741824 payload bytes, over the limit" in err
    assert "Traceback" not in err


def epoch_of(path: Path) -> int:
    """The fabric's epoch, as any application learns it."""
    from fauxrdma.verbs import Context

    with Context("hca1", str(path)) as ctx:
        return ctx._clock.epoch_ns
