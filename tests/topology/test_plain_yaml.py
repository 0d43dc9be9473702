"""The quick reader of plain YAML reads what ruamel.yaml reads, or leaves it to it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fauxrdma.errors import ConfigError
from fauxrdma.topology.formats import yaml_tree
from fauxrdma.topology.formats.plain_yaml import NotPlain
from fauxrdma.topology.formats.registry import write_fabric
from fauxrdma.topology.formats.source import Source
from fauxrdma.topology.loading import load_topology

FILES = sorted((Path(__file__).parent / "foreign_files").glob("*.y*ml"))
OURS = write_fabric(load_topology("seed-rail8", 2), "containerlab")

PIECES = [
    "a:", "b: 1", "c: x y", "- d", "- e: 2", "- - f", "k: [1, 'two', \"three\"]", "m: {n: 1, o: 'p'}", "'q': r", "s: |",
    "t: &u v", "w: *u", "# note", "x: y # note", "z: [a:b]", "- [c, d]", "- {e: f}", "g: 'it''s'", "h: \"\\n\"", "a: 1",
    "? i", "j: k: l", "- 'm: n'", "---", "o: -1", "p: ~", "q: http://r:80/s", "t: 'open", "u: [1,2]", "v: {w: 1,x: 2}",
    "y: [1, ]", "z:", "aa: é", "bb: a - b", "cc:  two", "dd : 1", "- ", "-", "ee: [ 1 ]", "ff: !!str 1", "gg: @h",
]  # fmt: skip


def both(text: str) -> None:
    """Quick is as slow, unless quick leaves it."""
    source = Source("f.yaml", text)
    try:
        quick = yaml_tree._read_plain(source).mapping()
    except (NotPlain, ConfigError):
        return
    assert quick == yaml_tree._read_any(source)


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(PIECES)), max_size=7))
def test_whatever_is_read_quickly_is_read_right(lines: list[tuple[int, str]]) -> None:
    both("\n".join("  " * depth + piece for depth, piece in lines))


@given(st.integers(0, 10**9))
def test_a_file_with_a_few_bytes_changed(seed: int) -> None:
    lot = random.Random(seed)
    lines = OURS.split("\n")
    start = lot.randrange(len(lines))
    text = "\n".join(["topology:", *lines[start : start + 12]])
    for _ in range(lot.randint(0, 3)):
        at = lot.randrange(len(text))
        text = text[:at] + lot.choice(" :-'\"[]{},#\nax&*") + text[at + lot.randint(0, 1) :]
    both(text)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_files_of_others(path: Path) -> None:
    both(path.read_text())


def test_what_we_export_is_read_quickly() -> None:
    assert yaml_tree._read_plain(Source("f.yaml", OURS)).mapping() == yaml_tree._read_any(Source("f.yaml", OURS))
