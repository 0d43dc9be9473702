"""Dealing a flow's packets over the ways of its cycle, against dealing them one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fauxrdma.runtime.packet_dealer import PacketDealer

MTU_CODE, MTU = 3, 1024


def one_by_one(frames: list[int], ways: int, lost: set[int]) -> tuple[list[int], list[bool]]:
    counts = [0] * ways
    verdicts = []
    at = 0
    for frame in frames:
        left, dead = frame, False
        while left:
            dead |= at in lost
            counts[at] += min(left, MTU)
            left -= min(left, MTU)
            at = (at + 1) % ways
        verdicts.append(dead)
    return counts, verdicts


@given(
    st.lists(st.integers(1, 20 * MTU) | st.sampled_from([MTU, 4 * MTU, 12 * MTU]), max_size=30),
    st.integers(2, 9),
    st.data(),
)
def test_bytes_and_losses_are_those_of_single_packets(frames: list[int], ways: int, data: st.DataObject) -> None:
    lost = data.draw(st.sets(st.integers(0, ways - 1)))
    dealer = PacketDealer(ways)
    dealer.set_ways(ways, lost)
    verdicts = [dealer.deal(frame, MTU_CODE) for frame in frames]
    assert (dealer.nbytes, verdicts) == one_by_one(frames, ways, lost)


def test_what_was_taken_is_not_counted_again_and_the_turns_go_on() -> None:
    dealer = PacketDealer(3)
    dealer.deal(4 * MTU, MTU_CODE)
    assert dealer.take() == [2 * MTU, MTU, MTU]
    dealer.deal(MTU + 1, MTU_CODE)
    assert dealer.take() == [0, MTU, 1]


def test_packets_without_payload_take_turns_of_their_own() -> None:
    """Else the bytes by way would depend on how many acknowledgements went between them."""
    dealer = PacketDealer(2)
    dealer.set_ways(2, [1])
    assert [dealer.deal(0, MTU_CODE) for _ in range(4)] == [False, True, False, True]
    assert not dealer.deal(MTU, MTU_CODE)
    assert dealer.take() == [MTU, 0]


def test_another_number_of_ways_begins_a_new_cycle() -> None:
    dealer = PacketDealer(4)
    dealer.deal(MTU, MTU_CODE)
    assert dealer.take() == [MTU, 0, 0, 0]
    dealer.set_ways(3, [])
    dealer.deal(MTU, MTU_CODE)
    assert dealer.take() == [MTU, 0, 0]


def test_a_datagram_is_one_packet() -> None:
    dealer = PacketDealer(2)
    dealer.deal(4096, 0)
    assert dealer.take() == [4096, 0]
