"""The folder of each running lab, by which other commands find it, and the state that is written there.

    $XDG_RUNTIME_DIR/fauxrdma/NAME/     or /tmp/fauxrdma-labs-UID/NAME/
        state.json                      what runs: LabState
        lab.yaml                        the lab file as it was
        logs/                           of the supervisor, the daemons and the ranks
        fauxrdma-XXXXXXXX/              sockets and statistics

A folder appears under its name complete or not at all, so of two that start at the same time one is refused.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import stat
import tempfile
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fauxrdma.errors import ConfigError, SetupError
from fauxrdma.lab.running.members import MARK, ProcessId, end_members

__all__ = [
    "Daemon",
    "LabState",
    "claim",
    "end_lab",
    "find_lab",
    "labs",
    "labs_folder",
    "read_state",
    "tidy_labs",
    "write_state",
]

_STATE = "state.json"
_NEW = ".new-"
# A Unix socket's path has 107 bytes; the name of the lab and of the socket come behind this.
_MAX_BASE_CHARS = 48
_GRACE_S = 15.0


@dataclass(frozen=True, slots=True)
class Daemon:
    """A process that the supervisor started; `node` is None for the subnet manager. `ended` says how, once it has."""

    name: str
    pid: int
    node: int | None
    ended: str = ""


@dataclass(frozen=True, slots=True)
class LabState:
    """A lab that runs or that was killed. `keeper` is the process that ends it when told to: the supervisor, or
    ``lab up --run`` itself. `node_env` and `rank_env` are what programs need in their environment to use the fabric."""

    name: str
    mark: str
    file: str
    fabric: str
    keeper: ProcessId
    phase: str = "starting"
    nodes: int = 0
    clock: str = ""
    dilation: float = 1.0
    subnet_manager: tuple[str, int] = ("", 0)
    directory: str = ""
    daemons: list[Daemon] = field(default_factory=list)
    node_env: list[dict[str, str]] = field(default_factory=list)
    rank_env: list[dict[str, str]] = field(default_factory=list)

    @property
    def alive(self) -> bool:
        """Whether its keeper is there."""
        return self.keeper.alive

    @property
    def environment(self) -> dict[str, str]:
        """What marks a process as one of this lab."""
        return {MARK: self.mark}


def labs_folder() -> Path:
    """Where the folders of this user's labs are. Raises SetupError if it is there and is not ours alone."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime and len(runtime) <= _MAX_BASE_CHARS and os.access(runtime, os.W_OK | os.X_OK):
        return Path(runtime) / "fauxrdma"
    base = tempfile.gettempdir()
    path = Path(base if len(base) <= _MAX_BASE_CHARS else "/tmp") / f"fauxrdma-labs-{os.getuid()}"
    with contextlib.suppress(FileNotFoundError):
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
            raise SetupError(f"{path} is not a folder of yours alone: remove it, or set XDG_RUNTIME_DIR to one that is")
    return path


def claim(name: str, file: str, text: str, fabric: str) -> Path:
    """Make the folder of the lab `name`, whose keeper is this process; what a killed lab left there is ended first.

    Raises ConfigError when a lab of that name is up.
    """
    base = labs_folder()
    keeper = ProcessId.mine()
    while True:
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = base / f"{_NEW}{keeper.pid}-{keeper.started}-{uuid.uuid4().hex[:8]}"
        new.mkdir(mode=0o700)
        try:
            (new / "logs").mkdir()
            (new / "lab.yaml").write_text(text)
            write_state(new, LabState(name, f"{name}:{uuid.uuid4().hex[:12]}", file, fabric, keeper))
            new.rename(base / name)
            return base / name
        except FileNotFoundError:  # somebody who removes an empty folder of labs was quicker
            continue
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise SetupError(f"cannot make {base / name}: {error.strerror}") from None
        finally:
            shutil.rmtree(new, ignore_errors=True)
        there = read_state(base / name)
        if there is not None and there.alive:
            raise ConfigError(
                f"the lab {name} is up (started from {there.file}): `fauxrdma lab ps` shows it, "
                f"`fauxrdma lab down {name}` ends it"
            )
        end_lab(base / name)


def write_state(folder: Path, state: LabState) -> None:
    """Replace the state as a whole: whoever reads sees the old or the new."""
    new = folder / f"{_STATE}.new"
    new.write_text(json.dumps(asdict(state), indent=1))
    new.rename(folder / _STATE)


def read_state(folder: Path) -> LabState | None:
    """The state in a lab's folder; None when there is none."""
    try:
        content: dict[str, Any] = json.loads((folder / _STATE).read_text())
    except (OSError, ValueError):
        return None
    host, port = content.pop("subnet_manager")
    return LabState(
        **{
            **content,
            "keeper": ProcessId(**content["keeper"]),
            "daemons": [Daemon(**each) for each in content["daemons"]],
        },
        subnet_manager=(host, port),
    )


def labs() -> dict[Path, LabState]:
    """All labs of this user that run or were killed, by folder, in order of name."""
    try:
        folders = sorted(path for path in labs_folder().iterdir() if not path.name.startswith(_NEW))
    except FileNotFoundError:
        return {}
    return {path: state for path in folders if (state := read_state(path)) is not None}


def find_lab(name: str | None = None) -> tuple[Path, LabState]:
    """The folder and the state of the lab `name`; of the only one there is, if None. Raises ConfigError."""
    every = labs()
    names = ", ".join(state.name for state in every.values())
    if not every:
        wanted = f"the lab {name} is not up" if name else "no lab is up"
        raise ConfigError(f"{wanted}: start one with `fauxrdma lab up`")
    if name is None and len(every) > 1:
        raise ConfigError(f"several labs are up ({names}): say which with --lab NAME")
    for folder, state in every.items():
        if name in (None, state.name):
            return folder, state
    raise ConfigError(f"the lab {name} is not up; there is {names}")


def end_lab(folder: Path) -> None:
    """End every process of a lab and remove its folder; harmless if there is none. The keeper is asked first, so that
    all end in order; then whoever still carries the mark."""
    state = read_state(folder)
    if state is not None:
        if state.keeper.pid != os.getpid() and state.alive:
            state.keeper.end(_GRACE_S)
        end_members(state.mark)
    shutil.rmtree(folder, ignore_errors=True)
    tidy_labs()


def tidy_labs() -> None:
    """Remove what starters left that were killed, and the folder of labs when nothing is in it."""
    base = labs_folder()
    for new in base.glob(f"{_NEW}*"):
        pid, started = new.name.removeprefix(_NEW).split("-")[:2]
        if not ProcessId(int(pid), int(started)).alive:
            shutil.rmtree(new, ignore_errors=True)
    with contextlib.suppress(OSError):
        base.rmdir()
