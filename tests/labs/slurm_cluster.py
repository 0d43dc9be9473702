"""A Slurm cluster of several nodes on this machine: munged, slurmctld and one slurmd for each, with their own
configuration and ports, ended by the test."""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

from fauxrdma.lab.ports import free_port

T = TypeVar("T")

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "scancel")
_START_S = 60.0
_ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"}


def missing() -> str:
    """Why there can be no cluster here, "" if there can."""
    if os.geteuid() != 0:
        return "slurmd starts jobs as root only"
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"not installed: {', '.join(absent)} (Debian: slurm-wlm, munge)" if absent else ""


class SlurmCluster:
    """What a user sees of the cluster. Jobs inherit `env`."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self.folder = folder
        self.env = env

    def call(self, *command: str) -> str:
        """Standard output of one of Slurm's commands."""
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout.strip()

    def submit(self, script: Path, *options: str) -> str:
        """Queue a script; the job's number. Its output goes to NUMBER.out beside it."""
        return self.call("sbatch", "--parsable", f"--output={script.parent}/%j.out", *options, str(script))

    def job(self, number: str) -> dict[str, str]:
        """What Slurm knows of a job."""
        fields = self.call("scontrol", "--oneliner", "show", "job", number).split()
        return dict(field.split("=", 1) for field in fields if "=" in field)

    def ended(self, number: str, timeout_s: float = 120.0) -> dict[str, str]:
        """Wait until a job has ended and its processes are gone."""
        return until(
            lambda: self.job(number),
            lambda job: job["JobState"] in _ENDED and not self.processes(number),
            timeout_s,
            lambda: self.logs(),
        )

    def processes(self, number: str) -> list[int]:
        """The processes of a job, by what Slurm puts into their environment; not Slurm's own."""
        wanted = {f"SLURM_JOB_ID={number}", f"SLURM_CONF={self.env['SLURM_CONF']}"}
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                try:
                    environ = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
                except OSError:  # it has just ended
                    continue
                if wanted <= set(environ):
                    found.append(int(entry.name))
        return found

    def logs(self) -> str:
        """The ends of all logs, for a test that failed."""
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"{log.name}: {log.read_text(errors='replace')[-1500:]}" for log in logs)


def until(
    ask: Callable[[], T], accepted: Callable[[T], bool], timeout_s: float, explain: Callable[[], str] = lambda: ""
) -> T:
    """The first answer that is accepted. Slurm tells nobody when something happens, so it is asked again and again."""
    deadline = time.monotonic() + timeout_s
    while not accepted(answer := ask()):
        assert time.monotonic() < deadline, f"after {timeout_s:g} s still {answer}\n{explain()}"
        time.sleep(0.1)
    return answer


@contextmanager
def slurm_cluster(folder: Path, nodes: int, env: dict[str, str]) -> Iterator[SlurmCluster]:
    """A cluster with the nodes s0, s1, ... at the addresses 127.0.0.2, 127.0.0.3, ..."""
    folder.chmod(0o755)
    key = folder / "munge.key"
    key.write_bytes(random.randbytes(128))
    key.chmod(0o400)
    (folder / "state").mkdir()
    configuration = folder / "slurm.conf"
    configuration.write_text(_configuration(folder, nodes))
    cluster = SlurmCluster(folder, {**env, "SLURM_CONF": str(configuration)})
    munge_files = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
    with ExitStack() as stack:
        # --force: the folders above are the test's, not the system's, which munged would complain about.
        munged = ["munged", "--foreground", "--force", f"--socket={folder}/munge.sock", *munge_files]
        stack.enter_context(_running(munged, folder / "munged.log", cluster.env))
        until((folder / "munge.sock").exists, bool, _START_S, cluster.logs)
        for node in range(nodes):
            stack.enter_context(_running(["slurmd", "-D", "-N", f"s{node}"], folder / f"slurmd{node}.log", cluster.env))
        stack.enter_context(_running(["slurmctld", "-D"], folder / "slurmctld.log", cluster.env))
        idle = ["idle"] * nodes
        until(lambda: _states(cluster), lambda states: states == idle, _START_S, cluster.logs)
        try:
            yield cluster
        finally:
            cluster.call("scancel", "--user=root")
            until(lambda: _states(cluster), lambda states: states == idle, _START_S, cluster.logs)


def _states(cluster: SlurmCluster) -> list[str]:
    done = subprocess.run(
        ["sinfo", "--Node", "--noheader", "--format=%T"], env=cluster.env, capture_output=True, text=True, timeout=60
    )
    return done.stdout.split()


@contextmanager
def _running(command: list[str], log: Path, env: dict[str, str]) -> Iterator[None]:
    with log.open("ab") as output:
        process = subprocess.Popen(command, env=env, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _configuration(folder: Path, nodes: int) -> str:
    """slurm.conf(5). A job's number gives it its ports, so the first is drawn: two clusters may run at once."""
    host = socket.gethostname()
    lines = [
        "ClusterName=test",
        f"SlurmctldHost={host}(127.0.0.1)",
        f"SlurmctldPort={free_port()}",
        f"FirstJobId={random.SystemRandom().randrange(1, 5000)}",
        "SlurmUser=root",
        "AuthType=auth/munge",
        f"AuthInfo=socket={folder}/munge.sock",
        "MpiDefault=none",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "JobAcctGatherType=jobacct_gather/none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_CPU_Memory",
        "SchedulerParameters=sched_min_interval=10000",
        "ReturnToService=2",
        "KillWait=5",
        f"SlurmctldPidFile={folder}/slurmctld.pid",
        f"SlurmdPidFile={folder}/slurmd-%n.pid",
        f"SlurmdSpoolDir={folder}/spool-%n",
        f"StateSaveLocation={folder}/state",
    ]
    for node in range(nodes):
        lines.append(
            f"NodeName=s{node} NodeHostname={host} NodeAddr=127.0.0.{2 + node} Port={free_port()} "
            "CPUs=2 RealMemory=4096"
        )
    lines.append("PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP")
    return "\n".join(lines) + "\n"
