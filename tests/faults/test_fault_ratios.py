"""What faults that only take time take, as ratios of fabric time: paced, and declared in virtual time."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_traffic import Writer

from fauxrdma.lab.local import LocalLab

pytestmark = pytest.mark.alone

DILATION = 3000
PROGRAM = """
import numpy as np
from fauxrdma.communicator import Communicator
with Communicator.from_env() as c:
    for _ in range(6):
        array = np.full(50_000, c.rank + 1, np.float32)
        c.all_reduce(array)
        assert (array == 3).all()
    if c.rank == 0:
        print("steps=6")
"""
EVENTS = """
events:
  - {at: 20us, fault: link-down, link: n0.hca1, for: 150us}
  - {at: 60us, fault: latency, link: n1.hca1, latency: 3us, for: 200us}
  - {fault: sm-restart, for: 100us}
  - {fault: packet-loss, link: n0.hca1, loss: 0.01%}
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[LocalLab]:
    with LocalLab("fat-tree", nodes=2, gpus=1, clock="paced", dilation=DILATION) as running:
        yield running


def best_ns(writer: Writer, messages: int) -> int:
    """Of three tries: what a busy host adds is in the others."""
    return min(writer.time_ns(messages) for _ in range(3))


def test_a_quarter_of_the_rate_takes_four_times_as_long(lab: LocalLab) -> None:
    writer = Writer(lab, timeout=14)
    writer.arrives()
    before = best_ns(writer, 4)
    lab.inject("degrade", "n1.hca1", rate_bps=50 * 10**9)
    slower = best_ns(writer, 4)
    lab.clear_fault()
    again = best_ns(writer, 4)
    writer.close()
    assert 3.2 < slower / before < 4.8
    assert 0.7 < again / before < 1.4


def test_a_cable_that_takes_longer_does_so_there_and_back(lab: LocalLab) -> None:
    writer = Writer(lab, timeout=14, length=64)
    writer.arrives()
    before = best_ns(writer, 1)
    lab.inject("latency", "n0.hca1", latency_ns=20_000)
    longer = best_ns(writer, 1)
    lab.clear_fault()
    writer.close()
    assert 34_000 < longer - before < 48_000


def test_a_slow_gpu_is_as_slow_as_its_lanes(lab: LocalLab) -> None:
    """252 Gb/s of PCIe, 8 times slower: a sixth or so of the 200 Gb/s of the cable."""
    near, far = Writer(lab, timeout=14, gpu=0), Writer(lab, timeout=14, gpu=1)
    for writer in (near, far):
        writer.arrives()
    before = best_ns(near, 4)
    lab.inject("slow-gpu", "n0.gpu0", factor=8.0)
    slower, other = best_ns(near, 4), best_ns(far, 4)
    lab.clear_fault()
    near.close()
    far.close()
    assert 5.2 < slower / before < 9.0
    assert 0.6 < other / before < 1.6


def test_declared_faults_are_the_same_from_run_to_run_in_virtual_time(tmp_path: Path) -> None:
    script, events = tmp_path / "program.py", tmp_path / "events.yml"
    script.write_text(PROGRAM)
    events.write_text(EVENTS)
    command = [
        sys.executable, "-m", "fauxrdma.cli.main", "run", "fat-tree", "--nodes", "2", "--gpus", "1", "--clock",
        "virtual", "--seed", "3", "--format", "json", "--events", str(events), "--", str(script),
    ]  # fmt: skip
    runs = [subprocess.run(command, capture_output=True, text=True, timeout=240) for _ in range(2)]
    assert runs[0].returncode == 0, runs[0].stderr
    faults = json.loads(runs[0].stdout)["runs"][0]["faults"]
    assert [(fault["kind"], fault["state"]) for fault in faults] == [
        ("link-down", "over"), ("latency", "over"), ("sm-restart", "over"), ("packet-loss", "active"),
    ]  # fmt: skip
    assert runs[0].stdout == runs[1].stdout
