"""Fabric files that cannot be used: each says where, and what to do instead; none ends in a traceback.

The first line of every file in `bad_fabrics/` is a comment with the position and words of the message that the first
mistake must give: ``# LINE:COLUMN words``.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fauxrdma.cli.main import main
from fauxrdma.errors import ConfigError
from fauxrdma.topology.graph import Topology
from fauxrdma.topology.loading import load_topology

BAD = sorted((Path(__file__).parent / "bad_fabrics").glob("*.yaml"))
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").rglob("*.yaml"))


def expected(path: Path) -> tuple[str, str]:
    """Position and words, from the first line."""
    encoding = "utf-16" if path.read_bytes().startswith(b"\xff\xfe") else "utf-8"
    first = path.read_bytes().decode(encoding, errors="replace").splitlines()[0]
    position, words = first.removeprefix("# ").split(" ", 1)
    return position, words


def test_the_corpus_is_large_and_says_each_thing_once() -> None:
    assert len(BAD) >= 60
    contents = [path.read_bytes().split(b"\n", 1)[1] for path in BAD]
    assert len(set(contents)) == len(BAD)


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_a_bad_file_is_refused_with_its_place_and_advice(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    position, words = expected(path)
    assert main(["topo", "validate", str(path)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert all(line.startswith("fauxrdma: error: ") for line in lines)
    assert lines[0].startswith(f"fauxrdma: error: {path}:{position}: "), lines[0]
    assert words in lines[0]
    with pytest.raises(ConfigError) as refused:
        load_topology(str(path))
    assert str(refused.value).startswith(f"{path}:{position}: ")
    assert "\n" not in str(refused.value)


NASTY = [
    "{", "}", "[", "]", ":", "-", "#", "'", '"', "&a ", "*a", "<<: ", "!x ", "|", ">", "?", ",", "\t", "---\n", "...\n",
    "%YAML 1.1\n", "\x00", "\u2028", "\ufeff", "\ud800", "~", "null", "true", "1e400", ".nan", "-.inf", "0x1F", "1_0",
    "1:30", "2001-01-01", "9" * 400, "9" * 3000, "[" * 40, "{a: " * 40, "- " * 40, "0Gbps", "-1m", "200GBps", "{1..8}",
    "{8..1}", "{1..2..0}", "{1,2}", "n*.hca*", "leaf*", "spine{1..2}", "n9.hca9", "join: mesh", "count: 4096", "\r",
    "gpus_per_hca: 0", "gpus: 64", "tier: core", "ports: 2", "{}", "[]", '""', "é", "n{0..1}.hca{1..2}", "* ", "!!int ",
    '"\\Uffffffff"', '"\\x"', "=", "@", "`",
]  # fmt: skip


@st.composite
def mutilated(draw: st.DrawFn) -> str:
    """A good file with some characters, words or lines lost, doubled, exchanged or replaced by something nasty."""
    text = draw(st.sampled_from(EXAMPLES)).read_text()
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["insert", "cut", "line", "word", "exchange"]))
        lines = text.splitlines(keepends=True) or [""]
        at = draw(st.integers(0, len(text)))
        row = draw(st.integers(0, len(lines) - 1))
        if kind == "insert":
            text = text[:at] + draw(st.sampled_from(NASTY)) + text[at:]
        elif kind == "cut":
            text = text[:at] + text[at + draw(st.integers(1, 20)) :]
        elif kind == "line":
            text = "".join(lines[:row] + lines[row : row + 1] * draw(st.sampled_from([0, 2])) + lines[row + 1 :])
        elif kind == "exchange":
            other = draw(st.integers(0, len(lines) - 1))
            lines[row], lines[other] = lines[other], lines[row]
            text = "".join(lines)
        else:
            words = list(re.finditer(r"[^\s{},:\[\]]+", text))
            if words:
                word = draw(st.sampled_from(words))
                text = text[: word.start()] + draw(st.sampled_from(NASTY)) + text[word.end() :]
    return text


@given(mutilated())
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_whatever_becomes_of_a_file_it_is_a_fabric_or_a_message_with_a_place(tmp_path: Path, text: str) -> None:
    path = tmp_path / "fabric.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        made = load_topology(str(path))
    except ConfigError as error:
        message = str(error)
        match = re.match(rf"{re.escape(str(path))}:(\d+):(\d+): \S", message)
        assert match is not None, message
        assert int(match[1]) <= len(text.splitlines()) + 1
        assert "\n" not in message
    else:
        assert isinstance(made, Topology)
        assert Topology.from_dict(made.to_dict()) == made
