"""`run` and `compare` with placements, transports, algorithms and scripts, over real daemons."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

from fauxrdma.report.results import Comparison

# Each rank says where it is; then a few all-reduces.
JOB = """
import os, sys
import numpy as np
from fauxrdma.communicator import Communicator

with Communicator.from_env() as world:
    print("seat", *(os.environ[n] for n in ("RANK", "FAUXRDMA_NODE", "FAUXRDMA_GPU", "FAUXRDMA_HCA", "LOCAL_RANK")))
    print("algo", os.environ.get("FAUXRDMA_ALGO"))
    for step in range(3):
        data = np.full(int(sys.argv[1]), world.rank + 1.0, dtype=np.float32)
        world.all_reduce(data)
    if world.rank == 0:
        print(f"total={data[0]:.0f} steps=3")
"""


def test_run_puts_ranks_where_it_is_told(cli: Any) -> None:
    (cli.directory / "my.places").write_text("1 7\n0 2\nn1 gpu3\n")
    result = cli(
        "run", "seed-rail8", "--clock", "none", "--placement", "my.places", "--algorithm", "ring",
        "--format", "json", "--", cli.script(JOB), "1000",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    seats = {line.split("seat ")[1] for line in result.stderr.splitlines() if "seat" in line}
    assert seats == {"0 1 7 hca8 0", "1 0 2 hca3 0", "2 1 3 hca4 1"}
    assert "[n1 r2] algo ring" in result.stderr
    (run,) = Comparison.model_validate_json(result.stdout).runs
    assert (run.placement, run.algorithm, run.world_size, run.values["total"]) == ("my.places", "ring", 3, "6")
    assert [(seat.node, seat.gpu, seat.hca, seat.rail) for seat in run.places] == [
        (1, 7, 8, 7),
        (0, 2, 3, 2),
        (1, 3, 4, 3),
    ]
    # Each rank hands on to the one before: rank 0 to rank 2 on its own node, the others over their HCAs.
    ports = {link.src for link in run.links if link.dst.startswith("leaf") and link.src.startswith("n")}
    assert ports == {"n0.hca3", "n1.hca4"}


def test_a_row_for_each_transport(cli: Any) -> None:
    transports = ["infiniband", "rocev2", "rocev1", "iwarp"]
    result = cli(
        "compare", "seed-rail8", "--gpus", "2", "--clock", "none", "--transport", ",".join(transports), "--format",
        "json", "--", cli.script(JOB), "4000",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    comparison = Comparison.model_validate_json(result.stdout)
    assert [run.transport for run in comparison.runs] == transports
    assert comparison.differing_values == []
    infiniband, rocev2, rocev1, iwarp = (run.route.latency_mean_ns for run in comparison.runs if run.route)
    assert infiniband < rocev2 <= rocev1 < iwarp


def test_a_row_for_each_combination(cli: Any) -> None:
    script = cli.script(JOB)
    result = cli(
        "compare", "seed-rail8", "--gpus", "2", "--clock", "none", "--placement", "block,cyclic", "--transport",
        "infiniband,rocev2", "--script", f"{script} 40000", "--script", f"{script} 10", "-o", "out",
        "--log-dir", "logs",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    header, *rows = [line for line in result.stdout.splitlines() if "over spines" in line or "\u2502" in line]
    for name in ("transport", "placement", "script", "over spines"):
        assert name in header
    assert len([row for row in rows if "rocev2" in row]) == 4
    comparison = Comparison.model_validate(json.loads((cli.directory / "out" / "comparison.json").read_text()))
    assert [run.name for run in comparison.runs] == [
        f"{transport} / {placement} / job.py {size}"
        for size in ("40000", "10")
        for transport in ("infiniband", "rocev2")
        for placement in ("block", "cyclic")
    ]
    assert {run.transport for run in comparison.runs} == {"infiniband", "rocev2"}
    assert comparison.differing_values == []
    # Each was told on standard error, with its name, and drawn with its ranks.
    assert "infiniband / cyclic / job.py 10: running 4 ranks on 2 nodes, unshaped" in result.stderr
    # And its daemons' logs are kept apart.
    logs = sorted(path.name for path in (cli.directory / "logs").iterdir())
    assert len(logs) == 8
    assert "rocev2+cyclic+job.py 10" in logs
    page = (cli.directory / "out" / "report.html").read_text()
    assert page.count('<svg class="topo"') == 8
    svg = page[page.index('<svg class="topo"') : page.index("</svg>") + 6]
    drawing = ElementTree.fromstring(svg)
    labels = {text.text for text in drawing.iter("{http://www.w3.org/2000/svg}text")}
    assert {"r0", "r1", "r2", "r3"} <= labels
    assert "8 combinations: 2 transports, 2 placements, 2 scripts" in page


def test_ranks_use_the_algorithm_they_are_told(cli: Any) -> None:
    result = cli(
        "compare", "fat-tree", "--gpus", "2", "--clock", "none", "--algorithm", "ring,hierarchical,bcube",
        "--format", "json", "--", cli.script(JOB), "40000",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    comparison = Comparison.model_validate_json(result.stdout)
    assert [run.name for run in comparison.runs] == ["ring", "hierarchical", "bcube"]
    used = [run.main_all_reduce.algorithm for run in comparison.runs if run.main_all_reduce is not None]
    assert used == ["ring", "hierarchical", "bcube"]
    assert not any("was asked for" in note for run in comparison.runs for note in run.notes)


def test_an_impossible_combination_is_refused_before_anything_starts(cli: Any) -> None:
    result = cli(
        "compare", "seed-rail8", "--gpus", "1", "--algorithm", "ring,hierarchical", "--", cli.script(JOB), "10"
    )  # fmt: skip
    assert result.returncode == 2
    assert result.stderr.startswith("fauxrdma: error: hierarchical: hierarchical goes by nodes")
    assert result.stdout == ""


def test_scripts_that_are_none(cli: Any) -> None:
    for script, message in (("", "--script is empty"), ("a 'b", "No closing quotation")):
        result = cli("compare", "seed-rail8", "--script", script)
        assert (result.returncode, message in result.stderr) == (2, True)
