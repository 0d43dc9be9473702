"""How ranks part: one that closes late has nothing to repeat to one that is gone."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from rank_threads import all_well, run_ranks

from fauxrdma.communicator import Communicator
from fauxrdma.lab.local import LocalLab


@pytest.mark.parametrize("late", [0, 1])
def test_a_rank_that_closes_after_its_peer_repeats_nothing(late: int) -> None:
    gone = threading.Event()

    def work(communicator: Communicator) -> None:
        array = np.full(1 << 16, communicator.rank + 1, dtype=np.float32)
        communicator.all_reduce(array)
        assert (array == 3).all()
        if communicator.rank == late:
            assert gone.wait(20)
        communicator.close()
        if communicator.rank != late:
            gone.set()

    with LocalLab("fat-tree", nodes=2, gpus=1, clock="none") as lab:
        lab.report(reset=True)
        all_well(run_ranks(lab, 2, work))
        assert lab.report().retransmits == 0
