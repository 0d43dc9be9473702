"""Where ranks sit changes what the fabric carries, and nothing of what is computed."""

from __future__ import annotations

from pathlib import Path

import pytest
from ranks import run_everywhere

from fauxrdma.lab.local import LocalLab

pytest.importorskip("torch")
pytest.importorskip("sklearn")
pytestmark = [pytest.mark.torch, pytest.mark.slow]

SCRIPT = Path(__file__).parents[2] / "examples" / "train_digits.py"


@pytest.mark.timeout(240)
def test_training_is_the_same_bit_for_bit_wherever_ranks_sit(tmp_path: Path) -> None:
    (tmp_path / "uneven").write_text("1 5\n0 3\n1 2\n1 7\n")
    last_lines = {}
    for placement in ("block", "rail-aligned", str(tmp_path / "uneven")):
        with LocalLab("seed-rail8", 2, 2, clock="none", placement=placement) as lab:
            environments = [lab.env_of_rank(rank) for rank in range(lab.world_size)]
            directory = tmp_path / f"run{len(last_lines)}"
            directory.mkdir()
            outcomes = run_everywhere(environments, [str(SCRIPT), "--epochs", "1"], directory)
            assert [o.returncode for o in outcomes] == [0] * 4, "\n".join(o.stderr for o in outcomes)
            last_lines[placement] = outcomes[0].stdout.splitlines()[-1]
            sent = [link.src for link in lab.report().links if link.kind == "cable" and link.nbytes]
            # In a ring each rank sends to the one before; only those whose neighbour is on another node use their HCA.
            places = lab.placement.places
            away = {
                own.hca_name
                for left, own in zip([places[-1], *places[:-1]], places, strict=True)
                if left.node != own.node
            }
            assert {src for src in sent if src.startswith("n")} == away
    assert len(set(last_lines.values())) == 1
