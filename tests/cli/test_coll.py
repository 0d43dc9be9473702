"""`fauxrdma coll` from end to end: the table, the JSON, predictions, errors, and an end by Ctrl-C."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
from typing import Any

import pytest

from fauxrdma.perf.coll.operations import OPERATIONS
from fauxrdma.perf.coll.results import BenchResult

ROW = re.compile(r"^ +\d+ +\d+ +\w+ +\w+ +-?\d+ ", re.MULTILINE)


def test_the_table(cli: Any) -> None:
    done = cli("coll", "all_reduce", "fat-tree", "--gpus", "2", "--clock", "none", "-b", "8", "-e", "4K", "-f", "8")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("# nThread 1 nGpus 2 minBytes 8 maxBytes 4096 step: 8(factor) warmup iters: 1")
    assert "#  Rank  3 on n1 device  1" in done.stdout
    assert "wall time of this host" in done.stdout
    rows = [line.split() for line in lines if ROW.match(line)]
    assert [row[0] for row in rows] == ["8", "64", "512", "4096"]
    assert all(row[8] == row[12] == "0" for row in rows)
    assert all(row[13] == "ring" and row[15] == "N/A" for row in rows)
    assert lines[-4] == "# Out of bounds values : 0 OK"
    assert lines[-3].startswith("# Avg bus bandwidth    : ")
    assert lines[-2].startswith("# note: nothing was shaped (--clock none)")
    assert "starting 1 subnet manager and 2 HCA daemons" in done.stderr


@pytest.mark.parametrize("operation", list(OPERATIONS))
def test_every_operation_as_json(cli: Any, operation: str) -> None:
    options = ("-b", "1K", "-e", "16K", "-f", "16", "--clock", "none", "-n", "2", "-r", "all", "--format", "json")
    done = cli("coll", operation, "seed-rail8", "--nodes", "2", "--gpus", "2", *options)
    assert done.returncode == 0, done.stderr
    result = BenchResult.model_validate(json.loads(done.stdout))
    assert (result.operation, result.time, result.clock, result.out_of_bounds) == (operation, "wall time", "none", 0)
    assert [place.node for place in result.places] == [0, 0, 1, 1]
    assert len(result.rows) == 2 * (4 if OPERATIONS[operation].rooted else 1)
    for row in result.rows:
        assert row.out_of_place.wrong == 0
        assert row.predicted_us is not None
        assert row.predicted_us > 0
        assert row.ratio is None  # wall time over fabric time says nothing
    if operation == "all_to_all":
        assert {row.algorithm for row in result.rows} == {"pxn"}


@pytest.mark.parametrize(
    ("operation", "options"),
    [
        ("all_reduce", ()),
        ("all_reduce", ("--algorithm", "auto")),
        ("broadcast", ("-z", "1", "-r", "1")),
        ("sendrecv", ("--on-nodes", "0,1")),
        ("all_gather", ("-d", "bfloat16")),
    ],
)
def test_paced_time_is_near_the_prediction(cli: Any, operation: str, options: tuple[str, ...]) -> None:
    """How near depends on this host; that it is not earlier does not."""
    paced = ("-b", "1M", "-e", "1M", "-n", "3", "--dilation", "4000", "--format", "json")
    done = cli("coll", operation, "fat-tree", *paced, *options)
    assert done.returncode == 0, done.stderr
    result = BenchResult.model_validate(json.loads(done.stdout))
    (row,) = result.rows
    assert (result.time, row.out_of_place.wrong) == ("fabric time", 0)
    assert row.ratio is not None
    assert row.ratio == pytest.approx(row.out_of_place.time_us / row.predicted_us)
    assert 0.9 < row.ratio < 10  # on a busy host messages come late
    assert row.out_of_place.wall_us > 1000 * row.out_of_place.time_us


def test_verify(cli: Any) -> None:
    options = ("-b", "64K", "-e", "64K", "-d", "half", "--clock", "none", "--verify")
    done = cli("coll", "all_reduce", "fat-tree", "--nodes", "3", *options)
    assert done.returncode == 0, done.stderr
    (row,) = [line.split() for line in done.stdout.splitlines() if ROW.match(line)]
    error, bound, bits = row[-3:]
    assert 0 < float(error) <= float(bound) == pytest.approx(2 * 2**-11, rel=0.01)
    assert bits == "same"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("all_redcue",), "there is no operation 'all_redcue' to measure: choose all_reduce"),
        (("all_reduce", "-b", "1M", "-e", "8"), "-e 8 is below -b 1M"),
        (("all_reduce", "-b", "8", "-f", "1"), "use -f 2"),
        (("all_reduce", "-d", "fp8"), "-d fp8: there is no such type"),
        (("all_reduce", "-o", "xor"), "-o xor: there is no such reduction"),
        (("reduce", "-r", "2"), "-r 2: the root is one of ranks 0..1, or all"),
        (("gather", "--algorithm", "ring"), "gather has no such; choose auto, file:PATH, direct"),
        (("sendrecv", "--algorithm", "ring"), "sendrecv has no algorithms to choose from"),
        (("sendrecv", "--nodes", "1"), "sendrecv needs two ranks"),
        (("all_reduce", "nowhere"), "nowhere"),
        (("all_reduce", "-b", "8T", "-e", "8T"), "'8T'"),
        (("all_reduce", "-b", "900G", "-e", "900G"), "this machine has"),
        (("all_gather", "--verify"), "--verify is for sums and averages"),
        (("all_reduce", "--verify", "-d", "double"), "--verify is for sums and averages"),
        (("all_reduce", "--algorithm", "hierarchical"), "hierarchical goes by nodes"),
    ],
)
def test_mistakes_are_told_before_anything_starts(cli: Any, arguments: tuple[str, ...], says: str) -> None:
    done = cli("coll", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("fauxrdma: error: ")
    assert len(done.stderr.splitlines()) == 1
    assert says in done.stderr


def test_settings_of_nccl_reach_the_ranks_and_the_prediction(cli: Any) -> None:
    arguments = ("all_reduce", "fat-tree", "--clock", "none", "-b", "1K", "-e", "1K", "--format", "json")
    done = cli("coll", *arguments, env={"NCCL_ALGO": "tree"})
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    assert row["algorithm"] == "double-tree"
    done = cli("coll", *arguments, env={"NCCL_ALGO": "nvls"})
    assert (done.returncode, done.stdout) == (2, "")
    assert "leaves no algorithm for all_reduce" in done.stderr


def test_wrong_elements_fail_the_command(cli: Any) -> None:
    """A rank whose memory is not what the others believe it is."""
    (cli.directory / "sitecustomize.py").write_text(
        "import os\n"
        "if os.environ.get('RANK') == '1':\n"
        "    from fauxrdma.perf.coll.operations import Case\n"
        "    call = Case.call\n"
        "    def corrupting(self, communicator, buffers):\n"
        "        call(self, communicator, buffers)\n"
        "        buffers.receive[0] += 1\n"
        "    Case.call = corrupting\n"
    )
    path = os.pathsep.join([str(cli.directory), *filter(None, [cli.env.get("PYTHONPATH", "")])])
    arguments = ("all_reduce", "fat-tree", "--clock", "none", "-b", "1K", "-e", "1K")
    done = cli("coll", *arguments, env={"PYTHONPATH": path})
    assert done.returncode == 1
    assert "# Out of bounds values : 2 FAILED" in done.stdout
    assert done.stderr.splitlines()[-1].startswith("fauxrdma: error: 2 of 2 measurements had wrong elements")


def test_interrupted_it_leaves_nothing(cli: Any) -> None:
    running = cli.start("coll", "all_reduce", "fat-tree", "-b", "8", "-e", "2M", "-f", "2", "--dilation", "20000")
    assert running.stdout is not None
    for line in running.stdout:
        if ROW.match(line):
            break
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=30)
    assert running.returncode == 130
    assert errors.splitlines()[-1] == "fauxrdma: interrupted; everything it started has been ended"


def test_on_a_terminal_progress_is_one_line_that_goes_away(cli: Any) -> None:
    leader, follower = pty.openpty()
    command = cli.command("coll", "all_reduce", "fat-tree", "--clock", "none", "-b", "8", "-e", "512", "-f", "8")
    done = subprocess.run(
        command, cwd=cli.directory, env=cli.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=follower,
        text=True, timeout=240, check=False,
    )  # fmt: skip
    os.close(follower)
    shown = os.read(leader, 1 << 16).decode()
    os.close(leader)
    assert done.returncode == 0
    assert len(ROW.findall(done.stdout)) == 3
    assert "2 of 3 measured" in shown
    assert "\n" not in shown
    assert shown.endswith("\r\x1b[K")
