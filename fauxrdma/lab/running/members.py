"""The processes of a lab, found by a mark in their environment, and signals that reach no other process.

Every process that a lab starts inherits ``FAUXRDMA_LAB=NAME:ID``. The mark is there from the first instruction, passes
on to what a process starts, and outlives the one who could have kept a list: so no moment of a kill can lose one. A
process id alone is never trusted: it is opened (pidfd), looked at again, and only then signalled.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["MARK", "Member", "ProcessId", "end_members", "members"]

MARK = "FAUXRDMA_LAB"
_POLL_S = 0.02
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process that cannot be mistaken for a later one of the same number: `started` is its start time in clock ticks
    since boot (proc(5), field 22 of stat)."""

    pid: int
    started: int

    @classmethod
    def mine(cls) -> ProcessId:
        """This process."""
        found = _stat(os.getpid())
        return cls(os.getpid(), found[1] if found is not None else 0)

    @property
    def alive(self) -> bool:
        """Whether it runs (or is stopped): a zombie does not."""
        found = _stat(self.pid)
        return found is not None and found[1] == self.started and found[0] not in "ZX"

    def end(self, grace_s: float) -> None:
        """SIGTERM, and SIGKILL if it is still there after `grace_s`. Returns when it is gone."""
        _end({self.pid: lambda: self.alive}, grace_s)


@dataclass(frozen=True, slots=True)
class Member:
    """A process of a lab. `state` is ``running`` or ``stopped``."""

    process: ProcessId
    parent: int
    state: str
    command: list[str]
    environment: dict[str, str] = field(repr=False)

    @property
    def age_s(self) -> float:
        """Since it was started."""
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        return max(0.0, uptime - self.process.started / _CLOCK_TICKS)


def members(mark: str) -> list[Member]:
    """The processes of this user that carry ``FAUXRDMA_LAB=mark``, oldest first."""
    needle = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
            if needle not in variables:
                continue
            stat = _stat(pid)
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
        except OSError:  # another user's, or gone in the meantime
            continue
        if stat is None or stat[0] in "ZX":
            continue
        pairs = (text.decode(errors="replace").partition("=") for text in variables if text)
        environment = {name: value for name, _, value in pairs}
        state = "stopped" if stat[0] in "Tt" else "running"
        found.append(Member(ProcessId(pid, stat[1]), stat[2], state, words, environment))
    return sorted(found, key=lambda member: (member.process.started, member.process.pid))


def end_members(mark: str, grace_s: float = 2.0) -> int:
    """End all of them, and those they start meanwhile, but not this process. Returns how many there were."""
    ended: set[ProcessId] = set()
    while now := [found.process for found in members(mark) if found.process.pid != os.getpid()]:
        # Who is still there after SIGKILL (in the kernel, uninterruptibly) is not waited for for ever.
        if ended.issuperset(now):
            break
        ended.update(now)
        _end({process.pid: lambda process=process: process.alive for process in now}, grace_s)  # type: ignore[misc]
    return len(ended)


def _end(targets: dict[int, Callable[[], bool]], grace_s: float) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid, still in targets.items():
            _signal(pid, number, still)
            _signal(pid, signal.SIGCONT, still)  # a stopped process would not see SIGTERM
        deadline = time.monotonic() + grace_s
        while (left := [pid for pid, still in targets.items() if still()]) and time.monotonic() < deadline:
            _wait(left[0], deadline - time.monotonic())
        if not left:
            return


def _signal(pid: int, number: signal.Signals, still: Callable[[], bool]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        except OSError:  # a sandbox without pidfd
            if still():
                os.kill(pid, number)
            return
        try:
            if still():  # the descriptor is of this very process, whoever has the number later
                signal.pidfd_send_signal(fd, number)
        finally:
            os.close(fd)


def _wait(pid: int, timeout_s: float) -> None:
    """Until it may have ended."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        time.sleep(_POLL_S)
        return
    try:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        poll.poll(max(1, round(min(timeout_s, 0.5) * 1000)))
    finally:
        os.close(fd)


def _stat(pid: int) -> tuple[str, int, int] | None:
    """State, start time and parent of a process."""
    try:
        # The name before the last parenthesis may hold anything, so fields are counted after it.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return fields[0], int(fields[19]), int(fields[1])
    except (OSError, IndexError, ValueError):
        return None
