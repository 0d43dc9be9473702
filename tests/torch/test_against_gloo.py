"""The backend against gloo, in the same processes: the same bits, since the order of reduction is the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ranks import lab_environments, run_everywhere

from fauxrdma.lab.local import LocalLab

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.slow]

WORKER = Path(__file__).parent / "workers" / "compare_with_gloo.py"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_every_collective_agrees_with_gloo(lab: LocalLab, world_size: int, tmp_path: Path) -> None:
    outcomes = run_everywhere(lab_environments(lab, world_size), [str(WORKER)], tmp_path)
    for rank, outcome in enumerate(outcomes):
        checks = [json.loads(line) for line in outcome.stdout.splitlines()]
        bad = [f"{c['check']}: {c['note']}" for c in checks if not c["ok"]]
        assert not bad, f"rank {rank}: " + "\n".join(bad)
        assert len(checks) == 7 * 4 * 5 + 29, outcome.stderr
        assert outcome.returncode == 0, outcome.stderr
