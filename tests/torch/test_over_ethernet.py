"""A torch job over Ethernet fabrics: nothing in the script changes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SCRIPT = """
import torch
import torch.distributed as dist
from fauxrdma.verbs import Context

dist.init_process_group()
with Context() as context:
    assert context.query_port(1).lid == 0
rank, size = dist.get_rank(), dist.get_world_size()
values = torch.arange(1000, dtype=torch.float32) * (rank + 1)
dist.all_reduce(values)
assert torch.equal(values, torch.arange(1000, dtype=torch.float32) * (size * (size + 1) / 2))
dist.barrier()
print(f"rank {rank} of {size} over Ethernet", flush=True)
dist.destroy_process_group()
"""


@pytest.mark.torch
@pytest.mark.parametrize(
    "fabric",
    [
        str(ROOT / "examples" / "fabrics" / "roce-two-tier.yaml"),
        "fat-tree,transport=rocev1",
        "fat-tree,transport=iwarp",
    ],
    ids=["rocev2", "rocev1", "iwarp"],
)
def test_a_torch_job_runs_over_ethernet(fabric: str, tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "fauxrdma.cli.main", "run", fabric, "--nodes", "2", "--gpus", "2"]
    done = subprocess.run(
        [*command, "--clock", "none", "--", str(script)], capture_output=True, text=True, timeout=240, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert all(f"rank {rank} of 4 over Ethernet" in done.stdout + done.stderr for rank in range(4))
