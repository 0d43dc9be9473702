"""`fauxrdma perf` over real daemons: each test, and what its figures must agree with."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from fauxrdma.cli.main import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["perf", *arguments, "--format", "json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_bandwidth_is_the_links(capsys: pytest.CaptureFixture[str]) -> None:
    """On HDR the goodput of full packets, within the 2 % that pacing keeps to, both ways at once the double."""
    one = run(capsys, "write-bw", "seed-rail8", "-s", "256K", "-n", "60")["rows"][0]["average_mb_per_s"]
    line_rate = 200e9 / 8 / (1 << 20)
    assert 0.9 * line_rate < one <= line_rate
    both = run(capsys, "write-bw", "seed-rail8", "-s", "256K", "-n", "60", "-b", "-q", "2")["rows"][0]
    assert both["average_mb_per_s"] / one == pytest.approx(2, rel=0.1)


@pytest.mark.parametrize(
    "arguments",
    [
        ("write-lat", "-a"),
        ("write-lat", "-c", "UC", "-s", "300"),
        ("read-lat", "-s", "4K"),
        ("send-lat", "-n", "600"),  # more than the receives that are kept posted
        ("send-lat", "-c", "UD", "--transport", "rocev2"),
        ("atomic-lat",),
        ("read-bw", "-q", "2", "--gpu", "1"),
        ("send-bw", "-s", "100", "-q", "2", "-b", "-n", "700"),
        ("send-bw", "-c", "UD", "-s", "64", "-t", "16"),
        ("write-bw", "-c", "UC", "-s", "3000", "-m", "1024", "-I", "64"),
    ],
)
def test_every_test_runs_and_says_what_it_did(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    test, *options = arguments
    if "-n" not in options:
        options += ["-n", "20"]
    result = run(capsys, test, "seed-two-switch", "--clock", "none", *options)
    assert result["test"] == test
    iterations = int(options[options.index("-n") + 1])
    for row in result["rows"]:
        assert row["iterations"] == iterations
        figures = [value for key, value in row.items() if key not in ("bytes", "iterations", "wall", "t_stdev_us")]
        assert all(value > 0 for value in figures)


def test_latency_grows_with_the_switches_on_the_way(capsys: pytest.CaptureFixture[str]) -> None:
    """Same rail: one leaf. Other rail: leaf, spine, leaf, hence two switches of 130 ns and two longer cables more."""
    near = run(capsys, "write-lat", "seed-rail8", "-n", "100")["rows"][0]["t_min_us"]
    far = run(capsys, "write-lat", "seed-rail8", "-n", "100", "--to", "n1.hca2")["rows"][0]["t_min_us"]
    assert 0.2 < far - near < 1.0


def test_the_table_has_perftests_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["perf", "write-bw", "fat-tree", "--clock", "none", "-n", "20", "-s", "64"]) == 0
    out = capsys.readouterr().out
    assert "RDMA_Write BW Test" in out
    assert " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n 64         20 " in out
    assert out.count("local address: LID 0x0001") == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("write-bw", "fat-tree", "--to", "n1.hca99"), "has no HCA 'n1.hca99'"),
        (("write-bw", "fat-tree", "--to", "leaf1"), "'leaf1' is not an HCA"),
        (("write-bw", "fat-tree", "--to", "n0.hca1"), "both n0.hca1"),
        (("send-bw", "fat-tree", "-c", "UD", "-s", "8K"), "a datagram is one packet, at most 4096 bytes"),
        (("write-bw", "fat-tree", "--gpu", "8"), "have GPUs 0..7"),
        (("read-bw", "fat-tree", "-c", "UC"), "cannot use connection type UC"),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["perf", *arguments]) == 2
    captured = capsys.readouterr()
    assert complaint in captured.err
    assert captured.err.count("\n") == 1


def test_ctrl_c_ends_both_sides_and_the_lab(cli: Any) -> None:
    """The fixture looks for what is left."""
    process = cli.start("perf", "write-bw", "fat-tree", "--iterations", "1000000")
    assert process.stdout is not None
    while "BW peak" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors


def test_a_side_that_dies_is_reported(cli: Any) -> None:
    process = cli.start("perf", "write-bw", "fat-tree", "--iterations", "1000000")
    assert process.stdout is not None
    while "BW peak" not in process.stdout.readline():
        assert process.poll() is None
    sides = [pid for pid in children_of(process.pid) if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()]
    os.kill(sides[-1], signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 4
    assert "of the server has ended" in errors or "RETRY_EXC_ERR" in errors or "REM_" in errors, errors


def children_of(pid: int) -> list[int]:
    return sorted(int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
