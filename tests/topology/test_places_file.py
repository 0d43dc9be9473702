"""Files of places: what they may say, and where their mistakes are shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fauxrdma.errors import ConfigError
from fauxrdma.topology.loading import load_topology
from fauxrdma.topology.placement import choose_placement, deal
from fauxrdma.topology.placement.places_file import places_text, read_places_text
from fauxrdma.topology.rank_places import RankPlace

TOPOLOGY = load_topology("seed-rail8", 4)


def test_numbers_names_comments_and_empty_lines() -> None:
    text = "# who sits where\n0 0\n\nn3 gpu7 hca8  # the last one\r\n  1.2\n2, 4, 9\n"
    assert read_places_text("p", text, TOPOLOGY) == (
        RankPlace(0, 0, 1),
        RankPlace(3, 7, 8),
        RankPlace(1, 2, 3),
        RankPlace(2, 4, 9),
    )


@given(
    how=st.sampled_from(["block", "random"]), nodes=st.integers(1, 4), gpus=st.integers(1, 8), seed=st.integers(0, 99)
)
def test_what_is_written_is_read_back(how: str, nodes: int, gpus: int, seed: int) -> None:
    places = deal(TOPOLOGY, how, range(nodes), gpus, seed)
    assert read_places_text("p", places_text(places), TOPOLOGY) == places


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"p:1:1: no rank has a place: write one line `node gpu \[hca\]`"),
        ("# only this\n", r"p:1:1: no rank has a place"),
        ("0 0\n1\n", r"p:2:1: '1' is not enough"),
        ("0 0 1 7\n", r"p:1:7: '7' is one too many"),
        ("0 0\n  4 0\n", r"p:2:3: there is no node 4: they are 0 to 3; for it, build the fabric with --nodes 5"),
        ("0 8\n", r"p:1:3: there is no GPU 8: they are 0 to 7 \(did you mean 7\?\)"),
        ("0 1 0\n", r"p:1:5: there is no HCA 0: they are 1 to 9 \(GPU 1 has hca2\)"),
        ("0 1 10\n", r"p:1:5: there is no HCA 10"),
        ("0 gpx1\n", r"p:1:3: 'gpx1' is no GPU: it is a number, as 1 \(did you mean gpu1\?\)"),
        ("0 hca1\n", r"p:1:3: 'hca1' is no GPU: here stands the GPU .*did you mean gpu1\?"),
        ("node: 0 1\n", r"p:1:1: 'node:' is no node"),
        ("-1 0\n", r"p:1:1: '-1' is no node"),
        ("0 0\n1 3\n0 0\n", r"p:3:1: GPU 0 of node 0 has the rank of line 1 already.*GPU 1 of node 0 is free"),
        ("0 8\n0 9\n7 7\n", r"p:1:3: there is no GPU 8: .* \(and 2 more\)"),
    ],
)
def test_mistakes_are_shown_where_they_are(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_places_text("p", text, TOPOLOGY)


@given(st.text(max_size=80))
def test_any_text_gives_places_or_an_error_with_a_position(text: str) -> None:
    complaint = ""
    places: tuple[RankPlace, ...] = ()
    try:
        places = read_places_text("p", text, TOPOLOGY)
    except ConfigError as error:
        complaint = str(error)
    assert bool(places) != bool(re.match(r"p:\d+:\d+: .", complaint))
    assert len({(place.node, place.gpu) for place in places}) == len(places)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.places: no such file"):
        choose_placement(str(tmp_path / "nothing.places"), TOPOLOGY, 1)
    (tmp_path / "latin").write_bytes(b"0 0 # caf\xe9")
    with pytest.raises(ConfigError, match="not a text file in UTF-8"):
        choose_placement(f"file:{tmp_path / 'latin'}", TOPOLOGY, 1)
    (tmp_path / "big").write_text("#" * (1 << 21))
    with pytest.raises(ConfigError, match="larger than"):
        choose_placement(f"file:{tmp_path / 'big'}", TOPOLOGY, 1)
    with pytest.raises(ConfigError, match="cannot be read"):
        choose_placement(f"file:{tmp_path}", TOPOLOGY, 1)


def test_a_file_may_load_nodes_unevenly(tmp_path: Path) -> None:
    (tmp_path / "uneven").write_text("2 0\n0 1\n2 5\n")
    placement = choose_placement(f"file:{tmp_path / 'uneven'}", TOPOLOGY, 1)
    assert (placement.nodes, placement.active_gpus) == ([2, 0], 6)
    assert [placement.environment(rank)["LOCAL_WORLD_SIZE"] for rank in range(3)] == ["2", "1", "2"]
    assert placement.environment(2)["LOCAL_RANK"] == "1"
