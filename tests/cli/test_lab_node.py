"""`fauxrdma lab node`: a lab put together from processes that know each other only by addresses, as containers do."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from fauxrdma.lab.ports import free_port

JOB = """
import os
import numpy as np
from fauxrdma.communicator import Communicator

with Communicator.from_env() as world:
    data = np.full(1000, world.rank + 1.0, dtype=np.float32)
    world.all_reduce(data)
    print(f"total={data[0]:.0f} node={os.environ['FAUXRDMA_NODE']}")
    if os.environ.get("FAIL") == str(world.rank):
        raise SystemExit(9)
"""
LAB = "name: apart\nfabric: fat-tree\nnodes: 2\ngpus: 2\nclock: none\njob:\n  command: job.py\n"


@pytest.fixture
def manager(cli: Any) -> Iterator[str]:
    argv = ["-m", "daemons.subnet_manager", "fat-tree", "--nodes", "2", "--clock", "none", "--listen", "0.0.0.0:0"]
    with subprocess.Popen([sys.executable, *argv], env=cli.env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"127.0.0.1:{json.loads(process.stdout.readline())['port']}"
        process.terminate()


def _nodes(cli: Any, manager: str) -> list[tuple[int, str, str]]:
    master = f"127.0.0.1:{free_port()}"
    command = ["lab", "node", "lab.yaml", "--subnet-manager", manager, "--master", master, "--node"]
    started = [cli.start(*command, str(node)) for node in (0, 1)]
    outputs = [process.communicate(timeout=90) for process in started]
    return [(process.returncode, *output) for process, output in zip(started, outputs, strict=True)]


def test_two_nodes_by_address_one_with_a_rank_that_fails(cli: Any, manager: str) -> None:
    cli.script(JOB)
    (cli.directory / "lab.yaml").write_text(LAB + "  env: {FAIL: '3'}\n")
    found = _nodes(cli, manager)
    for node, (_, stdout, stderr) in enumerate(found):
        expected = [f"[n{node} r{rank}] total=10 node={node}" for rank in (2 * node, 2 * node + 1)]
        assert sorted(stdout.splitlines()) == expected, stderr
        assert f"n{node}: in the fabric with all 2 nodes" in stderr
    assert [returncode for returncode, _, _ in found] == [0, 1]
    assert "rank 3 (node 1, GPU 1) failed first: exit code 9" in found[1][2]


def test_mistakes(cli: Any) -> None:
    (cli.directory / "lab.yaml").write_text(LAB)
    command = ["lab", "node", "lab.yaml", "--subnet-manager", "127.0.0.1:1", "--node"]
    assert "there is no node 2" in cli(*command, "2").stderr
    assert "there is no script job.py" in cli(*command, "0").stderr
