"""`fauxrdma plan`: the table of choices and one plan, against the library; what it draws, and what it refuses."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from fauxrdma.collectives.rank_paths import RankPaths
from fauxrdma.collectives.selector import Selector
from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.topology.loading import load_topology
from fauxrdma.topology.rank_places import block_places

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "plans"
SVG = "{http://www.w3.org/2000/svg}"


def selector_of(fabric: str, nodes: int, gpus: int, intra_node: str = "nvlink") -> Selector:
    topology = load_topology(fabric, nodes, gpus)
    return Selector(RankPaths(SubnetManager(topology), block_places(topology, nodes, gpus), intra_node))


def test_the_table_of_choices(cli: Any) -> None:
    done = cli("plan", "all_reduce", "single-switch", "--nodes", "4", "-b", "8", "-e", "1G", "-f", "64")
    assert (done.returncode, done.stderr) == (0, "")
    title, _, heading, *rows = done.stdout.splitlines()
    assert title.startswith("all_reduce on single-switch: 4 ranks on 4 nodes, within nodes over nvlink; predicted us")
    names = heading.split()[1:]
    assert names[0] == "ring"
    assert "hierarchical" not in names  # one GPU per node
    selector = selector_of("single-switch", 4, 1)
    for size, row in zip((8, 512, 32768), rows, strict=False):
        choice = selector.compare("all_reduce", size)
        cells = row.split()[2:]
        marked = [name for name, cell in zip(names, cells, strict=True) if cell.endswith("*")]
        assert marked == [choice.algorithm]
        assert [float(cell.rstrip("*")) for cell in cells] == [
            pytest.approx(choice.predicted_ns[name] / 1000, abs=0.006) for name in names
        ]
    assert "from 512 B on bcube, before that recursive-doubling\nfrom 128 MiB on ring" in done.stdout


def test_json_and_the_chart(cli: Any) -> None:
    arguments = ("--gpus", "4", "--intra-node", "nvlink", "-b", "1K", "-e", "16M", "-f", "16", "--format", "json")
    done = cli("plan", "all_reduce", "superpod", *arguments, "--plot", "chart.svg")
    assert (done.returncode, done.stderr) == (0, "")
    answer = json.loads(done.stdout)
    assert (answer["fabric"], answer["operation"], answer["intra_node"]) == ("superpod", "all_reduce", "nvlink")
    assert answer["places"][5] == {"node": 1, "gpu": 1, "hca": 2}
    table = selector_of("superpod", 2, 4, "nvlink").table("all_reduce", [1 << 10, 1 << 14, 1 << 18, 1 << 22])
    assert answer["sizes"] == [
        {"nbytes": c.nbytes, "chosen": c.algorithm, "predicted_ns": c.predicted_ns, "pieces": c.pieces}
        for c in table.choices
    ]
    assert [c["algorithm"] for c in answer["crossovers"]] == [c.algorithm for c in table.crossovers]
    chart = ET.fromstring((cli.directory / "chart.svg").read_text())
    assert len(chart.findall(f"{SVG}polyline")) == len(table.algorithms)
    assert len(chart.findall(f"{SVG}circle")) == len(table.choices)


def test_algorithms_without_a_path_are_told(cli: Any) -> None:
    arguments = ("--gpus", "2", "--intra-node", "nvlink", "-b", "64K", "-e", "64K")
    done = cli("plan", "all_to_all", "rail-only", *arguments)
    assert done.returncode == 0
    assert "pxn at every size" in done.stdout
    assert "not usable: direct: no route from n0.hca1 to n1.hca2" in done.stdout
    assert cli("plan", "all_to_all", "rail-only", "--gpus", "2", "--intra-node", "hca").returncode == 4


def test_a_plan_from_a_file_beside_the_others(cli: Any) -> None:
    path = EXAMPLES / "ring_all_reduce.yaml"
    own = ("--algorithm", f"file:{path}")
    done = cli(
        "plan", "all_reduce", "single-switch", "--nodes", "3", "-b", "48M", "-e", "48M", *own, "--format", "json"
    )
    predicted = json.loads(done.stdout)["sizes"][0]["predicted_ns"]
    assert predicted[f"file:{path}"] == pytest.approx(predicted["ring"], rel=0.02)
    assert "double-tree" in predicted
    two = cli("plan", "all_reduce", "single-switch", *own, "--algorithm", "ring", "-e", "8", "--format", "json")
    assert list(json.loads(two.stdout)["sizes"][0]["predicted_ns"]) == [f"file:{path}", "ring"]
    shown = cli("plan", "all_reduce", "single-switch", "--nodes", "3", *own, "--show")
    assert f"1 MiB by file:{path} on single-switch: 3 ranks" in shown.stdout
    assert cli("plan", "broadcast", "single-switch", *own).stderr.endswith("is for all_reduce, not for broadcast\n")


def test_placement_decides_what_crosses_rails(cli: Any) -> None:
    crossing = {}
    for placement in ("block", "cyclic"):
        show = ("--show", "--algorithm", "ring", "--placement", placement, "--intra-node", "hca", "--format", "json")
        crossing[placement] = json.loads(cli("plan", "all_reduce", "seed-rail8", "--gpus", "2", *show).stdout)
    # In blocks the ring changes the HCA at every rank; dealt out in turn, only where it begins again.
    assert crossing["block"]["across_rails"] == 4 * crossing["cyclic"]["across_rails"] / 2
    assert crossing["cyclic"]["places"][1] == {"node": 1, "gpu": 0, "hca": 1}


def test_one_plan_shown(cli: Any) -> None:
    show = ("--show", "--algorithm", "direct", "--size", "64K", "--rank", "1")
    done = cli("plan", "all_to_all", "seed-rail8", "--gpus", "2", *show, "--plot", "messages.svg")
    assert (done.returncode, done.stderr) == (0, "")
    cost = selector_of("seed-rail8", 2, 2).cost("all_to_all", "direct", 64 << 10)
    first, second, *_ = done.stdout.splitlines()
    assert first == "all_to_all of 64 KiB by direct on seed-rail8: 4 ranks on 2 nodes, within nodes over nvlink"
    assert second == f"1 round, 12 messages, 192 KiB in all; predicted {cost.predicted_ns / 1000:.3g} us"
    assert "rank 1, step by step:\n    1  output[16384:32768] = input[16384:32768]" in done.stdout
    assert "between nodes 128 KiB, across rails 64 KiB, over spines 64 KiB" in done.stdout
    assert "crosses rails: rank 0 (n0.hca1) to rank 3 (n1.hca2), 16 KiB" in done.stdout
    assert "crosses rails: rank 0 (n0.hca1) to rank 2" not in done.stdout
    drawing = ET.fromstring((cli.directory / "messages.svg").read_text())
    titles = [title.text or "" for title in drawing.iter(f"{SVG}title")]
    assert len(titles) == 12
    told = "round 1: rank 0 to 3, 16 KiB input[49152:65536], then to output[0:16384]; 0 ns to "
    assert any(title.startswith(told) for title in titles)


def test_channels_use_the_hcas_of_a_node(cli: Any) -> None:
    fabric = ("all_reduce", "superpod", "--gpus", "4", "--intra-node", "nvlink", "--algorithm", "ring")
    show = ("--show", "--size", "16M", "--format", "json")
    one = json.loads(cli("plan", *fabric, *show).stdout)
    done = cli("plan", *fabric, *show, "--channels", "4", "--cross-nic", "0", "--rank", "0")
    four = json.loads(done.stdout)
    assert four["predicted_ns"] < 0.4 * one["predicted_ns"]
    assert four["across_rails"] == 0
    out = {link["name"]: link["nbytes"] for link in four["links"]}
    assert len({out[f"n0.hca{hca}->leaf{hca}"] for hca in (1, 2, 3, 4)}) == 1
    assert len(four["steps"]["steps"]) > 4 * 7
    table = cli("plan", *fabric, "-b", "16M", "-e", "16M", "--channels", "4", "--cross-nic", "0", "--format", "json")
    assert json.loads(table.stdout)["sizes"][0]["predicted_ns"] == {"ring": four["predicted_ns"]}
    assert "for one channel" in cli("plan", *fabric, *show, "--channels", "2", "--plot", "x.svg").stderr


def test_one_plan_as_json(cli: Any) -> None:
    done = cli("plan", "all_reduce", "fat-tree", "--show", "--size", "1M", "--rank", "0", "--format", "json")
    answer = json.loads(done.stdout)
    selector = selector_of("fat-tree", 2, 1)
    cost = selector.cost("all_reduce", answer["algorithm"], 1 << 20)
    assert answer["algorithm"] == selector.compare("all_reduce", 1 << 20).algorithm
    assert (answer["predicted_ns"], answer["rank_end_ns"]) == (cost.predicted_ns, list(cost.end_ns))
    topology = selector.paths.topology
    assert {link["name"]: link["nbytes"] for link in answer["links"]} == {
        topology.links[link].name: nbytes for link, nbytes in cost.link_bytes.items()
    }
    assert sum(message["nbytes"] for message in answer["messages"]) == cost.nbytes
    assert answer["steps"]["rank"] == 0
    assert (answer["over_spines"], answer["crossing_rails"]) == (0, [])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("all_sum", "fat-tree"), "nothing to choose for 'all_sum'"),
        (("all_reduce", "fat-treee"), "did you mean 'fat-tree'"),
        (("all_reduce", "fat-tree", "-b", "1M", "-e", "8"), "1M to 8 is none"),
        (("all_reduce", "fat-tree", "-b", "8 apples"), "'8 apples' is not a size"),
        (("all_reduce", "fat-tree", "--rank", "0"), "--rank goes with --show"),
        (("all_reduce", "fat-tree", "--algorithm", "file:none.yaml"), "none.yaml: no such file"),
        (("all_reduce", "fat-tree", "--placement", "cycle"), "unknown placement 'cycle'"),
        (("all_reduce", "fat-tree", "--show", "--algorithm", "rung"), "no algorithm 'rung' for all_reduce"),
        (("all_reduce", "fat-tree", "--show", "--rank", "9"), "there are ranks 0..1"),
        (("all_reduce", "fat-tree", "--intra-node", "pipe"), "hca or nvlink, not 'pipe'"),
        (("all_reduce", "fat-tree", "-e", "8", "--plot", "no/such/x.svg"), "cannot be written"),
    ],
)
def test_mistakes_are_one_line(cli: Any, arguments: tuple[str, ...], words: str) -> None:
    done = cli("plan", *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("fauxrdma: error: ")
    assert words in done.stderr


def test_through_queues(cli: Any) -> None:
    command = ("plan", "all_to_all", "ring,switches=5", "--nodes", "10", "-b", "1M", "-e", "1M", "--format", "json")
    fair, queued = (json.loads(cli(*command, "--model", model).stdout) for model in ("flows", "queues"))
    assert (fair["model"], queued["model"]) == ("flows", "queues")
    assert set(queued["sizes"][0]["predicted_ns"]) == {"direct"}
    assert queued["sizes"][0]["predicted_ns"]["direct"] == pytest.approx(
        fair["sizes"][0]["predicted_ns"]["direct"], rel=0.05
    )
    assert "deadlocks" in queued["unusable"]["pairwise"]
    refused = cli(*command, "--model", "queue")
    assert (refused.returncode, "--model 'queue': it is flows or queues" in refused.stderr) == (2, True)
