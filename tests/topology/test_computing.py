"""What computing costs, as text: read, chosen by rank, refused with reasons, kept in fabric files."""

from __future__ import annotations

import pytest

from fauxrdma.errors import ConfigError
from fauxrdma.lab.local import LocalLab
from fauxrdma.topology.computing import FREE, ComputeCost, check_ranks, compute_cost, parse_compute
from fauxrdma.topology.custom import load_fabric_text
from fauxrdma.topology.formats.fabric_yaml import write_fabric_yaml
from fauxrdma.topology.graph import Topology

FABRIC = """
name: two
compute: {}
hosts: {{count: 2, gpus: 1}}
switches: {{leaf1: {{ports: 4}}}}
cables: [{{from: "n*.hca1", to: leaf1, rate: 200Gbps, length: 3m}}]
"""


def test_later_rules_win() -> None:
    text = "20us 3,5-7=1ms 6=none cpu*0.5 1=2us"
    costs = [compute_cost(text, rank) for rank in (0, 1, 3)]
    assert costs == [ComputeCost(cpu_factor=0.5), ComputeCost(call_ns=2000), ComputeCost(cpu_factor=0.5)]
    text = "20us 3,5-7=1ms 6=none"
    assert [str(compute_cost(text, rank)) for rank in (0, 3, 6, 7)] == ["20000ns", "1000000ns", "none", "1000000ns"]
    assert compute_cost(None, 0) == FREE


@pytest.mark.parametrize("cost", [FREE, ComputeCost(call_ns=1234), ComputeCost(cpu_factor=0.002)])
def test_a_cost_is_read_back_from_its_text(cost: ComputeCost) -> None:
    assert compute_cost(str(cost), 0) == cost


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("20", "'20' is no cost"),
        ("gpu*2", "no cost"),
        ("3-1=20us", "'3-1' are no ranks"),
        ("x=20us", "is no"),
        ("1,=20us", "'' are no ranks"),
    ],
)
def test_what_is_no_cost_is_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_compute(text)


def test_a_rank_that_is_not_there_is_refused() -> None:
    check_ranks("none 3=20us", 4)
    with pytest.raises(ConfigError, match="speaks of rank 4: the job has ranks 0 to 3"):
        LocalLab("fat-tree", 2, 2, clock="virtual", compute="4=20us")


def test_fabric_files_have_it() -> None:
    topology = load_fabric_text("two.yaml", FABRIC.format("20us 1=none"))
    assert topology.compute == "20us 1=none"
    assert Topology.from_dict(topology.to_dict()).compute == "20us 1=none"
    assert load_fabric_text("again.yaml", write_fabric_yaml(topology)) == topology
    with pytest.raises(ConfigError, match=r"two.yaml:3:10: .*'20' is no cost"):
        load_fabric_text("two.yaml", FABRIC.format('"20"'))
