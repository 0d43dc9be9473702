"""Start one process per rank of a lab, or of a plain gloo job, and collect what they print."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fauxrdma.lab.local import LocalLab
from fauxrdma.lab.ports import free_port


@dataclass
class Outcome:
    """How one rank ended."""

    returncode: int
    stdout: str
    stderr: str


def run_everywhere(
    environments: Sequence[dict[str, str]], command: Sequence[str], tmp_path: Path, *, timeout_s: float = 110
) -> list[Outcome]:
    """Run `command` (arguments of this python) once per environment, at the same time."""
    processes, files = [], []
    for rank, env in enumerate(environments):
        out, err = ((tmp_path / f"rank{rank}.{kind}").open("w+") for kind in ("out", "err"))
        files.append((out, err))
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("FAUXRDMA_", "DIST_"))}
        processes.append(subprocess.Popen([sys.executable, *command], env={**clean, **env}, stdout=out, stderr=err))
    try:
        for process in processes:
            process.wait(timeout_s)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    outcomes = []
    for process, pair in zip(processes, files, strict=True):
        texts = []
        for file in pair:
            file.seek(0)
            texts.append(file.read())
            file.close()
        outcomes.append(Outcome(process.returncode, *texts))
    return outcomes


def lab_environments(lab: LocalLab, world_size: int) -> list[dict[str, str]]:
    """The environment of the first `world_size` ranks of a lab."""
    return [
        {**lab.rank_env(*divmod(rank, lab.gpus)), "WORLD_SIZE": str(world_size), "MASTER_PORT": str(lab.master_port)}
        for rank in range(world_size)
    ]


def gloo_environments(world_size: int) -> list[dict[str, str]]:
    """What torchrun would set for `world_size` ranks on this machine."""
    port = free_port()
    return [
        {
            "RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "LOCAL_RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
        }
        for rank in range(world_size)
    ]
