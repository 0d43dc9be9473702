"""What a program sees of the machine's devices besides pyverbs: commands on PATH, files under /sys.

In a directory that lives as long as the program: `bin/rdma` and `bin/ip` for PATH, `pyverbs/` for PYTHONPATH (so that
the program's children find it), and `sys/class/infiniband`, which this process's file functions read in place of the
real one. The real one cannot be written to, and a mount needs privileges.
"""

from __future__ import annotations

import builtins
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fauxrdma.compat.sysfs import write_sysfs

__all__ = ["stand_ins"]

_SYSFS = "/sys/class/infiniband"
_COMMANDS = ("rdma", "ip")
_SHIM = "import fauxrdma.compat\n\nfauxrdma.compat.install()\n"


@contextmanager
def stand_ins() -> Iterator[Path]:
    """Put them up, in this process's environment and file functions; the directory they are in."""
    directory = Path(tempfile.mkdtemp(prefix="fauxrdma-compat-"))
    saved = {name: os.environ.get(name) for name in ("PATH", "PYTHONPATH")}
    try:
        _write(directory)
        os.environ["PATH"] = f"{directory / 'bin'}{os.pathsep}{saved['PATH'] or os.defpath}"
        # Where fauxrdma itself is found, too: the program may start its children anywhere.
        roots = [str(directory), str(Path(__file__).resolve().parents[2]), saved["PYTHONPATH"]]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, roots))
        sys.path.insert(1, str(directory))  # what multiprocessing's spawn hands on instead
        with _redirected(directory / "sys" / "class" / "infiniband"):
            yield directory
    finally:
        if str(directory) in sys.path:
            sys.path.remove(str(directory))
        for name, value in saved.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        shutil.rmtree(directory, ignore_errors=True)


def _write(directory: Path) -> None:
    package = directory / "pyverbs"
    package.mkdir()
    (package / "__init__.py").write_text(_SHIM)
    commands = directory / "bin"
    commands.mkdir()
    for name in _COMMANDS:
        script = commands / name
        script.write_text(
            f"#!{sys.executable}\nimport sys\n\nfrom fauxrdma.compat.commands import {name}\n\n"
            f"sys.exit({name}(sys.argv[1:]))\n"
        )
        script.chmod(0o755)


@contextmanager
def _redirected(root: Path) -> Iterator[None]:
    """Python's file functions look under `root`, filled when it is first looked at, for what is under
    /sys/class/infiniband."""

    made: list[bool] = []

    def elsewhere(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any = ".", *args: Any, **kwargs: Any) -> Any:
            try:
                text = os.fspath(path)
            except TypeError:  # a descriptor
                return function(path, *args, **kwargs)
            if isinstance(text, str) and (text == _SYSFS or text.startswith(f"{_SYSFS}/")):
                if not made:
                    made.append(True)
                    write_sysfs(root)
                path = f"{root}{text[len(_SYSFS) :]}"
            return function(path, *args, **kwargs)

        return call

    places: list[tuple[Any, str]] = [
        (builtins, "open"), (io, "open"), (os, "open"), (os, "stat"), (os, "lstat"), (os, "listdir"), (os, "scandir"),
    ]  # fmt: skip
    kept = [(module, name, getattr(module, name)) for module, name in places]
    for module, name, function in kept:
        setattr(module, name, elsewhere(function))
    try:
        yield
    finally:
        for module, name, function in kept:
            setattr(module, name, function)
