"""The supervisor on real processes: output, readiness, first failure, and nothing left behind."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from fauxrdma.errors import SetupError
from fauxrdma.lab.processes import Child, Stream, Supervisor, describe_exit


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    with Supervisor() as made:
        yield made


def python(code: str) -> list[str]:
    return [sys.executable, "-u", "-c", textwrap.dedent(code)]


def run_to_end(supervisor: Supervisor, *children: Child) -> None:
    while any(child.running for child in children):
        supervisor.pump(5)


def alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie waiting for whoever adopted it."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


class TestOutput:
    def test_lines_come_with_their_stream_and_in_order(self, supervisor: Supervisor) -> None:
        seen: list[tuple[Stream, str]] = []
        child = supervisor.start(
            "talker",
            python("""
                import sys
                for i in range(3): print("out", i)
                print("err", file=sys.stderr)
                print("no newline at the end", end="")
            """),
            on_line=lambda _, stream, line: seen.append((stream, line)),
        )
        run_to_end(supervisor, child)
        assert [line for stream, line in seen if stream == "stdout"] == [
            "out 0",
            "out 1",
            "out 2",
            "no newline at the end",
        ]
        assert [line for stream, line in seen if stream == "stderr"] == ["err"]
        assert child.last_stderr() == ["err"]

    def test_a_rewritten_progress_line_is_its_last_state(self, supervisor: Supervisor) -> None:
        seen: list[str] = []
        child = supervisor.start(
            "bar", python(r"print('10%\r50%\r100%')"), on_line=lambda _, __, line: seen.append(line)
        )
        run_to_end(supervisor, child)
        assert seen == ["100%"]

    def test_more_output_than_a_pipe_holds_does_not_block(self, supervisor: Supervisor) -> None:
        lines = 0

        def count(_: Child, __: Stream, ___: str) -> None:
            nonlocal lines
            lines += 1

        child = supervisor.start("flood", python("for i in range(50_000): print('x' * 60)"), on_line=count)
        run_to_end(supervisor, child)
        assert (child.returncode, lines) == (0, 50_000)

    def test_a_log_file_gets_both_streams_and_gives_the_last_words(
        self, supervisor: Supervisor, tmp_path: Path
    ) -> None:
        log = tmp_path / "child.log"
        child = supervisor.start(
            "logger", python("import sys; print('one'); sys.exit('daemon: error: no port')"), log=log
        )
        run_to_end(supervisor, child)
        assert log.read_text().splitlines() == ["one", "daemon: error: no port"]
        assert child.last_stderr()[-1] == "daemon: error: no port"
        assert child.describe_end() == f"logger (pid {child.pid}): exit code 1"


class TestReadiness:
    def test_the_message_is_read_while_the_child_goes_on(self, supervisor: Supervisor) -> None:
        child = supervisor.start(
            "daemon",
            python("""
                import json, os, signal, sys
                os.write(int(sys.argv[-1]), json.dumps({"port": 4711}).encode() + b"\\n")
                signal.pause()
            """),
            ready_option="--ready-fd",
        )
        assert supervisor.wait_ready(child, 30)
        assert child.ready == {"port": 4711}
        assert child.running

    def test_a_child_that_ends_first_is_not_ready(self, supervisor: Supervisor) -> None:
        child = supervisor.start("daemon", python("raise SystemExit(3)"), ready_option="--ready-fd")
        assert not supervisor.wait_ready(child, 30)
        assert child.returncode == 3

    def test_a_child_that_stays_silent_is_not_ready(self, supervisor: Supervisor) -> None:
        child = supervisor.start("daemon", python("import signal; signal.pause()"), ready_option="--ready-fd")
        assert not supervisor.wait_ready(child, 0.05)
        assert child.running


class TestEnd:
    def test_the_first_to_fail_has_the_lowest_end_order(self, supervisor: Supervisor) -> None:
        waits = supervisor.start("second", python("import signal; signal.pause()"))
        fails = supervisor.start("first", python("raise SystemExit(7)"))
        run_to_end(supervisor, fails)
        supervisor.stop([waits])
        assert (fails.returncode, waits.returncode) == (7, -signal.SIGTERM)
        assert fails.end_order is not None
        assert waits.end_order is not None
        assert fails.end_order < waits.end_order

    def test_a_child_that_ignores_sigterm_is_killed(self, supervisor: Supervisor) -> None:
        child = supervisor.start(
            "stubborn",
            python("""
                import os, signal, sys
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                os.write(int(sys.argv[-1]), b"{}\\n")
                while True: signal.pause()
            """),
            ready_option="--ready-fd",
        )
        assert supervisor.wait_ready(child, 30)
        supervisor.stop(grace_s=0.1)
        assert child.returncode == -signal.SIGKILL
        assert not alive(child.pid)

    def test_a_stopped_child_is_ended_by_sigterm(self, supervisor: Supervisor) -> None:
        child = supervisor.start("stopped", python("import signal; signal.pause()"))
        os.kill(child.pid, signal.SIGSTOP)
        supervisor.stop(grace_s=30)
        assert child.returncode == -signal.SIGTERM

    @pytest.mark.parametrize("leader", ["exits", "is stopped"])
    def test_what_a_child_started_ends_with_it(self, supervisor: Supervisor, leader: str) -> None:
        lines: list[str] = []
        child = supervisor.start(
            "parent",
            python(f"""
                import signal, subprocess, sys
                grandchild = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
                print(grandchild.pid)
                if {leader == "is stopped"}: signal.pause()
            """),
            on_line=lambda _, __, line: lines.append(line),
        )
        while not lines:
            supervisor.pump(5)
        if leader == "exits":
            run_to_end(supervisor, child)
        else:
            supervisor.stop([child])
        grandchild = int(lines[0])
        fd = _pidfd_or_none(grandchild)
        if fd is not None:  # killed but perhaps not yet gone: wait on the process itself, not on a clock
            assert select.select([fd], [], [], 30)[0]
            os.close(fd)
        assert not alive(grandchild)

    def test_no_descriptor_stays_open(self) -> None:
        before = len(os.listdir("/proc/self/fd"))
        with Supervisor() as supervisor:
            for _ in range(5):
                supervisor.start("child", python("print('x')"), ready_option="--ready-fd")
        assert len(os.listdir("/proc/self/fd")) == before
        supervisor.close()

    def test_children_die_with_a_killed_supervisor(self) -> None:
        code = """
            import signal, sys
            from fauxrdma.lab.processes import Supervisor
            supervisor = Supervisor()
            child = supervisor.start("child", [sys.executable, "-c", "import signal; signal.pause()"],
                                     die_with_parent=True)
            print(child.pid, flush=True)
            signal.pause()
        """
        with subprocess.Popen(python(code), stdout=subprocess.PIPE, text=True) as parent:
            assert parent.stdout is not None
            pid = int(parent.stdout.readline())
            fd = os.pidfd_open(pid)
            parent.kill()

            assert select.select([fd], [], [], 30)[0]
            os.close(fd)


def test_a_program_that_cannot_be_executed_is_a_setup_error(supervisor: Supervisor) -> None:
    with pytest.raises(SetupError, match="cannot start the thing: /nonexistent/program: No such file"):
        supervisor.start("the thing", ["/nonexistent/program"], ready_option="--ready-fd")


def test_exits_are_described_for_people() -> None:
    assert describe_exit(3) == "exit code 3"
    assert describe_exit(-9) == "killed by SIGKILL"
    assert describe_exit(-34) in ("killed by SIGRTMIN", "killed by signal 34")


def _pidfd_or_none(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None
