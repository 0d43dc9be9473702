"""Running a program written for hardware on a node of a lab."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from fauxrdma.lab.local import LocalLab

PROGRAMS = Path(__file__).resolve().parents[2] / "examples" / "pyverbs"


class Machine:
    """A node of a lab, as a machine with RDMA hardware on which programs run."""

    def __init__(self, lab: LocalLab, node: int) -> None:
        self.env = {**os.environ, "FAUXRDMA_SOCKET": str(lab.socket_path(node))}

    def start(self, *arguments: str, **env: str) -> subprocess.Popen[str]:
        """Run `python -m fauxrdma.compat` with these arguments."""
        command = [sys.executable, "-m", "fauxrdma.compat", *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env={**self.env, **env}, stdout=pipe, stderr=pipe, text=True)

    def run(self, *arguments: str, **env: str) -> str:
        """The same to its end, which has to be a good one; what it printed."""
        return finish(self.start(*arguments, **env))


def finish(program: subprocess.Popen[str]) -> str:
    """What a program printed, once it has ended well."""
    try:
        out, err = program.communicate(timeout=60)
    finally:
        program.kill()
    assert program.returncode == 0, out + err
    return out
