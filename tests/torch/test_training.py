"""The main job: DDP training of real data over emulated HCAs equals the same training over gloo."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ranks import gloo_environments, lab_environments, run_everywhere

from fauxrdma.lab.local import LocalLab

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")
pytestmark = [pytest.mark.torch, pytest.mark.slow]

SCRIPT = Path(__file__).parents[2] / "examples" / "train_digits.py"


def result_of(stdout: str) -> dict[str, str]:
    """The name=value pairs of the last line."""
    return dict(pair.split("=", 1) for pair in stdout.splitlines()[-1].split())


@pytest.mark.timeout(240)
def test_digits_over_hcas_equals_gloo_bit_for_bit(lab: LocalLab, tmp_path: Path) -> None:
    assert "fauxrdma" not in [w for line in SCRIPT.read_text().splitlines() if "import" in line for w in line.split()]
    saved = {name: tmp_path / f"{name}.pt" for name in ("gloo", "fauxrdma")}
    results = {}
    for name, environments in (("gloo", gloo_environments(4)), ("fauxrdma", lab_environments(lab, 4))):
        (tmp_path / name).mkdir()
        outcomes = run_everywhere(
            environments, [str(SCRIPT), "--epochs", "5", "--save", str(saved[name])], tmp_path / name
        )
        assert [o.returncode for o in outcomes] == [0] * 4, "\n".join(o.stderr for o in outcomes)
        results[name] = result_of(outcomes[0].stdout)
        assert "epoch=5/5 loss=" in outcomes[0].stdout
        assert all(o.stdout == "" for o in outcomes[1:]), "only rank 0 reports"

    parameters = {name: torch.load(path) for name, path in saved.items()}
    for key, value in parameters["gloo"].items():
        assert torch.equal(value, parameters["fauxrdma"][key]), key
    assert results["fauxrdma"] == results["gloo"]
    assert float(results["gloo"]["accuracy"]) > 0.95
    assert results["gloo"]["steps"] == "70"

    for rank in range(4):
        statistics = json.loads((lab.stats_dir / f"rank{rank}.json").read_text())
        assert (statistics["rank"], statistics["world_size"], statistics["dropped"]) == (rank, 4, 0)
        assert statistics["hca"] == f"hca{rank % 2 + 1}"
        assert (statistics["clock"], statistics["dilation"]) == ("none", 1.0)
        gradient_bytes = 4 * sum(value.numel() for value in parameters["gloo"].values())
        reductions = [
            op for op in statistics["operations"] if (op["op"], op["nbytes"]) == ("all_reduce", gradient_bytes)
        ]
        assert len(reductions) == 70
        assert all(0 < op["start_ns"] < op["end_ns"] and op["algorithm"] == "ring" for op in reductions)
