"""What the tab key offers, asked as bash's script asks."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from fauxrdma.cli.completion import complete_fabric
from fauxrdma.topology.presets import PRESETS


def offered(cli: Any, line: str) -> list[str]:
    words = line.split(" ")
    env = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1), "_FAUXRDMA_COMPLETE": "complete_bash"}
    result = cli(env=env)
    assert result.returncode == 0, result.stderr
    return str(result.stdout).split()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("fauxrdma comp", ["compare"]),
        ("fauxrdma perf write", ["write-bw", "write-lat"]),
        ("fauxrdma run seed-r", ["seed-rail8", "seed-rail4"]),
        ("fauxrdma compare fat-tree dual", ["dual-plane"]),
        ("fauxrdma topo show sup", ["superpod"]),
        ("fauxrdma run fat-tree --routing up", ["updn"]),
        ("fauxrdma run fat-tree --placement ra", ["rail-aligned", "random"]),
        ("fauxrdma compare fat-tree --placement block,cy", ["block,cyclic"]),
        ("fauxrdma run fat-tree --transport iw", ["iwarp"]),
        ("fauxrdma run fat-tree --algorithm hier", ["hierarchical", "hierarchical-tree"]),
    ],
)
def test_words(cli: Any, line: str, words: list[str]) -> None:
    assert offered(cli, line) == words


def test_fabric_files_and_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fabrics").mkdir()
    (tmp_path / "fabrics" / "two.yaml").touch()
    (tmp_path / "fabrics" / "notes.txt").touch()
    (tmp_path / "fab.yml").touch()
    monkeypatch.chdir(tmp_path)
    assert complete_fabric("fa") == ["fat-tree", "fab.yml", "fabrics/"]
    assert complete_fabric("fabrics/") == ["fabrics/two.yaml"]
    assert complete_fabric("no/such/") == []
    assert complete_fabric("")[: len(PRESETS)] == list(PRESETS)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_there_is_a_script_for_each_shell(cli: Any, shell: str) -> None:
    result = cli(env={"_FAUXRDMA_COMPLETE": f"source_{shell}"})
    assert result.returncode == 0, result.stderr
    assert "_FAUXRDMA_COMPLETE" in result.stdout


def test_bash_takes_the_script(cli: Any, tmp_path: Path) -> None:
    script = tmp_path / "completion.sh"
    script.write_text(cli(env={"_FAUXRDMA_COMPLETE": "source_bash"}).stdout)
    command = f"source {script} && complete -p fauxrdma"
    result = subprocess.run(["bash", "--norc", "-c", command], capture_output=True, text=True, check=False)
    assert "_fauxrdma_completion fauxrdma" in result.stdout, result.stderr
