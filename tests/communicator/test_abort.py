"""A communicator is aborted, in the middle of a call and between calls, and another takes its place."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
from rank_threads import open_communicator

from fauxrdma.communicator import Communicator
from fauxrdma.errors import CollectiveError
from fauxrdma.lab.local import LocalLab
from fauxrdma.lab.rank_threads import ThreadStore

BOUND_S = 20.0
"""Peers hear of it one after another, within the retries of their queue pairs."""


def on_threads(jobs: list[Any]) -> None:
    threads = [threading.Thread(target=job, daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize("share_memory", [True, False])
def test_all_ranks_end_and_rebuild(lab: LocalLab, share_memory: bool) -> None:
    """Rank 0 is aborted while it waits for rank 3, which comes too late. All then make a new communicator."""
    store = ThreadStore()
    errors: list[str] = [""] * 4
    ended = [0.0] * 4
    aborted_at = [0.0]
    given_up = threading.Event()
    results: list[Any] = [None] * 4

    def rank(number: int) -> None:
        context, communicator = open_communicator(lab, number, 4, store, share_memory=share_memory)
        communicator.all_reduce(np.ones(10))
        if number == 0:

            def abort() -> None:
                aborted_at[0] = time.monotonic()
                communicator.abort("enough of it")

            threading.Timer(0.3, abort).start()
        try:
            if number == 3:
                assert given_up.wait(30)
            communicator.all_reduce(np.ones(100_000))
        except CollectiveError as error:
            errors[number], ended[number] = str(error), time.monotonic()
            if number == 0:
                given_up.set()
        with pytest.raises(CollectiveError, match="broken since an earlier error"):
            communicator.barrier()
        communicator.close()
        again = Communicator(number, 4, store, context=context, prefix="again/", gpu=lab.placement.places[number].gpu)
        data = np.full(1000, float(number))
        again.all_reduce(data)
        results[number] = data
        again.close()
        context.close()

    on_threads([lambda number=number: rank(number) for number in range(4)])
    assert errors[0].startswith("rank 0: all_reduce of 781 KiB ended after 0.")
    assert errors[0].endswith("(call 1): enough of it")
    assert ended[0] - aborted_at[0] < 2.0
    assert all(errors), errors
    assert max(ended) - aborted_at[0] < BOUND_S
    assert all((result == 6).all() for result in results)


def test_between_calls_and_twice(lab: LocalLab) -> None:
    store = ThreadStore()
    context, communicator = open_communicator(lab, 0, 1, store)
    communicator.all_reduce(np.ones(3))
    communicator.abort()
    communicator.abort("again")
    with pytest.raises(CollectiveError, match="broken since an earlier error: the communicator was aborted"):
        communicator.barrier()
    communicator.close()
    communicator.abort()
    context.close()


def test_sends_and_receives_end_too(lab: LocalLab) -> None:
    store = ThreadStore()
    both = [open_communicator(lab, rank, 2, store) for rank in range(2)]
    pending = both[0][1].irecv(np.empty(4), 1)
    both[0][1].abort("enough")
    with pytest.raises(CollectiveError, match="enough"):
        pending.wait()
    for context, communicator in both:
        communicator.close()
        context.close()
