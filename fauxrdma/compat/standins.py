"""What a program sees of the machine's devices besides pyverbs: commands on PATH, files under /sys.

In a directory that lives as long as the program: `bin/rdma`, `bin/ip`, `bin/ls` and `bin/cat` for PATH, `pyverbs/` for
PYTHONPATH (so that the program's children find it), and `sys/class/infiniband`, which this process's file functions and
those `ls` and `cat` read in place of the real one. The real one cannot be written to, and a mount needs privileges.
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

from fauxrdma.compat.sysfs import netdev_of, write_sysfs

__all__ = ["stand_ins"]

_SYSFS = "/sys/class/infiniband"
_READERS = ("ls", "cat")
_SHIM = "import fauxrdma.compat\n\nfauxrdma.compat.install()\n"


_ANSWERS = """
file="{directory}/answers/{name} $(echo "$*" | tr / :)"
if [ -z "$(find "$file" -newermt '{age} ago' 2>/dev/null)" ]; then
    "{python}" -c 'import sys; from fauxrdma.compat.commands import {name}; sys.exit({name}(sys.argv[1:]))' \\
        "$@" >"$file.$$" || exit $?
    mv "$file.$$" "$file"
fi
exec "{cat}" "$file"
"""
"""Programs ask the same again and again, and Python takes a while to start: what was said lately is said again."""

_RDMA = f"#!/bin/sh{_ANSWERS}"
_IP = f"""#!/bin/sh
# Network devices of the emulated ones are answered for here, all else by the system's ip.
for last do :; done
case "$last" in {netdev_of("hca")}[0-9]*) ;; *) exec "{{command}}" "$@" ;; esac
{_ANSWERS}"""
_READER = """#!/bin/sh
# {command}, with what is under {sysfs} read elsewhere
count=$#
for argument do
    case "$argument" in
    {sysfs}|{sysfs}/*)
        [ -d "{root}" ] || "{python}" -m fauxrdma.compat.sysfs "{root}" || exit 1
        argument="{root}${{argument#{sysfs}}}" ;;
    esac
    set -- "$@" "$argument"
done
shift $count
exec "{command}" "$@"
"""


@contextmanager
def stand_ins() -> Iterator[Path]:
    """Put them up, in this process's environment and file functions; the directory they are in."""
    directory = _directory()
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


def _directory() -> Path:
    """With the node's socket, which goes with the lab should the program be killed; else among temporary files."""
    beside = os.environ.get("FAUXRDMA_SOCKET")
    try:
        return Path(tempfile.mkdtemp(prefix="compat-", dir=Path(beside).parent if beside else None))
    except OSError:
        return Path(tempfile.mkdtemp(prefix="fauxrdma-compat-"))


def _write(directory: Path) -> None:
    package = directory / "pyverbs"
    package.mkdir()
    (package / "__init__.py").write_text(_SHIM)
    (directory / "answers").mkdir()
    (directory / "bin").mkdir()
    fields = {
        "directory": directory,
        "sysfs": _SYSFS,
        "root": directory / "sys" / "class" / "infiniband",
        "python": sys.executable,
        "cat": shutil.which("cat") or "cat",
    }
    scripts = {
        "rdma": _RDMA.format(name="rdma", age="1 second", **fields),
        "ip": _IP.format(name="ip", age="1 day", command=shutil.which("ip") or "/sbin/ip", **fields),
        **{name: _READER.format(command=shutil.which(name) or f"/bin/{name}", **fields) for name in _READERS},
    }
    for name, text in scripts.items():
        script = directory / "bin" / name
        script.write_text(text)
        script.chmod(0o755)


@contextmanager
def _redirected(root: Path) -> Iterator[None]:
    """Python's file functions look under `root`, filled when it is first looked at, for what is under
    /sys/class/infiniband."""

    isdir = os.path.isdir  # looks at `os.stat`, which is redirected, and `root` is not

    def elsewhere(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any = ".", *args: Any, **kwargs: Any) -> Any:
            try:
                text = os.fspath(path)
            except TypeError:  # a descriptor
                return function(path, *args, **kwargs)
            if isinstance(text, str) and (text == _SYSFS or text.startswith(f"{_SYSFS}/")):
                if not isdir(root):
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
