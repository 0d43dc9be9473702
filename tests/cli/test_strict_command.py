"""--strict fails a run that the host was too slow for; virtual time never is; perf in virtual time repeats itself."""

from __future__ import annotations

from typing import Any

from test_commands import JOB


def test_a_host_that_is_too_slow(cli: Any) -> None:
    script = cli.script(JOB)
    slow = ("run", "fat-tree", "--gpus", "1", "--dilation", "1")
    assert cli(*slow, "--", script).returncode == 0
    result = cli(*slow, "--strict", "--", script)
    assert result.returncode == 1
    assert "fat-tree: --strict: the fidelity debt is" in result.stderr


def test_virtual_time_has_no_debt(cli: Any) -> None:
    result = cli("run", "fat-tree", "--gpus", "1", "--clock", "virtual", "--strict", "--", cli.script(JOB))
    assert result.returncode == 0, result.stderr


def test_perf_gives_the_same_bytes(cli: Any) -> None:
    command = ("perf", "write-lat", "fat-tree", "--iterations", "20", "--clock", "virtual", "--format", "json")
    runs = [cli(*command) for _ in range(2)]
    assert runs[0].returncode == 0, runs[0].stderr
    assert runs[0].stdout == runs[1].stdout
