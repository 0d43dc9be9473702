"""A program that polls the last byte of a WRITE is found out over two daemons, too, unless the profile says else."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from pairs import End, connect

from fauxrdma.ib.enums import IBV_WC_SUCCESS
from fauxrdma.lab.local import LocalLab

LENGTH = 16_384
WRITES = 2_000


def torn_writes(a: End, b: End, count: int, enough: int = 1) -> int:
    """Write the number of the round over all of b's memory, wait for its last byte, and count how often another byte
    was not there then. Stops at `enough`. What a completion tells of must be there."""
    torn = 0
    give_up = time.monotonic() + 20
    for i in range(1, count + 1):
        mark = i % 251 + 1
        a.mr.view[:LENGTH] = bytes((mark,)) * LENGTH
        there = b.mr.view
        a.qp.post_send(a.write(b, LENGTH, i))
        while there[LENGTH - 1] != mark:
            assert time.monotonic() < give_up
        torn += there[0] != mark
        (wc,) = a.wait()
        assert (wc.wr_id, wc.status) == (i, IBV_WC_SUCCESS)
        assert bytes(there[:LENGTH]) == bytes((mark,)) * LENGTH
        if torn >= enough:
            break
    return torn


def test_the_last_byte_may_come_before_the_first(pair: tuple[End, End]) -> None:
    assert torn_writes(*pair, WRITES)


@pytest.fixture(scope="module")
def in_order() -> Iterator[LocalLab]:
    with LocalLab("seed-rail8", nodes=2, gpus=1, clock="none", profile="ibta,write_bytes_in_order=yes") as lab:
        yield lab


def test_a_profile_may_be_in_order(in_order: LocalLab) -> None:
    a, b = End(in_order, 0), End(in_order, 1)
    connect(a, b)
    assert torn_writes(a, b, 300) == 0
    a.close()
    b.close()
