"""Names by pattern: what ranges and stars stand for, and how the two ends of a cable meet."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fauxrdma.topology.patterns import (
    MAX_RANGE,
    PatternError,
    expand_name,
    hca_end,
    pairs,
    slip_in_range,
    switch_end,
    values,
)

LEAVES = [f"leaf{n}" for n in range(1, 5)]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("leaf1", ["leaf1"]),
        ("leaf{1..3}", ["leaf1", "leaf2", "leaf3"]),
        ("leaf{08..11}", ["leaf08", "leaf09", "leaf10", "leaf11"]),
        ("leaf{1..7..3}", ["leaf1", "leaf4", "leaf7"]),
        ("leaf{4,1}", ["leaf4", "leaf1"]),
        ("{a,b}-leaf{1..2}", ["a-leaf1", "b-leaf1", "a-leaf2", "b-leaf2"]),
    ],
)
def test_names_of_switches(text: str, names: list[str]) -> None:
    assert expand_name(text) == names


def test_rails_go_in_step_and_stars_each_with_each() -> None:
    rails = list(pairs(hca_end("n*.hca{1..2}", range(2), 3), switch_end("leaf{3..4}", LEAVES), mesh=False))
    assert rails == [("n0.hca1", "leaf3"), ("n1.hca1", "leaf3"), ("n0.hca2", "leaf4"), ("n1.hca2", "leaf4")]
    blocks = list(pairs(hca_end("n{0..1}.hca*", range(2), 2), switch_end("leaf{1..2}", LEAVES), mesh=False))
    assert blocks == [("n0.hca1", "leaf1"), ("n0.hca2", "leaf1"), ("n1.hca1", "leaf2"), ("n1.hca2", "leaf2")]
    pod = list(pairs(hca_end("n{4..5}.hca{1..2}", range(9), 2), switch_end("leaf{1..2}", LEAVES), mesh=False))
    assert pod == [("n4.hca1", "leaf1"), ("n5.hca1", "leaf1"), ("n4.hca2", "leaf2"), ("n5.hca2", "leaf2")]
    mesh = list(pairs(switch_end("leaf{1..2}", LEAVES), switch_end("spine{1..2}", ["spine1"]), mesh=True))
    assert mesh == [("leaf1", "spine1"), ("leaf1", "spine2"), ("leaf2", "spine1"), ("leaf2", "spine2")]
    every = list(pairs(switch_end("leaf*", LEAVES), switch_end("top", ["top"]), mesh=False))
    assert every == [(leaf, "top") for leaf in LEAVES]
    one_range = list(pairs(switch_end("leaf{1..2}", LEAVES), switch_end("leaf{3..4}", LEAVES), mesh=False))
    assert one_range == [("leaf1", "leaf3"), ("leaf2", "leaf4")]


@pytest.mark.parametrize(
    ("text", "fixed"),
    [("leaf[1-8]", "leaf{1..8}"), ("n*.hca{1:8}", "n*.hca{1..8}"), ("leaf{1...8}", "leaf{1..8}"), ("leaf1", None)],
)
def test_other_ways_to_write_a_range_are_recognised(text: str, fixed: str | None) -> None:
    assert slip_in_range(text) == fixed


@given(st.integers(0, 9999), st.integers(0, 9999), st.integers(0, 99))
def test_a_count_is_a_range_or_says_what_is_wrong(first: int, last: int, step: int) -> None:
    text = f"{first}..{last}..{step}"
    if first > last or step == 0 or (last - first) // step >= MAX_RANGE:
        with pytest.raises(PatternError):
            values(text)
    else:
        assert [int(value) for value in values(text)] == list(range(first, last + 1, step))


def test_more_names_than_any_fabric_has_are_refused() -> None:
    with pytest.raises(PatternError, match="1000000 names"):
        expand_name("a{1..1000}b{1..1000}")
    with pytest.raises(PatternError, match="without its partner"):
        expand_name("leaf{1..2")
    with pytest.raises(PatternError, match="one has 2 values and the other 3"):
        list(pairs(switch_end("leaf{1..2}", LEAVES), switch_end("leaf{1..3}", LEAVES), mesh=False))
