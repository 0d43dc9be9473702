"""A lab as a job of a real Slurm: what its script does on two nodes, and what is left when it fails or is cancelled."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_cluster import SlurmCluster, missing, slurm_cluster, until

from fauxrdma.lab.engines import exported
from fauxrdma.lab.file import load_lab

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

REPOSITORY = Path(__file__).parents[2]
FAILS = """
import os, sys, time
import numpy as np
from fauxrdma.communicator import Communicator

with Communicator.from_env() as world:
    world.all_reduce(np.ones(1000, dtype=np.float32))
    if world.rank == 1:
        print("rank 1 has had enough", file=sys.stderr, flush=True)
        os._exit(7)
    time.sleep(1000)  # would never notice by itself
"""
STAYS = """
import time
import numpy as np
from fauxrdma.communicator import Communicator

with Communicator.from_env() as world:
    world.all_reduce(np.ones(1000, dtype=np.float32))
    print("all are here", flush=True)
    time.sleep(1000)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:  # short: Unix sockets are in it
        temporary = Path(folder) / "tmp"
        temporary.mkdir()
        env = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("FAUXRDMA_", "SLURM_"))},
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(REPOSITORY),
            "TMPDIR": str(temporary),
        }
        env.pop("XDG_RUNTIME_DIR", None)
        with slurm_cluster(Path(folder), 2, env) as cluster:
            yield cluster


def _lab(folder: Path, script: str, *, job: bool = True) -> Path:
    """A lab file on two nodes, and beside it the script for sbatch, whose path is returned."""
    path = folder / "digits.yaml"
    command = f"job: {{command: {script}}}\n" if job else ""
    path.write_text(f"name: digits\nfabric: fat-tree\nnodes: 2\nresources: {{cpus: 1, memory: 1GiB}}\n{command}")
    batch = folder / "lab.sbatch"
    batch.write_text(exported(load_lab(path), "slurm"))
    return batch


def _output(batch: Path, number: str) -> str:
    path = batch.parent / f"{number}.out"
    return path.read_text() if path.exists() else ""


def _folders_of_nodes(cluster: SlurmCluster) -> list[Path]:
    return list(Path(cluster.env["TMPDIR"]).glob("fauxrdma*"))


def _result(text: str) -> dict[str, str]:
    (line,) = re.findall(r"loss=.* params_sha256=\w+", text)
    return dict(pair.split("=") for pair in line.split())


def test_ddp_on_two_slurm_nodes_trains_as_local_processes_do(cluster: SlurmCluster, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    folder = tmp_path / "it's a lab"  # what a shell would take apart
    folder.mkdir()
    shutil.copy(REPOSITORY / "examples/train_digits.py", folder)
    batch = _lab(folder, "train_digits.py --epochs 1")
    number = cluster.submit(batch)
    local = subprocess.run(
        [sys.executable, "-m", "fauxrdma.cli.main", "run", "fat-tree", "--nodes", "2", "--gpus", "1", "--",
         str(folder / "train_digits.py"), "--epochs", "1"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    job = cluster.ended(number)
    output = _output(batch, number)
    assert (job["JobState"], job["ExitCode"]) == ("COMPLETED", "0:0"), output
    assert local.returncode == 0, local.stderr
    assert _result(output) == _result(local.stdout)
    assert "n0: in the fabric with all 2 nodes" in output
    assert "n1: in the fabric with all 2 nodes" in output


def test_the_rank_that_failed_gives_the_job_its_exit_code_and_its_last_words(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    (tmp_path / "fails.py").write_text(FAILS)
    batch = _lab(tmp_path, "fails.py")
    number = cluster.submit(batch)
    job = cluster.ended(number)
    output = _output(batch, number)
    assert (job["JobState"], job["ExitCode"]) == ("FAILED", "1:0"), output  # as of `fauxrdma run`, not 143 of node 0
    assert "error: rank 1 (node 1, GPU 0) failed first: exit code 7: rank 1 has had enough" in output
    assert not _folders_of_nodes(cluster)


def test_scancel_leaves_nothing(cluster: SlurmCluster, tmp_path: Path) -> None:
    (tmp_path / "stays.py").write_text(STAYS)
    batch = _lab(tmp_path, "stays.py")
    number = cluster.submit(batch)
    until(lambda: _output(batch, number), lambda text: text.count("all are here") == 2, 60, cluster.logs)
    commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in cluster.processes(number)]
    assert sum(b"daemons.hca" in command for command in commands) == 2
    assert sum(b"fauxrdma-subnet-manager" in command for command in commands) == 1
    cluster.call("scancel", number)
    assert cluster.ended(number)["JobState"] == "CANCELLED"
    assert not _folders_of_nodes(cluster)


def test_a_lab_without_a_job_serves_what_srun_brings_until_it_is_cancelled(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    batch = _lab(tmp_path, "", job=False)
    number = cluster.submit(batch)
    until(lambda: _output(batch, number), lambda text: text.count("in the fabric with") == 2, 60, cluster.logs)
    devices = cluster.call(
        "srun", f"--jobid={number}", "--overlap", "bash", "-c",
        "FAUXRDMA_SOCKET=/tmp/fauxrdma-$SLURM_JOB_ID-$SLURM_NODEID.sock exec fauxrdma devinfo --list",
    )  # fmt: skip
    assert devices.count("hca1\n") == 2
    cluster.call("scancel", number)
    assert cluster.ended(number)["JobState"] == "CANCELLED"
    assert not list(Path("/tmp").glob(f"fauxrdma-{number}-*.sock"))


def test_other_than_the_labs_number_of_nodes_is_refused(cluster: SlurmCluster, tmp_path: Path) -> None:
    (tmp_path / "stays.py").write_text(STAYS)
    batch = _lab(tmp_path, "stays.py")
    number = cluster.submit(batch, "--nodes=1")
    assert cluster.ended(number)["ExitCode"] == "2:0"
    assert "the lab has 2 nodes, Slurm gave 1 (s" in _output(batch, number)
