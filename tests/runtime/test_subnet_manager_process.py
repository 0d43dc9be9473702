"""The subnet manager as a process: readiness, signals, exit codes, one-line errors."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fauxrdma.wire.control import MessageBuffer, pack_frame
from fauxrdma.wire.fabric_messages import CONTROL_VERSION, LabHello, LabWelcome

COMMAND = [sys.executable, "-m", "daemons.subnet_manager"]
WAIT_S = 60.0
"""Only reached when a test fails."""


@contextmanager
def running(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, object]]]:
    """A subnet manager that said it is ready, and what it said."""
    process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def ask_welcome(host: object, port: object) -> LabWelcome:
    with socket.create_connection((str(host), int(str(port))), timeout=WAIT_S) as link:
        link.sendall(pack_frame(LabHello(CONTROL_VERSION)))
        buffer = MessageBuffer()
        while True:
            buffer.feed(link.recv(65536))
            for message in buffer:
                assert isinstance(message, LabWelcome)
                return message


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_ready_then_a_signal_ends_it_cleanly_even_with_peers_connected(signum: signal.Signals) -> None:
    with running("seed-two-switch", "--nodes", "3", "--gpus", "2", "--dilation", "500", "--seed", "9") as (
        process,
        ready,
    ):
        assert set(ready) == {"host", "port", "pid"}
        assert ready["pid"] == process.pid
        welcome = ask_welcome(ready["host"], ready["port"])
        assert (welcome.fabric, welcome.nodes, welcome.dilation) == ("seed-two-switch", 3, 500.0)
        with socket.create_connection((str(ready["host"]), int(str(ready["port"])))):
            process.send_signal(signum)
            out, err = process.communicate(timeout=WAIT_S)
        assert (process.returncode, out, err) == (0, "", "")


def test_the_ready_line_goes_to_the_descriptor_it_was_given() -> None:
    read, write = os.pipe()
    with subprocess.Popen(
        [*COMMAND, "fat-tree", "--clock", "none", "--ready-fd", str(write)],
        pass_fds=[write],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        os.close(write)
        with os.fdopen(read) as pipe:
            text = pipe.read()  # to the end: the descriptor is closed after the line
        assert json.loads(text)["pid"] == process.pid
        process.terminate()
        out, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out, err) == (0, "", "")


def test_a_port_in_use_is_exit_3_and_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [*COMMAND, "fat-tree", "--listen", f"127.0.0.1:{port}"], capture_output=True, text=True, timeout=WAIT_S
        )
    assert done.returncode == 3
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert f"port {port} on 127.0.0.1 is in use" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["seed-rail9"], "did you mean 'seed-rail8'?"),
        (["seed-rail8", "--nodes", "27"], "leaf1 ran out of ports"),
        (["seed-rail8", "--nodes", "0"], "at least one node"),
        (["seed-rail8", "--gpus", "9"], "between 1 and 8, not 9"),
        (["fat-tree", "--listen", "localhost"], "is not HOST:PORT"),
        (["fat-tree", "--dilation", "slow"], "neither 'auto' nor a number"),
        (["fat-tree", "--dilation", "0.1"], "out of range"),
        (["./no-such-file.yaml"], "no-such-file.yaml"),
        (["fat-tree", "--ready-fd", "321"], "file descriptor 321"),
    ],
)
def test_mistakes_are_one_line_with_the_exit_code(arguments: list[str], says: str) -> None:
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == (3 if "--ready-fd" in arguments else 2)
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_it_ends_with_the_process_that_started_it() -> None:
    # A parent that starts the manager, passes on its ready line and dies without ending it.
    read, write = os.pipe()
    script = (
        "import subprocess, sys, os\n"
        f"p = subprocess.Popen({COMMAND!r} + ['fat-tree', '--die-with-parent', '--dilation', '9'], "
        "stdout=subprocess.PIPE, text=True, pass_fds=[int(sys.argv[1])])\n"
        "print(p.stdout.readline(), end='', flush=True)\n"
        "os._exit(0)\n"
    )
    parent = subprocess.run(
        [sys.executable, "-c", script, str(write)], pass_fds=[write], capture_output=True, text=True, timeout=WAIT_S
    )
    assert json.loads(parent.stdout)["pid"] > 0
    os.close(write)
    with os.fdopen(read) as pipe:
        assert pipe.read() == ""  # ends when the last holder of the other end, the manager, is gone
