"""Runs a program once per GPU of a lab, the way torchrun does, and says which rank failed first and why."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fauxrdma.errors import CheckFailed, ConfigError, FabricUnhealthy, FauxrdmaError, SetupError
from fauxrdma.lab.daemon_child import obituary, verdict
from fauxrdma.lab.processes import Child, Stream, Supervisor, describe_exit
from fauxrdma.topology.placement import Placement

__all__ = ["JobLab", "JobResult", "RankLine", "parse_result_line", "resolve_command", "run_job"]

_PUMP_S = 0.1
# How long ranks may take to notice by themselves that a daemon died, so that their own error is seen; and how long the
# others may take once one has.
_DAEMON_DEATH_GRACE_S = 15.0
_AFTER_FIRST_FAILURE_S = 2.0
# A rank can end faster than the process it killed, or than a daemon whose memory must be unmapped.
_SETTLE_S = 0.3
_PAIR = re.compile(r"[A-Za-z_][\w.]*=\S+")
_MISSING_MODULE = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
# What to install for a module that a script is likely to import.
_INSTALL = {"torch": "'fauxrdma[torch]'", "sklearn": "scikit-learn", "fauxrdma": "fauxrdma", "PIL": "pillow"}


@dataclass(frozen=True, slots=True)
class RankLine:
    """One line that a rank printed."""

    rank: int
    node: int
    stream: Stream
    text: str

    @property
    def prefix(self) -> str:
        """``[n0 r1]``."""
        return f"[n{self.node} r{self.rank}]"


@dataclass(frozen=True, slots=True)
class JobResult:
    """A job that ended well. `values` are the name=value pairs of rank 0's last result line; `wall_s` is wall time."""

    command: list[str]
    world_size: int
    values: dict[str, str]
    wall_s: float
    stats_dir: Path


class JobLab(Protocol):
    """What running a job needs of a lab: LocalLab's properties and methods of these names."""

    @property
    def supervisor(self) -> Supervisor: ...
    @property
    def placement(self) -> Placement: ...
    @property
    def stats_dir(self) -> Path: ...
    @property
    def world_size(self) -> int: ...
    @property
    def may_tie_children(self) -> bool: ...

    def check(self) -> None: ...
    def dead(self) -> list[Child]: ...
    def env_of_rank(self, rank: int) -> dict[str, str]: ...
    def await_ranks(self, pids: Sequence[int]) -> None: ...


def parse_result_line(line: str) -> dict[str, str] | None:
    """The pairs of a line such as ``loss=0.12 accuracy=0.97 steps=55``; None when it holds anything else."""
    tokens = line.split()
    if not tokens or not all(_PAIR.fullmatch(token) for token in tokens):
        return None
    return {name: value for name, _, value in (token.partition("=") for token in tokens)}


def resolve_command(command: Sequence[str], folder: Path | None = None) -> list[str]:
    """The argument vector for ``script.py args``, ``-m module args``, ``python script.py`` or any program. A script's
    path counts from `folder`, where it is to be started (default: here).

    ``python`` means the interpreter fauxrdma itself runs in, so that its virtual environment need not be activated.
    Raises ConfigError when there is nothing to run or no such file.
    """
    if not command:
        raise ConfigError("nothing to run: give the script after --, as in `fauxrdma run fat-tree -- train.py`")
    first, *rest = command
    interpreter = [sys.executable, "-u"]
    if first in ("python", "python3"):
        return [*interpreter, *rest]
    if first == "-m":
        if not rest:
            raise ConfigError("-m needs the name of a module, as in `-- -m my_package.train`")
        return [*interpreter, *command]
    if first.endswith(".py"):
        if not (folder or Path()).joinpath(first).is_file():
            raise ConfigError(f"there is no script {first} (looked in {folder or Path.cwd()})")
        return [*interpreter, *command]
    program = shutil.which(first)
    if program is None:
        raise ConfigError(f"{first} is neither a Python script (*.py) nor a program on PATH")
    return [program, *rest]


def run_job(
    lab: JobLab,
    command: Sequence[str],
    *,
    node: int | None = None,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    on_line: Callable[[RankLine], None] | None = None,
    on_notice: Callable[[str], None] | None = None,
    on_tick: Callable[[], None] | None = None,
) -> JobResult:
    """Run `command` once for every rank of `lab`, or for those of one `node`, and wait for all of them.

    `environment` is added to what ranks find in theirs; they start in `folder` (default: here). `on_line` gets every
    output line, `on_notice` what the launcher itself has to say, `on_tick` is called several times a second. When one
    rank fails the others are ended.
    Raises CheckFailed for a rank that failed (SetupError when a module is missing), FabricUnhealthy when a daemon died;
    the error's notes hold the last lines of that rank.
    """
    argv = resolve_command(command, folder)
    for stale in lab.stats_dir.glob("*"):
        stale.unlink()
    lab.check()
    started = time.monotonic()
    ranks: list[Child] = []
    result: dict[str, str] = {}

    def handler(rank: int, node: int) -> Callable[[Child, Stream, str], None]:
        def handle(_: Child, stream: Stream, text: str) -> None:
            if rank == 0 and stream == "stdout" and (pairs := parse_result_line(text)) is not None:
                result.clear()
                result.update(pairs)
            if on_line is not None:
                on_line(RankLine(rank, node, stream, text))

        return handle

    try:
        for rank, place in enumerate(lab.placement.places):
            if node not in (None, place.node):
                continue
            child = lab.supervisor.start(
                f"rank {rank} (node {place.node}, GPU {place.gpu})",
                argv,
                env={**os.environ, **(environment or {}), **lab.env_of_rank(rank)},
                cwd=folder,
                on_line=handler(rank, place.node),
                die_with_parent=lab.may_tie_children,
            )
            ranks.append(child)
        lab.await_ranks([child.pid for child in ranks])
        _watch(lab, ranks, on_notice, on_tick)
    finally:
        lab.supervisor.stop(ranks)
    return JobResult(list(command), lab.world_size, result, time.monotonic() - started, lab.stats_dir)


def _watch(
    lab: JobLab,
    ranks: list[Child],
    on_notice: Callable[[str], None] | None,
    on_tick: Callable[[], None] | None,
) -> None:
    """Pump until every rank ended well; raise as soon as the job cannot."""
    give_up: float | None = None
    noticed = blamed = False
    while any(rank.running for rank in ranks):
        lab.supervisor.pump(_PUMP_S)
        now = time.monotonic()
        if on_tick is not None:
            on_tick()
        if not noticed and (dead := lab.dead()):
            if (found := verdict(dead[0])) is not None:
                raise found
            noticed, give_up = True, now + (_AFTER_FIRST_FAILURE_S if blamed else _DAEMON_DEATH_GRACE_S)
            if on_notice is not None:
                on_notice(obituary(dead[0]))
        if not blamed and _first_failure(ranks) is not None:
            blamed, give_up = True, now + (_AFTER_FIRST_FAILURE_S if noticed else _SETTLE_S)
        if give_up is not None and now > give_up:
            break
    failed = _first_failure(ranks)
    if failed is not None:
        _settle(lab)
    if dead := lab.dead():
        error: FauxrdmaError = FabricUnhealthy(obituary(dead[0]))
        if failed is not None:
            _add_last_words(error, failed)
        raise error
    if failed is not None:
        raise _failure(failed)


def _settle(lab: JobLab) -> None:
    """Give a daemon whose death made a rank fail the time to be seen dead."""
    deadline = time.monotonic() + _SETTLE_S
    while not lab.dead() and (left := deadline - time.monotonic()) > 0:
        lab.supervisor.pump(left)


def _first_failure(ranks: list[Child]) -> Child | None:
    failed = [rank for rank in ranks if rank.returncode not in (None, 0)]
    return min(failed, key=lambda rank: rank.end_order or 0, default=None)


def _failure(rank: Child) -> FauxrdmaError:
    """The error for the rank that failed first, with the likely fix where there is one."""
    lines = rank.last_stderr()
    missing = next((found for line in reversed(lines) if (found := _MISSING_MODULE.search(line))), None)
    if missing is not None:
        module = missing.group(1).partition(".")[0]
        package = _INSTALL.get(module, module)
        return SetupError(
            f"{rank.name} needs the Python module {module}, which {sys.executable} does not have: "
            f"{sys.executable} -m pip install {package}"
        )
    returncode = rank.returncode if rank.returncode is not None else 0
    last = lines[-1].strip() if lines else ""
    error = CheckFailed(f"{rank.name} failed first: {describe_exit(returncode)}" + (f": {last}" if last else ""))
    _add_last_words(error, rank)
    return error


def _add_last_words(error: FauxrdmaError, rank: Child) -> None:
    error.add_note(f"{rank.describe_end()}; the last lines of its stderr:")
    for line in rank.last_stderr():
        error.add_note(f"  {line}")
