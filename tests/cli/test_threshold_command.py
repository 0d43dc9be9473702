"""--threshold decides the exit code of run and compare."""

from __future__ import annotations

import json
from typing import Any

from test_commands import JOB


def test_met_and_not_met(cli: Any) -> None:
    script = cli.script(JOB)
    result = cli(
        "run", "fat-tree", "--gpus", "1", "--threshold", "all_reduce.busbw <= 1.05 * line_rate",
        "--threshold", "value.total == 4", "--format", "json", "--", script,
    )  # fmt: skip
    assert result.returncode == 1
    assert "threshold met: all_reduce.busbw <= 1.05 * line_rate (all_reduce.busbw is " in result.stderr
    assert "threshold NOT MET: value.total == 4 (value.total is 3, wanted == 4)" in result.stderr
    outcomes = json.loads(result.stdout)["runs"][0]["thresholds"]
    assert [(each["met"], each["text"]) for each in outcomes] == [
        (True, "all_reduce.busbw <= 1.05 * line_rate"),
        (False, "value.total == 4"),
    ]


def test_compare_judges_every_run(cli: Any) -> None:
    script = cli.script(JOB)
    result = cli(
        "compare", "fat-tree", "seed-rail8", "--gpus", "1", "--threshold", "value.total == 3", "--", script
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "fat-tree: threshold met: value.total == 3" in result.stderr
    assert "seed-rail8: threshold met: value.total == 3" in result.stderr


def test_nonsense_is_refused_before_anything_starts(cli: Any) -> None:
    result = cli("run", "fat-tree", "--threshold", "busbw > 3", "--", cli.script(JOB))
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert "there is no metric 'busbw'" in result.stderr
