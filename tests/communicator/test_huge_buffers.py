"""Buffers past 2 GiB, where 32-bit offsets and lengths end: what is at the edges arrives, and nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
from rank_threads import all_well, run_ranks

from fauxrdma.communicator import Communicator
from fauxrdma.lab.local import LocalLab

COUNT = (1 << 31) + 4097
PLACES = [0, 1, (1 << 31) - 1, 1 << 31, (1 << 31) + 1, COUNT - 1]


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "gpus"), [(2, 1), (1, 2)])
def test_all_reduce_and_broadcast(nodes: int, gpus: int) -> None:
    def work(communicator: Communicator) -> None:
        array = np.zeros(COUNT, np.int8)
        array[PLACES] = np.arange(1, 7) * (communicator.rank + 1)
        communicator.all_reduce(array)
        assert array[PLACES].tolist() == [3, 6, 9, 12, 15, 18]
        assert np.count_nonzero(array) == len(PLACES)
        if communicator.rank:
            array[PLACES] = 0
        communicator.broadcast(array, 0)
        assert array[PLACES].tolist() == [3, 6, 9, 12, 15, 18]
        assert np.count_nonzero(array) == len(PLACES)

    with LocalLab("fat-tree", nodes=nodes, gpus=gpus, clock="none") as lab:
        all_well(run_ranks(lab, 2, work, join_s=100.0))
