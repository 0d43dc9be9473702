"""`fauxrdma place`: the seats as a table, drawn, as JSON and as a file that gives the same placement."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

import pytest


def test_a_table_a_map_and_the_ring(cli: Any) -> None:
    result = cli("place", "seed-rail8", "--nodes", "3", "--gpus", "2", "--placement", "rail-aligned")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "rail-aligned on seed-rail8: 6 ranks on 3 of 3 nodes"
    assert lines[2].split() == ["rank", "node", "gpu", "hca", "leaf", "rail", "local", "rank", "group", "rank"]
    assert [line.split() for line in lines[6:9]] == [
        ["3", "2", "1", "2", "leaf2", "1", "0", "2"],
        ["4", "2", "0", "1", "leaf1", "0", "1", "2"],
        ["5", "1", "0", "1", "leaf1", "0", "1", "1"],
    ]
    assert "node 1   r5 gpu0  r2 gpu1" in lines
    assert "n0[r0 - r1] = n1[r2] = n2[r3 - r4] = n1[r5] = r0" in lines
    assert lines[-1].startswith("ring in rank order: 2 hops inside nodes (-), 4 along a rail (=), 0 from rail to rail")


def test_json_and_a_file_of_the_same_places(cli: Any) -> None:
    drawn = cli(
        "place", "seed-rail8", "--nodes", "4", "-g", "3", "--placement", "random:5", "--on-nodes", "3,1",
        "--places", "my.places", "--format", "json",
    )  # fmt: skip
    first = json.loads(drawn.stdout)
    assert (first["placement"], first["world_size"], sorted({row["node"] for row in first["ranks"]})) == (
        "random:5",
        6,
        [1, 3],
    )
    assert first["places"].split() == ["{node}:{gpu}:{hca}".format(**row) for row in first["ranks"]]
    ring = first["ring"]
    assert ring["inside"] + ring["along"] + ring["across"] == 6
    again = json.loads(
        cli("place", "seed-rail8", "--nodes", "4", "--placement", "my.places", "--format", "json").stdout
    )  # fmt: skip
    assert {key: value for key, value in again.items() if key != "placement"} == {
        key: value for key, value in first.items() if key != "placement"
    }


def test_the_ranks_are_drawn_in_their_gpus(cli: Any) -> None:
    result = cli("place", "seed-rail8", "--gpus", "2", "--placement", "cyclic", "--svg", "seats.svg")
    assert result.returncode == 0, result.stderr
    texts = [
        text.text for text in ElementTree.parse(cli.directory / "seats.svg").iter("{http://www.w3.org/2000/svg}text")
    ]
    row = [text for text in texts if text and text[0] in "rG" and text[1:].isdecimal()]
    assert row[:8] == ["r0", "r2", "G2", "G3", "G4", "G5", "G6", "G7"]
    assert row[8:10] == ["r1", "r3"]
    hops = [
        (group.get("class"), group.findtext("{http://www.w3.org/2000/svg}title"))
        for group in ElementTree.parse(cli.directory / "seats.svg").iter("{http://www.w3.org/2000/svg}g")
        if str(group.get("class")).startswith("hop")
    ]
    assert hops == [
        ("hop along", "rank 0 to rank 1: along rail 0"),
        ("hop across", "rank 1 to rank 2: from rail 0 to rail 1"),
        ("hop along", "rank 2 to rank 3: along rail 1"),
        ("hop across", "rank 3 to rank 0: from rail 1 to rail 0"),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--placement", "rail-alined"], "unknown placement 'rail-alined': did you mean 'rail-aligned'?"),
        (["--on-nodes", "5"], "seed-rail8 has no node 5"),
        (["--placement", "none.places"], "none.places: no such file"),
        (["--svg", "no/where.svg"], "--svg no/where.svg: cannot write there"),
    ],
)
def test_mistakes(cli: Any, arguments: list[str], message: str) -> None:
    result = cli("place", "seed-rail8", *arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
