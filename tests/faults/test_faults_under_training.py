"""Every kind of fault, injected live under a DistributedDataParallel job: it recovers, every gradient of every step the
right bytes, or its ranks end with the error that hardware would give."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fauxrdma.lab.local import LocalLab
from fauxrdma.topology.fault_events import KINDS

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

WORKER = Path(__file__).parent / "workers" / "train_for_ever.py"
MS = 1_000_000

RECOVERED: dict[str, tuple[str, dict[str, Any]]] = {
    "link-down": ("n0.hca1 -- leaf1", {"for_ns": 3 * MS}),
    "link-flap": ("n1.hca1", {"for_ns": MS, "every_ns": 50 * MS, "times": 2}),
    "switch-down": ("leaf1", {"for_ns": 3 * MS}),
    "partition": ("", {"groups": [["n0"], ["n1"]], "for_ns": 3 * MS}),
    "pause-storm": ("n0.hca1", {"for_ns": 3 * MS}),
    "packet-loss": ("n0.hca1", {"loss": 2e-4}),
    "bit-errors": ("n1.hca1", {"bit_errors": 1e-8}),
    "latency": ("n0.hca1", {"latency_ns": 2000}),
    "degrade": ("n0.hca1", {"rate_bps": 50 * 10**9}),
    "slow-gpu": ("n0.gpu0", {"factor": 2.0}),
    "sm-restart": ("", {"for_ns": 3 * MS}),
}
FATAL: dict[str, tuple[str, str]] = {"infiniband": ("hca-down", "n0.hca1"), "rocev2": ("link-down", "n1.hca1")}
"""What the job of each transport ends by."""


class Job:
    """Two ranks that train until something ends them."""

    def __init__(self, lab: LocalLab, folder: Path) -> None:
        self.out = [folder / f"rank{rank}.out" for rank in range(2)]
        self.err = [folder / f"rank{rank}.err" for rank in range(2)]
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("FAUXRDMA_", "DIST_"))}
        self.ranks = [
            subprocess.Popen(
                [sys.executable, str(WORKER)],
                env={**clean, **lab.rank_env(rank, 0)},
                stdout=self.out[rank].open("w"),
                stderr=self.err[rank].open("w"),
            )
            for rank in range(2)
        ]

    def steps(self) -> int:
        return self.out[0].read_text().count("step=")

    def goes_on(self, steps: int = 3) -> None:
        """Wait for more steps."""
        wanted, until = self.steps() + steps, time.monotonic() + 60
        while self.steps() < wanted:
            assert time.monotonic() < until, "no step for a minute"
            assert all(rank.poll() is None for rank in self.ranks), [err.read_text() for err in self.err]
            time.sleep(0.01)

    def kill(self) -> None:
        for rank in self.ranks:
            rank.kill()
            rank.wait()


@pytest.fixture(scope="module", params=["infiniband", "rocev2"])
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalLab, Job]]:
    with LocalLab(f"fat-tree,transport={request.param}", nodes=2, gpus=1, clock="none") as lab:
        job = Job(lab, tmp_path_factory.mktemp("job"))
        try:
            job.goes_on()
            yield lab, job
        finally:
            job.kill()


def test_every_kind_is_here() -> None:
    assert {*RECOVERED, *(kind for kind, _ in FATAL.values())} == set(KINDS)


@pytest.mark.parametrize("kind", RECOVERED)
def test_training_outlasts_it_with_every_gradient_right(running: tuple[LocalLab, Job], kind: str) -> None:
    lab, job = running
    target, fields = RECOVERED[kind]
    number = lab.inject(kind, target, **fields)
    job.goes_on()
    assert lab.faults().faults[number - 1].began_ns >= 0
    lab.clear_fault()
    lab.swept()
    job.goes_on(1)


def test_ranks_end_with_the_error_of_the_device(running: tuple[LocalLab, Job]) -> None:
    """The last of each job. The peer of an HCA that fails runs out of retries, its own rank is flushed; both ends of a
    cable that stays down run out of them."""
    lab, job = running
    kind, target = FATAL[lab.topology.transport]
    lab.inject(kind, target)
    codes = [rank.wait(60) for rank in job.ranks]
    errors = [err.read_text() for err in job.err]
    assert all(code > 0 for code in codes), errors
    assert "completed with RETRY_EXC_ERR during all_reduce" in errors[1] + (errors[0] if kind == "link-down" else "")
    if kind == "hca-down":
        assert "completed with WR_FLUSH_ERR" in errors[0] or "the HCA has failed" in errors[0]
