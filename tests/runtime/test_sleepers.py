"""Whether processes sleep, looked at from outside."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fauxrdma.runtime.sleepers import SleepWatch, is_running

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it reads Linux's /proc")


@contextmanager
def process(code: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process that has said it is ready."""
    with subprocess.Popen(
        [sys.executable, "-uc", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        try:
            assert running.stdout is not None
            running.stdout.readline()
            yield running
        finally:
            running.kill()


def look(pid: int) -> bool:
    watch = SleepWatch()
    watch.sample([pid])
    return watch.asleep()


def eventually_asleep(pid: int) -> bool:
    """It is on its way to sleep; only a failing test looks for long."""
    return any(look(pid) for _ in range(100_000))


def test_one_that_reads_sleeps() -> None:
    with process("print(); input()") as reader:
        assert eventually_asleep(reader.pid)


def test_one_that_computes_does_not() -> None:
    with process("print()\nwhile True: pass") as busy:
        assert not any(look(busy.pid) for _ in range(1000))


def test_a_thread_that_computes_counts() -> None:
    code = "import threading\ndef spin():\n  while True: pass\nthreading.Thread(target=spin).start(); print(); input()"
    with process(code) as busy:
        assert not any(look(busy.pid) for _ in range(1000))


def test_a_child_that_computes_counts() -> None:
    code = "import os\nif not os.fork():\n  while os.getppid() != 1: pass\n  os._exit(0)\nprint(); input()"
    with process(code) as parent:
        assert not any(look(parent.pid) for _ in range(1000))


def test_one_that_ran_between_the_two_calls_did_not_sleep() -> None:
    with process("print()\nwhile True: print(input())") as echo:
        assert eventually_asleep(echo.pid)
        watch = SleepWatch()
        watch.sample([echo.pid])
        assert echo.stdin is not None
        assert echo.stdout is not None
        echo.stdin.write("hello\n")
        echo.stdin.flush()
        echo.stdout.readline()
        assert eventually_asleep(echo.pid)
        assert not watch.asleep()


def test_the_ended_wait_for_nothing() -> None:
    with process("print(); input()") as ending:
        assert is_running(ending.pid)
        ending.kill()
        os.waitid(os.P_PID, ending.pid, os.WEXITED | os.WNOWAIT)
        assert not is_running(ending.pid)
        assert look(ending.pid)
