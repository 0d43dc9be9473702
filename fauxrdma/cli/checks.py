"""What `fauxrdma doctor` looks at: each check says what it found and, when something is wrong, the fix."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import mmap
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import fauxrdma

__all__ = ["CHECKS", "Check", "Status", "run_checks"]

_MIN_PYTHON = (3, 11)
_MIN_FILES = 1024
_SUBPROCESS_TIMEOUT_S = 60.0
_TORCH_PROBE = """
import torch.distributed as dist
names = getattr(dist.Backend, "backend_list", [])
print("registered" if "fauxrdma" in names else "missing")
"""


class Status(StrEnum):
    """ok; warn: something optional is missing; fail: fauxrdma cannot work."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """The outcome of one check. `fix` is a command or a sentence, empty when all is well."""

    name: str
    status: Status
    found: str
    fix: str = ""


def _python() -> Check:
    found = f"{platform.python_implementation()} {platform.python_version()} at {sys.executable}"
    if sys.version_info < _MIN_PYTHON:
        return Check("python", Status.FAIL, found, "install Python 3.11 or newer and make a new virtual environment")
    return Check("python", Status.OK, found)


def _uvloop() -> Check:
    if not _installed("uvloop"):
        return Check(
            "uvloop", Status.WARN, "not installed: daemons fall back to asyncio and are slower", _pip("uvloop")
        )
    return Check("uvloop", Status.OK, importlib.metadata.version("uvloop"))


def _torch() -> Check:
    if not _installed("torch"):
        return Check(
            "torch",
            Status.WARN,
            "not installed: verbs and numpy collectives work, torch.distributed scripts do not",
            _pip("'fauxrdma[torch]'"),
        )
    return Check("torch", Status.OK, importlib.metadata.version("torch"))


def _torch_hook() -> Check:
    name = "torch hook"
    if not _installed("torch"):
        return Check(name, Status.WARN, "not checked: torch is not installed", _pip("'fauxrdma[torch]'"))
    points = importlib.metadata.entry_points(group="torch.backends")
    if not any(point.name == "fauxrdma" for point in points):
        return Check(
            name, Status.FAIL, "the entry point torch.backends: fauxrdma is missing", _pip("--force-reinstall fauxrdma")
        )
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") == "0":
        return Check(
            name,
            Status.FAIL,
            "TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps torch from loading it",
            "unset TORCH_DEVICE_BACKEND_AUTOLOAD, or import fauxrdma.torch in the script",
        )
    probe = _run([sys.executable, "-P", "-c", _TORCH_PROBE])
    if probe is None or probe.returncode != 0:
        words = probe.stderr.strip().splitlines()[-1] if probe is not None and probe.stderr.strip() else "no answer"
        return Check(name, Status.FAIL, f"`import torch` fails: {words}", _pip("--force-reinstall 'fauxrdma[torch]'"))
    if "registered" not in probe.stdout:
        return Check(
            name, Status.FAIL, "loaded, but torch does not know the backend", _pip("--upgrade 'fauxrdma[torch]'")
        )
    return Check(name, Status.OK, 'init_process_group("fauxrdma") works without an import in the script')


def _memfd() -> Check:
    try:
        fd = os.memfd_create("fauxrdma-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, mmap.PAGESIZE)
            with mmap.mmap(fd, mmap.PAGESIZE) as memory:
                memory[:4] = b"test"
        finally:
            os.close(fd)
    except (AttributeError, OSError) as error:
        return Check(
            "memfd", Status.FAIL, f"memfd_create: {error}", "use Linux 4.5 or newer; a seccomp profile may forbid it"
        )
    return Check("memfd", Status.OK, "shared memory for regions and queues")


def _pidfd() -> Check:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError) as error:
        return Check(
            "pidfd",
            Status.WARN,
            f"pidfd_open: {error}: ends of processes are noticed by polling",
            "use Linux 5.3 or newer",
        )
    return Check("pidfd", Status.OK, "ends of processes are noticed at once")


def _ptrace() -> Check:
    path = Path("/proc/sys/kernel/yama/ptrace_scope")
    if not path.exists():
        return Check("ptrace", Status.OK, "not restricted (no Yama)")
    scope = path.read_text().strip()
    if scope == "0":
        return Check("ptrace", Status.OK, "not restricted (ptrace_scope 0)")
    return Check(
        "ptrace",
        Status.WARN,
        f"ptrace_scope is {scope}: only memory that fauxrdma allocates can be registered without a copy",
        "sysctl kernel.yama.ptrace_scope=0, or --cap-add SYS_PTRACE for a container (optional)",
    )


def _docker() -> Check:
    if shutil.which("docker") is None:
        return Check(
            "docker", Status.WARN, "not installed: only the container image needs it", "install Docker (optional)"
        )
    probe = _run(["docker", "info", "--format", "{{.ServerVersion}}"], timeout_s=10.0)
    if probe is None or probe.returncode != 0 or not probe.stdout.strip():
        return Check(
            "docker", Status.WARN, "the client is there, no engine answers: only the container image needs it",
            "start the Docker engine (optional)",
        )  # fmt: skip
    return Check("docker", Status.OK, f"engine {probe.stdout.strip()}")


def _ports() -> Check:
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname(), timeout=5.0) as client,
        ):
            peer, _ = server.accept()
            with peer:
                client.sendall(b"x")
                peer.settimeout(5.0)
                if peer.recv(1) != b"x":
                    raise OSError("a byte was lost")
    except OSError as error:
        return Check(
            "ports",
            Status.FAIL,
            f"TCP over 127.0.0.1 does not work: {error}",
            "bring the loopback interface up: ip link set lo up",
        )
    return Check("ports", Status.OK, "TCP over 127.0.0.1 works")


def _files() -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < _MIN_FILES:
        limit = hard if hard != resource.RLIM_INFINITY else 65536
        return Check("open files", Status.WARN, f"the limit is {soft}: large fabrics need more", f"ulimit -n {limit}")
    return Check("open files", Status.OK, f"limit {'none' if soft == resource.RLIM_INFINITY else soft}")


def _temporary() -> Check:
    directory = tempfile.gettempdir()
    try:
        with tempfile.TemporaryDirectory(prefix="fauxrdma-doctor-") as made, socket.socket(socket.AF_UNIX) as server:
            server.bind(str(Path(made) / "n0.sock"))
    except OSError as error:
        return Check(
            "temporary files",
            Status.FAIL,
            f"no Unix socket can be made in {directory}: {error}",
            "set TMPDIR to a short, writable path",
        )
    return Check("temporary files", Status.OK, directory)


def _daemons() -> Check:
    name = "daemons package"
    home = Path(fauxrdma.__file__).resolve().parent.parent
    probe = _run([sys.executable, "-P", "-c", "import daemons.hca, daemons.subnet_manager; print(daemons.__file__)"])
    if probe is None or probe.returncode != 0:
        spec = importlib.util.find_spec("daemons")
        where = spec.origin if spec is not None and spec.origin else "nowhere"
        return Check(
            name, Status.FAIL, f"fauxrdma's daemons cannot be imported (`daemons` is {where})",
            "rename or uninstall the other package called daemons, or take its directory out of PYTHONPATH",
        )  # fmt: skip
    found = Path(probe.stdout.strip()).resolve()
    if found.parent.parent != home:
        return Check(
            name, Status.FAIL, f"shadowed: `import daemons` finds {found.parent}, not {home / 'daemons'}",
            "rename or uninstall that package, or take its directory out of PYTHONPATH",
        )  # fmt: skip
    return Check(name, Status.OK, str(found.parent))


def _speed() -> Check:
    from fauxrdma.runtime.host_probe import host_bytes_per_s

    cores = len(os.sched_getaffinity(0))
    found = f"{cores} core{'' if cores == 1 else 's'}, loopback TCP {host_bytes_per_s() / 1e9:.1f} GB/s"
    if cores < 2:
        return Check("speed", Status.WARN, found, "give it two cores or more: with one, expect fidelity debt")
    return Check("speed", Status.OK, found)


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:  # a finder on the path forbids it
        return False


def _pip(what: str) -> str:
    return f"{sys.executable} -m pip install {what}"


def _run(argv: list[str], timeout_s: float = _SUBPROCESS_TIMEOUT_S) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(
            argv, capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


CHECKS: list[Callable[[], Check]] = [
    _python, _uvloop, _torch, _torch_hook, _memfd, _pidfd, _ptrace, _ports, _files, _temporary, _daemons, _speed,
    _docker,
]  # fmt: skip
"""In the order they are printed."""


def run_checks() -> list[Check]:
    """Do them all; takes a few seconds, most of it `import torch`."""
    return [check() for check in CHECKS]
