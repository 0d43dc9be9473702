"""Which combinations a comparison runs, what they are called, and which are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fauxrdma.cli.combinations import Axes, check_all, combine, split_list
from fauxrdma.cli.job import JobSpec
from fauxrdma.errors import ConfigError

BASE = JobSpec([], "", 2, 2, "none", "auto", 0)
AXES = Axes([["job.py"]], ["seed-rail8"], [None], ["block"], [None])


@pytest.fixture(autouse=True)
def with_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").write_text("pass")


def names(**axes: Any) -> list[str]:
    return [job.called for job in combine(BASE, replace(AXES, **axes))]


def test_names_have_what_differs() -> None:
    assert names() == ["seed-rail8"]
    assert names(fabrics=["seed-rail8", "fat-tree"]) == ["seed-rail8", "fat-tree"]
    assert names(placements=["block", "cyclic"]) == ["block", "cyclic"]
    assert names(fabrics=["a", "b"], placements=["block", "cyclic"]) == [
        "a / block",
        "a / cyclic",
        "b / block",
        "b / cyclic",
    ]
    assert names(transports=["infiniband", "rocev2"], algorithms=["ring", "bcube"]) == [
        "infiniband / ring",
        "infiniband / bcube",
        "rocev2 / ring",
        "rocev2 / bcube",
    ]
    assert names(commands=[["job.py"], ["job.py", "--n", "a b"]]) == ["job.py", "job.py --n 'a b'"]


def test_every_value_meets_every_other_once() -> None:
    axes = Axes([["job.py", "1"], ["job.py", "2"]], ["seed-rail8", "fat-tree"], ["infiniband", "rocev2"],
                ["block", "cyclic", "random:3"], ["ring", "direct"])  # fmt: skip
    jobs = combine(BASE, axes)
    assert len(jobs) == 2 * 2 * 2 * 3 * 2 == len({job.called for job in jobs})
    assert len({(*job.command, job.fabric, job.transport, job.placement, job.algorithm) for job in jobs}) == len(jobs)
    assert [job.command for job in jobs] == [["job.py", "1"]] * 24 + [["job.py", "2"]] * 24
    checked = check_all(jobs)
    assert [(found.topology.transport, found.placement.name) for found in checked] == [
        (job.transport, job.placement) for job in jobs
    ]


def test_all_get_one_dilation() -> None:
    base = replace(BASE, clock="paced")
    jobs = combine(base, replace(AXES, fabrics=["single-switch", "fat-tree:xdr,gpus_per_hca=2"],
                                 placements=["block", "rail-aligned"]))  # fmt: skip
    dilations = {found.spec.dilation for found in check_all(jobs)}
    assert len(dilations) == 1
    assert float(dilations.pop()) > 1


@pytest.mark.parametrize(
    ("axes", "base", "message"),
    [
        ({"fabrics": ["seed-rail8", "seed-rail8"]}, {}, "seed-rail8 is given twice"),
        ({"commands": [["job.py"], ["job.py"]]}, {}, "script: job.py is given twice"),
        ({"commands": [["job.py"], ["other.py"]]}, {}, "there is no script other.py"),
        ({"placements": ["block", "cylic"]}, {}, r"cylic: unknown placement 'cylic': did you mean 'cyclic'\?"),
        (
            {"fabrics": ["seed-rail8", "fat-tree,transport=infiniband"], "transports": ["rocev2"]},
            {},
            "fat-tree,transport=infiniband says its transport itself",
        ),
        ({"transports": ["rocev2", "rocev3"]}, {}, r"rocev3: unknown transport 'rocev3': did you mean 'rocev2'\?"),
        ({"transports": ["infiniband", "rocev2"]}, {"routing": "ftree"}, "rocev2: .*routing 'ftree' is not for rocev2"),
        (
            {"algorithms": ["ring", "hierarchical"]},
            {"gpus": 1},
            "hierarchical: hierarchical goes by nodes .* there are 2 with 1 each.*choose ring, bidirectional-ring",
        ),
        (
            {"fabrics": ["rail-only"], "placements": ["rail-aligned", "block"], "algorithms": ["ring"]},
            {},
            "^block: all_reduce by ring with the placement block: no route from n0.hca1 to n1.hca2",
        ),
        ({"algorithms": ["ring", "rign"]}, {}, "rign: FAUXRDMA_ALGO='rign': no operation has an algorithm 'rign'"),
        (
            {"placements": ["block", "three.places"]},
            {},
            "block has 4 ranks and three.places 3: what is compared must have as many",
        ),
        (
            {"fabrics": ["seed-rail8", "fat-tree"], "placements": ["block", "far.places"]},
            {},
            r"seed-rail8 / far.places: far.places:1:1: there is no node 7.*\(and 1 more of 4 cannot be\)",
        ),
        ({"fabrics": ["here.yaml"], "transports": ["infiniband", "rocev2"]}, {}, "here.yaml is a fabric over infini"),
    ],
)
def test_what_cannot_be_is_refused_by_name(axes: dict[str, Any], base: dict[str, Any], message: str) -> None:
    Path("three.places").write_text("0 0\n0 1\n1 0\n")
    Path("far.places").write_text("7 0\n1 0\n1 1\n0 1\n")
    fabric = Path(__file__).parents[2] / "examples" / "fabrics" / "two-leaf.yaml"
    Path("here.yaml").write_text(fabric.read_text())
    with pytest.raises(ConfigError, match=message):
        check_all(combine(replace(BASE, **base), replace(AXES, **axes)))


def test_rings_along_rails_need_no_spines() -> None:
    axes = replace(
        AXES, fabrics=["rail-only"], placements=["rail-aligned"], algorithms=["ring", "hierarchical", "auto"]
    )
    assert len(check_all(combine(BASE, axes))) == 3


def test_lists() -> None:
    assert split_list("--placement", None) == []
    assert split_list("--placement", "block, random:3") == ["block", "random:3"]
    with pytest.raises(ConfigError, match="empty value"):
        split_list("--placement", "block,")
    with pytest.raises(ConfigError, match="--placement: block is given twice"):
        split_list("--placement", "block,cyclic,block")
