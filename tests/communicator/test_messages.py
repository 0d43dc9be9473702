"""Sends and receives between ranks over real daemons."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from rank_threads import all_well, run_ranks

from fauxrdma.communicator import Communicator
from fauxrdma.errors import CollectiveError, LocalProtocolError
from fauxrdma.lab.local import LocalLab


def test_rings_of_any_size_in_both_orders(lab: LocalLab) -> None:
    def work(communicator: Communicator) -> bool:
        rank, n = communicator.rank, communicator.world_size
        for size in (0, 1, 100, 10_000, 1_000_000):
            right, left = (rank + 1) % n, (rank - 1) % n
            got = np.zeros(size)
            sending = communicator.isend(np.full(size, float(rank)), right, tag=size)
            assert communicator.recv(got, left, tag=size) == left
            sending.wait()
            assert (got == left).all()
        return True

    assert all(all_well(run_ranks(lab, 4, work)))


def test_tags_may_be_asked_for_in_any_order_and_beside_collectives(lab: LocalLab) -> None:
    def work(communicator: Communicator) -> Any:
        large = 500_000
        if communicator.rank == 0:
            sends = [communicator.isend(np.full(large, float(tag)), 1, tag) for tag in range(3)]
            whole = np.ones(1000)
            communicator.all_reduce(whole)
            for pending in sends:
                pending.wait()
            return whole[0]
        whole = np.ones(1000)
        communicator.all_reduce(whole)
        got = {}
        for tag in (2, 0, 1):
            array = np.zeros((large // 10, 10)).T  # not contiguous
            communicator.recv(array, 0, tag)
            got[tag] = set(array.ravel().tolist())
        return got

    assert all_well(run_ranks(lab, 2, work)) == [2.0, {0: {0.0}, 1: {1.0}, 2: {2.0}}]


def test_any_source(lab: LocalLab) -> None:
    def work(communicator: Communicator) -> Any:
        if communicator.rank:
            communicator.send(np.full(5, communicator.rank, "i2"), 0, tag=4)
            return None
        got = {}
        for _ in range(3):
            array = np.zeros(5, "i2")
            source = communicator.recv(array, tag=4)
            got[source] = array.tolist()
        return got

    assert all_well(run_ranks(lab, 4, work))[0] == {rank: [rank] * 5 for rank in (1, 2, 3)}


def test_a_mismatch_is_told_to_both(lab: LocalLab) -> None:
    def work(communicator: Communicator) -> str:
        sends = communicator.rank == 0
        array = np.zeros(100_000, "f4" if sends else "i4")
        pending = communicator.isend(array, 1) if sends else communicator.irecv(array, 0)
        with pytest.raises(CollectiveError) as caught:
            pending.wait()
        array = np.ones(10)
        communicator.all_reduce(array)  # the communicator is whole
        return str(caught.value)

    text = "rank 0 sends 400000 bytes of <f4 under tag 0, but rank 1 receives 100000 elements of <i4 under tag 0"
    assert all_well(run_ranks(lab, 2, work)) == [text, text]


def test_a_receive_that_nobody_answers_ends_in_time_and_says_what_it_was(lab: LocalLab) -> None:
    def work(communicator: Communicator) -> str:
        began = time.monotonic()
        source = 1 - communicator.rank if communicator.rank else None
        with pytest.raises(CollectiveError) as caught:
            communicator.irecv(np.zeros(3, "f4"), source, tag=8, timeout_s=1.0).wait()
        assert 0.9 < time.monotonic() - began < 5
        communicator.barrier()  # who leaves first would be the other's reason
        return str(caught.value)

    texts = all_well(run_ranks(lab, 2, work))
    assert texts[0] == "rank 0: 3 elements of <f4 under tag 8 with any rank not done after 1 s"
    assert texts[1].startswith("rank 1: 3 elements of <f4 under tag 8 with rank 0")


@pytest.mark.parametrize(("share_memory", "over"), [(True, "shared memory (path n0.gpu"), (False, "queue pair")])
def test_a_rank_that_leaves_fails_who_waits_for_it(lab: LocalLab, share_memory: bool, over: str) -> None:
    def work(communicator: Communicator) -> str | None:
        array = np.zeros(4)
        if communicator.rank == 0:
            communicator.send(array, 1)
            return None
        communicator.recv(array, 0)
        with pytest.raises(CollectiveError) as caught:
            communicator.recv(array, 0)
        return str(caught.value)

    outcome = all_well(run_ranks(lab, 2, work, timeout_s=30.0, share_memory=share_memory))[1]
    assert outcome.startswith(f"rank 1 lost rank 0: {over}")


def test_refusals(lab: LocalLab) -> None:
    def work(communicator: Communicator) -> bool:
        me = communicator.rank
        for call, text in (
            (lambda: communicator.send(np.ones(1), 2), "cannot send to rank 2: it is not a rank of 2"),
            (lambda: communicator.recv(np.ones(1), me), "that is this rank"),
            (lambda: communicator.send(np.array([object()]), 1 - me), "hold references"),
            (lambda: communicator.recv(np.broadcast_to(np.ones(1), 3), 1 - me), "read-only"),
        ):
            with pytest.raises(LocalProtocolError, match=text):
                call()
        return True

    assert all(all_well(run_ranks(lab, 2, work)))
