"""Labs that run now: those of `fauxrdma lab up` by name, all others by the record that each leaves in its directory."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from fauxrdma.errors import ConfigError, SetupError
from fauxrdma.lab.directory import live_directories
from fauxrdma.lab.running.folder import labs

__all__ = ["RunningLab", "find_lab", "record_lab"]

_RECORD = "lab.json"


@dataclass(frozen=True, slots=True)
class RunningLab:
    """`fabric` as it was typed; the subnet manager listens at `host`:`port`; `directory` is the lab's own."""

    fabric: str
    host: str
    port: int
    directory: str


def record_lab(lab: RunningLab) -> None:
    """Let others find it from now on."""
    path = Path(lab.directory) / _RECORD
    unnamed = path.with_suffix(".new")
    unnamed.write_text(json.dumps(asdict(lab)))
    unnamed.rename(path)


def find_lab(where: str | None = None) -> RunningLab:
    """The lab that is called `where`, or whose directory that is, by path or name; the only one that runs when it is
    None. Raises SetupError when there is none, ConfigError when there are several or none is called so."""
    running = {path.name: _read(path) for path in live_directories() if (path / _RECORD).exists()}
    running |= {
        state.name: RunningLab(state.fabric, *state.subnet_manager, state.directory)
        for state in labs().values()
        if state.subnet_manager[1]
    }
    names = ", ".join(f"{name} ({lab.fabric})" for name, lab in running.items())
    if where is not None:
        found = running.get(Path(where).name)
        if found is None:
            raise ConfigError(f"no lab runs in {where!r}; those that run: {names or 'none'}")
        return found
    if not running:
        raise SetupError("no lab runs here: start one, as with `fauxrdma run`, and ask again while it does")
    if len(running) > 1:
        raise ConfigError(f"{len(running)} labs run, say which by --lab: {names}")
    return next(iter(running.values()))


def _read(path: Path) -> RunningLab:
    return RunningLab(**json.loads((path / _RECORD).read_text()))
