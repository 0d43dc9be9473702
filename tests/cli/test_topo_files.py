"""`topo export`, `topo import` and `topo show --as`, as commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from fauxrdma.topology.formats.registry import FORMATS, read_fabric
from fauxrdma.topology.loading import load_topology

FOREIGN = Path(__file__).parents[1] / "topology" / "foreign_files"


@pytest.fixture(autouse=True)
def here(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests stand in the directory that commands run in."""
    monkeypatch.chdir(cli.directory)


@pytest.mark.parametrize("name", FORMATS)
def test_a_fabric_goes_out_and_comes_back(cli: Any, name: str) -> None:
    result = cli("topo", "export", "fat-tree", "--nodes", "3", "--to", name, "-o", "fabric.out")
    assert (result.returncode, result.stdout) == (0, f"fabric.out: fat-tree as {name}\n")
    assert cli("topo", "export", "fat-tree", "--nodes", "3", "--to", name).stdout == Path("fabric.out").read_text()
    back = json.loads(cli("topo", "import", "fabric.out", "--to", "graphml", "--format", "json").stdout)
    assert (back["read"], back["format"], back["remarks"], back["file"]) == (name, "graphml", [], None)
    Path("again").write_text(back["text"])
    assert read_fabric("again").topology == load_topology("fat-tree", 3)
    assert "valid: fat-tree: 3 hosts" in cli("topo", "validate", "fabric.out").stdout


def test_an_import_says_what_it_assumed_and_writes_a_fabric_file(cli: Any) -> None:
    result = cli("topo", "import", str(FOREIGN / "cluster-edr.txt"), "-o", "cluster.yaml")
    assert result.returncode == 0
    assert "fauxrdma: note: hosts: n0 = node001, n1 = node002" in result.stderr
    assert Path("cluster.yaml").read_text().startswith("# left out, since they are no hosts: Mellanox")
    assert load_topology("cluster.yaml").hosts == 16
    assert cli("topo", "show", "cluster.yaml").returncode == 0


def test_one_host_for_nccl(cli: Any) -> None:
    result = cli("topo", "export", "seed-rail8", "--to", "nccl", "--host", "1")
    assert result.stdout.count("<net ") == 9
    for arguments, says in (
        (["--to", "nccl", "--host", "2"], "--host 2: seed-rail8 has hosts 0 to 1"),
        (["--to", "yaml", "--host", "0"], "--host goes with --to nccl, not --to yaml"),
        (["--to", "graphlm"], "unknown format 'graphlm': did you mean 'graphml'?"),
        (["--to", "yaml", "-o", "no/such/place"], "--output no/such/place: cannot write there"),
    ):
        refused = cli("topo", "export", "seed-rail8", *arguments)
        assert refused.returncode == 2
        assert says in refused.stderr


def test_a_bad_file_is_one_line_with_its_place(cli: Any) -> None:
    Path("bad.txt").write_text('Switch\t4 "S-1"\n[1 S-2\n')
    for command in ("import", "show", "validate"):
        result = cli("topo", command, "bad.txt")
        assert result.returncode == 2
        assert result.stderr.startswith('fauxrdma: error: bad.txt:2:1: a port is written `[1] "S-..."[2]`')


def test_drawings(cli: Any) -> None:
    assert cli("topo", "show", "seed-rail4", "--as", "terminal").stdout.startswith("spine    [spine1] [spine2]\n")
    assert cli("topo", "show", "seed-rail4", "--as", "mermaid").stdout.splitlines()[3] == "flowchart TB"
    assert cli("topo", "show", "seed-rail4", "--as", "svg", "-o", "out.svg").stdout == "out.svg: seed-rail4 as svg\n"
    ElementTree.parse("out.svg")
    refused = cli("topo", "show", "seed-rail4", "-o", "out.svg")
    assert (refused.returncode, "--output out.svg goes with --as" in refused.stderr) == (2, True)
