"""The paced clock keeps the model's rates: achieved against modelled, in fabric time, over real daemons."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from paced_flows import Stream, settled

from fauxrdma.lab.local import LocalLab

pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def lab() -> Iterator[LocalLab]:
    with LocalLab("seed-rail8", nodes=2, gpus=8, clock="paced", dilation=3000) as running:
        yield running


def keeps(lab: LocalLab, ends: list[tuple[int, int]], share: float, tolerance: float) -> None:
    """Streams from rail to rail, between the GPUs of those rails, get `share` of their paths' rates."""

    def open_streams() -> list[Stream]:
        return [Stream(lab, (0, f"hca{a}"), (1, f"hca{b}"), [a - 1], [b - 1]) for a, b in ends]

    settled(open_streams, [share] * len(ends), tolerance)


def rails(count: int) -> list[tuple[int, int]]:
    return [(i % 8 + 1, i % 8 + 1) for i in range(count)]


def test_one_flow_runs_at_the_path_rate(lab: LocalLab) -> None:
    keeps(lab, rails(1), 1.0, 0.02)


def test_four_flows_on_four_rails_run_at_the_path_rate(lab: LocalLab) -> None:
    keeps(lab, rails(4), 1.0, 0.02)


def test_sixteen_flows_two_to_a_rail_get_half_each(lab: LocalLab) -> None:
    keeps(lab, rails(16), 0.5, 0.02)


def test_flows_that_share_one_link_get_fair_shares(lab: LocalLab) -> None:
    keeps(lab, [(1, 1), (2, 1), (3, 1)], 1 / 3, 0.03)
