"""How fast a flow is on clock paced by the memories at its ends: the model's figures, by hand, over real daemons.

HCAs 1 and 2 of a host are on PCIe switch 0 with GPUs 0 and 1; its uplink to host memory carries 252 Gb/s each way in
packets of 256 bytes with 24 around them, their cables 200 Gb/s in packets of 4096 with 26.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from paced_flows import Stream, settled

from fauxrdma.lab.local import LocalLab

pytestmark = pytest.mark.alone

HALF_UPLINK = (252 * 256 / 280 / 2) / (200 * 4096 / 4122)
"""What two flows over one uplink get of a cable each."""
TOLERANCE = 0.06

A, B = (0, "hca1"), (1, "hca1")
A2, B2 = (0, "hca2"), (1, "hca2")


@pytest.fixture(scope="module")
def lab() -> Iterator[LocalLab]:
    with LocalLab("fat-tree", nodes=2, gpus=4, clock="paced", dilation=3000) as running:
        yield running


@pytest.fixture(scope="module")
def no_gpudirect() -> Iterator[LocalLab]:
    with LocalLab("fat-tree,gpudirect=off", nodes=2, gpus=2, clock="paced", dilation=3000) as running:
        yield running


def test_gpus_are_read_at_the_rate_of_the_cables(lab: LocalLab) -> None:
    settled(lambda: [Stream(lab, A, B, [0], [0]), Stream(lab, A2, B2, [1], [1])], [1, 1], TOLERANCE)


def test_flows_from_host_memory_share_the_uplink(lab: LocalLab) -> None:
    settled(lambda: [Stream(lab, A, B, [None], [0]), Stream(lab, A2, B2, [None], [1])], [HALF_UPLINK] * 2, TOLERANCE)


def test_flows_into_host_memory_share_the_uplink(lab: LocalLab) -> None:
    settled(lambda: [Stream(lab, A, B, [0], [None]), Stream(lab, A2, B2, [1], [None])], [HALF_UPLINK] * 2, TOLERANCE)


def test_responses_come_from_the_memory_that_is_read(lab: LocalLab) -> None:
    def reads(out: tuple[int | None, int | None]) -> list[Stream]:
        return [Stream(lab, A, B, out[:1], [0], read=True), Stream(lab, A2, B2, out[1:], [1], read=True)]

    settled(lambda: reads((None, None)), [HALF_UPLINK] * 2, TOLERANCE)
    settled(lambda: reads((0, 1)), [1, 1], TOLERANCE)


def test_gpus_of_another_switch_are_reached_over_both_uplinks(lab: LocalLab) -> None:
    settled(lambda: [Stream(lab, A, B, [2], [0]), Stream(lab, A2, B2, [3], [1])], [HALF_UPLINK] * 2, TOLERANCE)


def test_without_gpudirect_what_comes_is_in_the_way_of_what_goes(no_gpudirect: LocalLab) -> None:
    """Each crosses the uplink up and down; from and to host memory each goes one way only."""
    both = [(A, B), (B2, A2)]
    settled(lambda: [Stream(no_gpudirect, *ends, [gpu], [gpu]) for gpu, ends in enumerate(both)],
            [HALF_UPLINK] * 2, TOLERANCE)  # fmt: skip
    settled(lambda: [Stream(no_gpudirect, *ends, [None], [None]) for ends in both], [1, 1], TOLERANCE)


def test_a_queue_pair_that_turns_to_another_target_changes_its_rate(lab: LocalLab) -> None:
    """Two streams into host memory share its uplink until both go on into GPUs."""

    def open_streams() -> list[Stream]:
        return [Stream(lab, A, B, [0, 0], [None, 0]), Stream(lab, A2, B2, [1, 1], [None, 1])]

    settled(open_streams, [HALF_UPLINK, 1] * 2, 0.05, messages=48)


def test_a_queue_pair_that_turns_to_another_source_changes_its_rate(lab: LocalLab) -> None:
    def open_streams() -> list[Stream]:
        return [Stream(lab, A, B, [0, None], [0, 0]), Stream(lab, A2, B2, [1, None], [1, 1])]

    settled(open_streams, [1, HALF_UPLINK] * 2, 0.05, messages=48)
