"""A lab with its folder: started, described there for other commands, and taken away, in this process."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from fauxrdma.errors import SetupError
from fauxrdma.lab.file import LabFile
from fauxrdma.lab.local import LocalLab
from fauxrdma.lab.processes import describe_exit
from fauxrdma.lab.running.folder import Daemon, LabState, claim, end_lab, read_state, write_state
from fauxrdma.lab.running.members import ProcessId

__all__ = ["ENDING_SIGNALS", "claimed", "keep", "note_deaths", "running_lab", "without_interruption"]

ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
"""Those by which a person or a system ends a command."""
_PUMP_S = 60.0


@contextmanager
def without_interruption() -> Iterator[None]:
    """Have signals that end wait until the block is over."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def claimed(lab_file: LabFile) -> Iterator[Path]:
    """The folder of a lab that is to be started. If the block raises, be it by Ctrl-C at any moment, the lab is ended.

    Raises ConfigError when a lab of that name is up.
    """
    folder: Path | None = None
    try:
        with without_interruption():  # between making the folder and knowing its name
            folder = claim(lab_file.form.name, lab_file.path, lab_file.text, lab_file.fabric)
        yield folder
    except BaseException:
        with without_interruption():
            if folder is not None:
                end_lab(folder)
        raise


@contextmanager
def running_lab(folder: Path, lab_file: LabFile) -> Iterator[LocalLab]:
    """The lab of a file in the folder that `claim` made; this process is its keeper. Leaving ends all of it and removes
    the folder. Raises as LocalLab."""
    state = read_state(folder)
    if state is None:
        raise SetupError(f"{folder} is gone: somebody ended the lab while it started")
    form = lab_file.form
    state = replace(state, keeper=ProcessId.mine())
    os.environ.update(state.environment)  # for all that is started from here
    try:
        write_state(folder, state)
        lab = LocalLab(
            lab_file.fabric,
            form.nodes,
            form.gpus,
            clock=form.clock,
            dilation=form.dilation,
            seed=form.seed,
            profile=form.profile,
            routing=form.routing,
            placement=lab_file.placement_spec,
            on_nodes=lab_file.on_nodes,
            within=folder,
            log_dir=folder / "logs",
            verbose=True,
            events=_write_events(folder, lab_file),
        )
        with lab:
            write_state(folder, _described(state, lab))
            yield lab
    finally:
        end_lab(folder)


def _write_events(folder: Path, lab_file: LabFile) -> Path | None:
    """The faults of a lab file as a file of their own, for the subnet manager."""
    if not lab_file.events:
        return None
    path = folder / "events.yaml"
    path.write_text(json.dumps({"events": lab_file.events}))  # JSON is YAML
    return path


def keep(folder: Path, lab: LocalLab) -> None:
    """Look after a lab until a signal raises: write down which daemons end."""
    while True:
        lab.supervisor.pump(_PUMP_S)
        note_deaths(folder, lab)


def note_deaths(folder: Path, lab: LocalLab) -> None:
    """Write down how daemons ended, for `ps`."""
    state = read_state(folder)
    if state is not None and (daemons := _daemons(lab)) != state.daemons:
        write_state(folder, replace(state, daemons=daemons))


def _described(state: LabState, lab: LocalLab) -> LabState:
    sockets = [{"FAUXRDMA_SOCKET": str(lab.socket_path(node)), "FAUXRDMA_NODE": str(node)} for node in range(lab.nodes)]
    return replace(
        state,
        phase="up",
        nodes=lab.nodes,
        clock=lab.clock,
        dilation=lab.dilation,
        subnet_manager=lab.subnet_manager,
        directory=str(lab.directory),
        daemons=_daemons(lab),
        node_env=sockets,
        rank_env=[lab.env_of_rank(rank) for rank in range(lab.world_size)],
    )


def _daemons(lab: LocalLab) -> list[Daemon]:
    pids = [lab.subnet_manager_pid, *lab.daemons]
    children = {child.pid: child for child in lab.supervisor.children}
    found = []
    for at, pid in enumerate(pids):
        returncode = children[pid].returncode
        ended = describe_exit(returncode) if returncode is not None else ""
        found.append(Daemon(children[pid].name, pid, at - 1 if at else None, ended))
    return found
