"""What survivors see when a daemon or a rank dies in the middle of a collective, and what is left afterwards."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from busy_ranks import busy_ranks
from rank_threads import all_well, open_communicator, run_ranks

from fauxrdma.communicator import Communicator
from fauxrdma.errors import CollectiveError
from fauxrdma.lab.local import LocalLab
from fauxrdma.lab.rank_threads import ThreadStore

BOUND_S = 20.0
"""Four ranks hear of a death one after another, each within the retries (4 x 0.5 s) and a probe (0.5 s)."""


def busy_until_it_breaks(
    communicator: Communicator, warm: threading.Barrier, kill: threading.Event
) -> tuple[str, float]:
    data = np.ones(1 << 20, np.float32)
    communicator.all_reduce(data)
    warm.wait(30)
    try:
        while True:
            communicator.all_reduce(data)
            kill.set()
    except CollectiveError as error:
        return str(error), time.monotonic()


@pytest.mark.parametrize("clock", ["none", "paced"])
def test_daemon_killed_in_mid_transfer(clock: str, tmp_path: Path) -> None:
    with LocalLab("seed-rail8", nodes=2, gpus=2, clock=clock, log_dir=tmp_path) as lab:
        warm, running = threading.Barrier(4), threading.Event()
        died: list[float] = []

        def killer() -> None:
            assert running.wait(30)
            os.kill(lab.daemons[1], signal.SIGKILL)
            died.append(time.monotonic())

        thread = threading.Thread(target=killer)
        thread.start()
        outcomes = all_well(run_ranks(lab, 4, lambda c: busy_until_it_breaks(c, warm, running), timeout_s=60))
        thread.join(10)
        for rank, (text, when) in enumerate(outcomes):
            assert when - died[0] < BOUND_S, f"rank {rank} took {when - died[0]:.1f} s: {text}"
            assert f"rank {rank}" in text
        # Ranks 0 and 1 live on the surviving node. One of them at least talked to the dead node directly.
        direct = [text for text, _ in outcomes[:2] if "lost rank 2" in text or "lost rank 3" in text]
        assert direct, outcomes
        for text in direct:
            assert "queue pair 0x" in text
            assert "RETRY_EXC_ERR" in text
            assert "path n0." in text
        # Ranks 2 and 3 have lost their own daemon.
        for text, _ in outcomes[2:]:
            assert "daemon" in text, text


def test_rank_killed_leaves_the_fabric_usable(tmp_path: Path) -> None:
    with LocalLab("fat-tree", nodes=2, gpus=2, clock="none", log_dir=tmp_path) as lab:
        with busy_ranks(lab, elements=1 << 18, timeout_s=60) as processes:
            processes[2].kill()
            texts = [process.communicate(timeout=60)[0] for process in processes]
        assert [process.returncode for process in processes] == [7, 7, -signal.SIGKILL, 7]
        # Rank, peer, queue pair, links, what for, which call, and when.
        words = (
            r"rank 1 lost rank 2: queue pair 0x[0-9a-f]+ \(path n0\.gpu1->\S+ .*->n1\.gpu0\) completed with "
            r"RETRY_EXC_ERR during all_reduce of 1 MiB \(call \d+, after \d+\.\d s\)"
        )
        assert any(re.search(words, text) for text in texts), texts
        # The daemons have released what the dead rank held: the same HCAs serve the next job.
        all_well(run_ranks(lab, 4, lambda c: c.all_reduce(np.ones(1000))))


def test_a_broken_communicator_still_closes_cleanly(lab: LocalLab) -> None:
    store = ThreadStore(timeout_s=0.2)
    context, communicator = open_communicator(lab, 0, 2, store)
    with pytest.raises(CollectiveError, match="rank 0 waited for rank 1 to say where it runs"):
        communicator.all_reduce(np.ones(3))
    with pytest.raises(CollectiveError, match="broken since an earlier error: rank 0 waited"):
        communicator.barrier()
    communicator.close()
    context.close()
