"""Who sends to whom: patterns by name, and flows from files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from queue_fabrics import star

from fauxrdma.errors import ConfigError
from fauxrdma.fabric.queues.flow_file import flows_of, nodes_named, read_flow_file
from fauxrdma.fabric.queues.patterns import PATTERNS, Pattern
from fauxrdma.fabric.queues.play import Flow


def test_patterns_by_hand() -> None:
    assert Pattern.parse("incast").pairs(4) == [(1, 0), (2, 0), (3, 0)]
    assert Pattern.parse("incast:2").pairs(4) == [(1, 0), (2, 0)]
    assert Pattern.parse("ring").pairs(3) == [(0, 1), (1, 2), (2, 0)]
    assert Pattern.parse("ring:2").pairs(3) == [(0, 2), (1, 0), (2, 1)]
    assert sorted(Pattern.parse("all-to-all").pairs(3)) == [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]


@pytest.mark.parametrize("ranks", [2, 3, 16])
def test_a_permutation_has_everybody_send_and_receive_once_and_nobody_to_himself(ranks: int) -> None:
    pairs = Pattern.parse("permutation").pairs(ranks, seed=3)
    assert pairs == Pattern.parse("permutation").pairs(ranks, seed=3)
    assert Counter(source for source, _ in pairs) == Counter(target for _, target in pairs) == Counter(range(ranks))
    assert all(source != target for source, target in pairs)
    if ranks == 16:
        assert pairs != Pattern.parse("permutation").pairs(ranks, seed=4)


@pytest.mark.parametrize("name", PATTERNS)
def test_nobody_sends_to_himself(name: str) -> None:
    assert all(source != target for source, target in Pattern.parse(name).pairs(5))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("incats:4", "did you mean incast?"),
        ("incast:0", "write incast:2"),
        ("incast:x", "'x' is no number of senders"),
        ("permutation:3", "takes no number"),
    ],
)
def test_what_is_no_pattern(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace("?", r"\?")):
        Pattern.parse(text)


def test_too_few_ranks() -> None:
    with pytest.raises(ConfigError, match="incast:8 takes 9 ranks, there are 4"):
        Pattern.parse("incast:8").pairs(4)


CSV = """\
# a comment
src,dst,bytes,start,priority
n0.hca1, n2.gpu0,4M,,
n1.hca1,n2.hca1,512K,20us,3
"""
YAML = """\
flows:
  - {src: n0.hca1, dst: n2.gpu0, bytes: 4M}
  - {src: n1.hca1, dst: n2.hca1, bytes: 512K, start: 20us, priority: 3}
"""


@pytest.mark.parametrize(("name", "text"), [("flows.csv", CSV), ("flows.yaml", YAML)])
def test_flows_from_a_file(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    read = read_flow_file(str(tmp_path / name))
    assert nodes_named(read) == 3
    manager = star(3)
    usual = flows_of(manager, read)
    assert [(flow.source, flow.target, flow.nbytes, flow.start_ns, flow.priority) for flow in usual] == [
        (1, 3, 4 << 20, 0.0, None),
        (2, 3, 512 << 10, 20_000.0, 3),
    ]
    assert all(isinstance(flow, Flow) for flow in usual)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.csv", "src,dst,bytes\nn0.hca1,n1.hca1,4Q\n", ":2:17: '4Q' is not a size"),
        ("b.csv", "src,dst,size\nn0.hca1,n1.hca1,4\n", ":1:1: a flow has no 'size'"),
        ("c.csv", "src,dst,bytes\nn0.hca1,n1.hca1\n", ":2:1: 'bytes' is missing"),
        ("d.csv", "src,dst,bytes\nn0.hca1,n1.hca1,4,5\n", ":2:1: 4 cells, the first line names 3"),
        ("e.csv", "src,dst,bytes,start\nn0.hca1,n1.hca1,4,5\n", ":2:19: '5' is not a time: write the unit"),
        ("f.csv", "src,dst,bytes\n", ": there is no flow in it"),
        ("g.yaml", "flows:\n  - {src: n0.hca1, dst: n1.hca1, byte: 4}\n", ":2:"),
        ("h.yaml", "flows: 3\n", ":1:8: this is no list"),
        ("i.yaml", "flow: []\n", ":1:1: unknown key 'flow'"),
        ("j.yaml", "flows:\n  - {src: n0.hca1, dst: n1.hca1, bytes: 0}\n", ":2:41: a flow has at least one byte"),
        ("k.yaml", "flows:\n  - {src: n0.hca1, dst: n1.hca1, bytes: 1, priority: x}\n", "no priority: they are 0 to 7"),
    ],
)
def test_a_mistake_is_shown_where_it_is(tmp_path: Path, name: str, text: str, expected: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_flow_file(str(path))
    assert str(caught.value).startswith(str(path))
    assert expected in str(caught.value)


def test_an_end_that_is_not_there_is_shown_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "flows.csv"
    path.write_text("src,dst,bytes\nn0.hca1,n1.hca1,1K\nn0.hca1,n7.hca1,1K\n")
    with pytest.raises(ConfigError, match=r"flows.csv:3:9: .*nothing is called n7.hca1"):
        flows_of(star(3), read_flow_file(str(path)))
