"""The examples that need no torch, run as a user runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fauxrdma.lab.local import LocalLab

EXAMPLES = Path(__file__).parents[2] / "examples"


def run_on_all(lab: LocalLab, nodes: int, gpus: int, *command: str) -> list[str]:
    """Run a script once per rank; what each printed."""
    processes = []
    for rank in range(nodes * gpus):
        env = {**os.environ, **lab.rank_env(*divmod(rank, gpus)), "RANK": str(rank), "WORLD_SIZE": str(nodes * gpus)}
        processes.append(
            subprocess.Popen(
                [sys.executable, *command], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    try:
        outputs = [process.communicate(timeout=60) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [p.returncode for p in processes] == [0] * len(processes), "\n".join(err for _, err in outputs)
    return [out for out, _ in outputs]


def test_hello_rdma_write(lab: LocalLab) -> None:
    script = EXAMPLES / "hello_rdma_write.py"
    assert len(script.read_text().splitlines()) < 40
    writer, reader = run_on_all(lab, 2, 1, str(script))
    assert writer == ""
    assert reader == "completion status 0, memory holds 'Hello from rank 0!'\n"


@pytest.mark.parametrize("mib", ["0.01", "5"])
def test_ring_allreduce_numpy(lab: LocalLab, mib: str) -> None:
    outputs = run_on_all(lab, 2, 2, str(EXAMPLES / "ring_allreduce_numpy.py"), "--mib", mib, "--iterations", "3")
    result = dict(pair.split("=") for pair in outputs[0].split())
    assert result["ranks"] == "4"
    assert result["nbytes"] == str(int(float(mib) * 2**20) // 4 * 4)
    assert result["wrong"] == "0"
    assert float(result["busbw_GBps"]) > 0
    assert outputs[1:] == ["", "", ""]
    for rank in range(4):
        statistics = json.loads((lab.stats_dir / f"rank{rank}.json").read_text())
        assert (statistics["rank"], statistics["world_size"]) == (rank, 4)
        assert [op["op"] for op in statistics["operations"]] == ["all_reduce"] * 3 + ["barrier"]
