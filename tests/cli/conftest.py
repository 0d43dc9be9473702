"""Running the real command, with a check after every test that it left nothing."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
_MARK = "FAUXRDMA_TEST_MARK"


class Cli:
    """Runs ``fauxrdma`` in a directory of its own. Every process it starts inherits a mark in its environment."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.temporary = Path(tempfile.mkdtemp(prefix="fx-", dir="/tmp"))
        self.mark = uuid.uuid4().hex
        self.env = {**os.environ, _MARK: self.mark, "TMPDIR": str(self.temporary), "COLUMNS": "140"}
        for name in ("FAUXRDMA_SOCKET", "FAUXRDMA_DEBUG", "RANK", "WORLD_SIZE", "XDG_RUNTIME_DIR"):
            self.env.pop(name, None)

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "fauxrdma.cli.main", *arguments]

    def __call__(self, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run to the end; standard output and error are captured apart."""
        return subprocess.run(
            self.command(*arguments),
            cwd=self.directory,
            env={**self.env, **(env or {})},
            capture_output=True,
            text=True,
            timeout=240,
            stdin=subprocess.DEVNULL,
            check=False,
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start and return at once."""
        return subprocess.Popen(
            self.command(*arguments),
            cwd=self.directory,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            stdin=subprocess.DEVNULL,
            # A shell without job control starts what it puts in the background with SIGINT ignored, and that is
            # inherited: tests that send one must not depend on how they were started.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def script(self, text: str, name: str = "job.py") -> str:
        """Write a script into the directory and return its name."""
        (self.directory / name).write_text(text)
        return name

    def leftovers(self) -> list[str]:
        """Processes with our mark, and files in our temporary directory."""
        found = [str(path) for path in self.temporary.glob("fauxrdma-*")]
        needle = f"{_MARK}={self.mark}".encode()
        for process in Path("/proc").glob("[0-9]*"):
            try:
                marked = needle in (process / "environ").read_bytes().split(b"\0")
                state = (process / "stat").read_text().rpartition(")")[2].split()[0]
            except (OSError, IndexError):
                continue
            if marked and state not in "ZX":
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        return found


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    made = Cli(tmp_path)
    try:
        yield made
        assert made.leftovers() == []
    finally:
        shutil.rmtree(made.temporary, ignore_errors=True)
