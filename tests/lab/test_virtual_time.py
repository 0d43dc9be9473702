"""Clock virtual over real daemons and rank processes: the same bytes from run to run, polls, deadlocks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import numpy as np
from fauxrdma.communicator import Communicator
with Communicator.from_env() as c:
    for count in (1000, 2, 50_000):
        array = np.full(count, c.rank + 1, np.float32)
        c.all_reduce(array)
        assert (array == sum(range(1, c.world_size + 1))).all()
    if c.rank == 0:
        print("steps=3")
"""

DEADLOCK = """
import numpy as np
from fauxrdma.communicator import Communicator
with Communicator.from_env() as c:
    array = np.full(1000, c.rank + 1, np.float32)
    c.all_reduce(array)
    c.recv(array, 1 - c.rank)
"""

EARLY = """
import time
import numpy as np
from fauxrdma.communicator import Communicator, mesh, messages
mesh.DRAIN_S = messages.DRAIN_S = 0.05

def broadcast(c, count):
    array = np.full(count, c.rank + 7, np.float32)
    c.broadcast(array)
    assert (array == 7).all()

def send(c, count):
    array = np.full(min(count, 8000), c.rank + 7, np.float32)
    c.send(array, 1) if c.rank == 0 else c.recv(array, 0)
    assert (array == 7).all()

with Communicator.from_env() as c:
    OPERATION(c, 1000)
    if c.rank == 1:  # fabric time stands still
        end = time.process_time() + 0.5
        while time.process_time() < end:
            pass
    OPERATION(c, 1 << 20)
    OPERATION(c, 1 << 20)
"""

POLLS = """
import os
from fauxrdma.verbs import CQ, Context
with Context() as context:
    cq = CQ(context, 8)
    began = context.fabric_now_ns()
    while context.fabric_now_ns() < began + 10_000:
        assert cq.poll() == (0, [])
    print(f"steps=1 began={began} polled={context.fabric_now_ns() - began}")
"""


def run(tmp_path: Path, program: str, *options: str, gpus: int = 1) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "program.py"
    script.write_text(program)
    command = ["run", "fat-tree", "--nodes", "2", "--gpus", str(gpus), "--format", "json", *options, "--", str(script)]
    return subprocess.run(
        [sys.executable, "-m", "fauxrdma.cli.main", *command], capture_output=True, text=True, timeout=300
    )


def result(ended: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)["runs"][0]
    return found


def test_two_runs_give_the_same_bytes(tmp_path: Path) -> None:
    traces = [tmp_path / f"trace{number}.jsonl" for number in range(2)]
    runs = [
        run(
            tmp_path, PROGRAM, "--clock", "virtual", "--seed", "3", "--compute", "3us 2=1ms", "--trace", str(trace),
            gpus=2,
        )
        for trace in traces
    ]  # fmt: skip
    found = result(runs[0])
    assert (found["clock"], found["seed"], found["wall_s"], found["debt"]) == ("virtual", 3, None, None)
    assert found["elapsed_ns"] > 0
    assert found["retransmits"] == 0
    assert runs[0].stdout == runs[1].stdout
    lines = traces[0].read_text().splitlines()
    assert {json.loads(line)["event"] for line in lines} == {"posted", "sent", "arrived", "completed"}
    assert lines == traces[1].read_text().splitlines()


def total_ns(found: dict[str, Any]) -> int:
    """Fabric time until the last collective was over."""
    return int(found["elapsed_ns"])


def test_computing_costs_what_the_fabric_file_says(tmp_path: Path) -> None:
    """Three calls of each rank; the slowest rank is waited for."""
    free = result(run(tmp_path, PROGRAM, "--clock", "virtual"))
    charged = result(run(tmp_path, PROGRAM, "--clock", "virtual", "--compute", "20us 1=1ms"))
    assert total_ns(charged) - total_ns(free) == pytest.approx(3_000_000, rel=0.02)


def test_cpu_time_can_be_charged(tmp_path: Path) -> None:
    busy = PROGRAM.replace("array = np", "sum(range(2_000_000)); array = np")
    charged = result(run(tmp_path, busy, "--clock", "virtual", "--compute", "none 0=cpu*0.5"))
    # Three sums of some 20 ms each, by half; without, all is over in a tenth of one.
    assert 5_000_000 < total_ns(charged) < 2_000_000_000


def test_a_trace_is_of_virtual_time(tmp_path: Path) -> None:
    ended = run(tmp_path, PROGRAM, "--clock", "paced", "--trace", str(tmp_path / "trace.jsonl"))
    assert ended.returncode == 2
    assert "a trace is of virtual time" in ended.stderr


@pytest.mark.slow
def test_training_gives_the_same_bytes(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    program = (Path(__file__).parents[2] / "examples" / "train_digits.py").read_text().replace("default=5", "default=1")
    runs = [run(tmp_path, program, "--clock", "virtual", gpus=2) for _ in range(2)]
    assert int(result(runs[0])["values"]["steps"]) == 14
    assert runs[0].stdout == runs[1].stdout


def test_time_is_what_the_model_says(tmp_path: Path) -> None:
    """Nothing of the host is in it: the largest all-reduce takes just what it is predicted to take."""
    found = result(run(tmp_path, PROGRAM, "--clock", "virtual"))
    measured = found["main_all_reduce"]["duration"]["p50_ns"]
    assert measured == pytest.approx(found["modelled_all_reduce_ns"], rel=0.001)


def test_polling_takes_time(tmp_path: Path) -> None:
    ended = [run(tmp_path, POLLS, "--clock", "virtual") for _ in range(2)]
    values = result(ended[0])["values"]
    assert values["began"] == "0"
    assert 10_000 <= int(values["polled"]) < 20_000
    assert ended[0].stdout == ended[1].stdout


@pytest.mark.parametrize("operation", ["broadcast", "send"])
def test_a_rank_that_is_done_stays_until_what_it_sent_is_delivered(tmp_path: Path, operation: str) -> None:
    """The first is done once it has put; meanwhile the other computes for longer than parting waits by the wall clock.
    If it left, its queue pair would be gone with what it had put, and what was put to it would be retried in vain."""
    result(run(tmp_path, EARLY.replace("OPERATION", operation), "--clock", "virtual"))


def test_a_deadlock_is_told_with_who_waits_for_what(tmp_path: Path) -> None:
    ended = run(tmp_path, DEADLOCK, "--clock", "virtual")
    assert ended.returncode == 4
    assert "deadlock at" in ended.stderr
    for rank in (0, 1):
        assert f"rank {rank} (node {rank}) waits for a completion on CQ" in ended.stderr
