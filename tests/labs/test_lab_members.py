"""Processes found by their mark, ended, and no other with them."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import replace

import pytest

from fauxrdma.lab.running.members import MARK, ProcessId, end_members, members

_STUBBORN = """
import signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
waiting = "import signal; print(flush=True); signal.pause()"
child = subprocess.Popen([sys.executable, "-c", waiting], start_new_session=True)
print(child.pid, flush=True)
signal.pause()
"""
_WAITING = "import signal; print(flush=True); signal.pause()"


def _start(code: str, mark: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, MARK: mark}, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


@pytest.fixture
def mark() -> Iterator[str]:
    mark = f"test:{uuid.uuid4().hex}"
    yield mark
    end_members(mark, 0)


def test_all_that_carry_the_mark_are_ended_and_only_they(mark: str) -> None:
    stubborn, other = _start(_STUBBORN, mark), _start(_WAITING, f"{mark}-other")
    try:
        found = members(mark)
        assert len(found) == 2  # the grandchild in its own session with it
        assert found[0].process.pid == stubborn.pid
        assert found[0].environment[MARK] == mark
        assert found[1].parent == stubborn.pid
        assert end_members(mark, 0.2) == 2
        assert members(mark) == []
        assert other.poll() is None
    finally:
        other.kill()
        for process in (stubborn, other):
            process.communicate()


def test_a_process_that_took_over_a_number_is_left_alone(mark: str) -> None:
    process = _start(_WAITING, mark)
    try:
        (found,) = members(mark)
        assert found.process.alive
        earlier = replace(found.process, started=found.process.started - 1)
        assert not earlier.alive
        earlier.end(0)
        assert process.poll() is None
        found.process.end(5)
        assert process.wait(5) == -15
        assert not found.process.alive
    finally:
        process.kill()
        process.communicate()


def test_a_process_knows_itself() -> None:
    me = ProcessId.mine()
    assert me.pid == os.getpid()
    assert me.alive
