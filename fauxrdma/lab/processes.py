"""Supervised child processes: started in their own session, watched by one selector, ended without leftovers.

Everything runs in the caller's thread: :meth:`Supervisor.pump` waits on the output pipes, the readiness pipes and the
pidfds of all children at once. There are no helper threads, so forking stays safe and the order of events is the order
in which they were seen.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from fauxrdma.errors import SetupError

__all__ = ["Child", "Stream", "Supervisor", "describe_exit"]

Stream = Literal["stdout", "stderr"]
LineHandler = Callable[["Child", Stream, str], None]

TAIL_LINES = 12
_LOG_TAIL_BYTES = 4096
_MAX_LINE_BYTES = 64 * 1024
_READ_BYTES = 64 * 1024
_POLL_WITHOUT_PIDFD_S = 0.05
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


def describe_exit(returncode: int) -> str:
    """How a process ended, for a person: ``exit code 1`` or ``killed by SIGKILL``."""
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        return f"killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"killed by signal {-returncode}"


@dataclass(eq=False, slots=True)
class Child:
    """One supervised process. `name` says what it is to a person (`rank 1 (node 0, GPU 1)`)."""

    name: str
    pid: int
    log: Path | None
    returncode: int | None = None
    end_order: int | None = None
    """Position in the order in which the supervisor saw its children end; None while it runs."""
    ready: dict[str, Any] | None = None
    """The JSON object the process wrote to its readiness pipe."""
    stderr_tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))
    _popen: subprocess.Popen[bytes] | None = None
    _pidfd: int | None = None
    _on_line: LineHandler | None = None
    _buffers: dict[int, tuple[str, bytearray]] = field(default_factory=dict)

    @property
    def running(self) -> bool:
        """Whether the process has not been seen to end."""
        return self.returncode is None

    def last_stderr(self) -> list[str]:
        """The last lines of its stderr (of its log file when its output goes there), at most TAIL_LINES."""
        if self.log is None or not self.log.exists():
            return list(self.stderr_tail)
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - _LOG_TAIL_BYTES))
            return file.read().decode(errors="replace").splitlines()[-TAIL_LINES:]

    def describe_end(self) -> str:
        """``NAME (pid N): exit code 1``."""
        state = "running" if self.returncode is None else describe_exit(self.returncode)
        return f"{self.name} (pid {self.pid}): {state}"


class Supervisor:
    """Starts children, feeds their output to callbacks, and leaves none behind. A context manager.

    `die_with_parent` asks the kernel to kill a child when the thread that started it ends, so that even SIGKILL of this
    process leaves nothing; children that were started from a short-lived thread must not have it.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._children: list[Child] = []
        self._ended = 0

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def children(self) -> list[Child]:
        """All children ever started, in start order."""
        return list(self._children)

    def start(
        self,
        name: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        log: Path | None = None,
        on_line: LineHandler | None = None,
        ready_option: str | None = None,
        die_with_parent: bool = False,
    ) -> Child:
        """Start `argv` in a session of its own.

        Output goes to the file `log` (both streams), else line by line to `on_line`. With `ready_option` a pipe is
        opened for the child and ``ready_option FD`` appended to its arguments; what it writes there becomes
        `Child.ready`. Raises SetupError when the program cannot be executed.
        """
        read_fd = write_fd = None
        command = list(argv)
        if ready_option is not None:
            read_fd, write_fd = os.pipe()
            command += [ready_option, str(write_fd)]
        log_file = log.open("ab") if log is not None else None
        output: Any = log_file if log_file is not None else subprocess.PIPE
        parent = os.getpid()

        def arm_parent_death() -> None:  # runs between fork and exec, in a process that has a single thread
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:  # the parent died in the meantime
                os._exit(1)

        try:
            popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=None if env is None else dict(env),
                cwd=cwd,
                start_new_session=True,
                pass_fds=() if write_fd is None else (write_fd,),
                preexec_fn=arm_parent_death if die_with_parent else None,
            )
        except OSError as error:
            if read_fd is not None:
                os.close(read_fd)
            raise SetupError(f"cannot start {name}: {command[0]}: {error.strerror or error}") from None
        finally:
            if write_fd is not None:
                os.close(write_fd)
            if log_file is not None:
                log_file.close()
        child = Child(name, popen.pid, log, _popen=popen, _on_line=on_line)
        self._children.append(child)
        with contextlib.suppress(OSError):  # kernels and sandboxes without pidfd: polled instead
            child._pidfd = os.pidfd_open(popen.pid)
            self._selector.register(child._pidfd, selectors.EVENT_READ, (child, "exit"))
        if read_fd is not None:
            self._watch(child, read_fd, "ready")
        if popen.stdout is not None and popen.stderr is not None:
            self._watch(child, os.dup(popen.stdout.fileno()), "stdout")
            self._watch(child, os.dup(popen.stderr.fileno()), "stderr")
            popen.stdout.close()
            popen.stderr.close()
        return child

    def _watch(self, child: Child, fd: int, what: str) -> None:
        os.set_blocking(fd, False)
        child._buffers[fd] = (what, bytearray())
        self._selector.register(fd, selectors.EVENT_READ, (child, what))

    def pump(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` for something to happen, and handle all that did."""
        blind = [child for child in self._children if child.running and child._pidfd is None]
        if blind:
            timeout_s = min(timeout_s, _POLL_WITHOUT_PIDFD_S)
        exited = []
        for key, _ in self._selector.select(max(0.0, timeout_s)):
            child, what = key.data
            if what == "exit":
                exited.append(child)
            elif key.fd in child._buffers:
                self._read(child, key.fd)
        exited += [child for child in blind if child._popen is not None and child._popen.poll() is not None]
        for child in exited:
            self._collect(child)

    def wait_ready(self, child: Child, timeout_s: float) -> bool:
        """Pump until the child wrote to its readiness pipe. False when it ended or the time passed before."""
        deadline = time.monotonic() + timeout_s
        while child.ready is None and child.running:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self.pump(left)
        return child.ready is not None

    def stop(self, children: Iterable[Child] | None = None, grace_s: float = 5.0) -> None:
        """End `children` (default: all) and every process they started: SIGTERM, then SIGKILL after `grace_s`.

        Returns when each has been reaped. A second Ctrl-C while waiting kills at once.
        """
        targets = [child for child in (self._children if children is None else children) if child.running]
        for child in targets:
            self._signal(child, signal.SIGTERM)
            self._signal(child, signal.SIGCONT)  # a stopped process would not see SIGTERM
        try:
            self._pump_until_ended(targets, grace_s)
        finally:
            for child in targets:
                if child.running:
                    self._signal(child, signal.SIGKILL)
            self._see_through(targets, 10.0)

    def _pump_until_ended(self, targets: Sequence[Child], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while any(child.running for child in targets) and (left := deadline - time.monotonic()) > 0:
            self.pump(left)

    def _see_through(self, targets: Sequence[Child], timeout_s: float) -> None:
        """Wait for killed processes, which takes no time worth interrupting: a Ctrl-C (or an error of somebody who
        listens to the last lines) is passed on when they are gone."""
        deadline = time.monotonic() + timeout_s
        interruption: BaseException | None = None
        while any(child.running for child in targets) and (left := deadline - time.monotonic()) > 0:
            try:
                self._pump_until_ended(targets, left)
            except BaseException as error:
                interruption = error
        if interruption is not None:
            raise interruption

    def close(self) -> None:
        """Stop what still runs and release the descriptors. Idempotent."""
        try:
            self.stop(grace_s=2.0)
        finally:
            for key in list(self._selector.get_map().values()) if self._selector.get_map() else []:
                self._close_fd(key.fd)
            self._selector.close()

    def _signal(self, child: Child, number: int) -> None:
        # The leader is not reaped while `running`, so its process group number cannot have been reused.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, number)

    def _collect(self, child: Child) -> None:
        """Reap a child that ended, after ending whatever it left in its process group."""
        assert child._popen is not None
        if not child.running:
            return
        self._signal(child, signal.SIGKILL)
        returncode = child._popen.wait()
        for fd in list(child._buffers):
            while fd in child._buffers and self._read(child, fd):
                pass
            if fd in child._buffers:
                self._end_of_stream(child, fd)
        if child._pidfd is not None:
            self._close_fd(child._pidfd)
            child._pidfd = None
        child.end_order = self._ended
        self._ended += 1
        child.returncode = returncode

    def _read(self, child: Child, fd: int) -> bool:
        """Take what a pipe holds. False when it is empty or at its end."""
        what, buffer = child._buffers[fd]
        try:
            data = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._end_of_stream(child, fd)
            return False
        buffer += data
        if what == "ready":
            if b"\n" in buffer:  # one line is the whole message; the child may keep its end open
                self._end_of_stream(child, fd)
            return True
        *lines, rest = bytes(buffer).split(b"\n")
        buffer[:] = rest
        if len(rest) > _MAX_LINE_BYTES:
            lines.append(rest)
            buffer.clear()
        for line in lines:
            self._line(child, what, line)
        return True

    def _end_of_stream(self, child: Child, fd: int) -> None:
        what, buffer = child._buffers.pop(fd)
        self._close_fd(fd)
        if what == "ready":
            with contextlib.suppress(ValueError):
                parsed = json.loads(bytes(buffer))
                child.ready = parsed if isinstance(parsed, dict) else None
        elif buffer:
            self._line(child, what, bytes(buffer))

    def _line(self, child: Child, what: str, raw: bytes) -> None:
        # A progress bar rewrites its line with carriage returns: its last state is the line.
        line = raw.decode(errors="replace").rstrip("\r").rsplit("\r", 1)[-1]
        stream: Stream = "stderr" if what == "stderr" else "stdout"
        if stream == "stderr" and line.strip():
            child.stderr_tail.append(line)
        if child._on_line is not None:
            child._on_line(child, stream, line)

    def _close_fd(self, fd: int) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(fd)
        with contextlib.suppress(OSError):
            os.close(fd)
