"""Ranks of one node are processes that share memory: what the others see when one is killed or stopped."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator

import numpy as np
import pytest
from busy_ranks import busy_ranks
from rank_threads import all_well, run_ranks

from fauxrdma.lab.local import LocalLab


@pytest.fixture(scope="module", params=["none", "paced"])
def lab(request: pytest.FixtureRequest) -> Iterator[LocalLab]:
    with LocalLab("seed-rail8", nodes=1, gpus=3, clock=request.param) as running:
        yield running


def test_a_killed_rank_is_noticed_at_once_and_named(lab: LocalLab) -> None:
    with busy_ranks(lab, elements=1 << 16, timeout_s=600) as ranks:
        ranks[1].kill()
        # Long before the timeout, or this does not return in time.
        texts = [rank.communicate(timeout=60)[0] for rank in ranks]
        assert [rank.returncode for rank in ranks] == [7, -signal.SIGKILL, 7]
        witness = re.compile(
            r"rank \d lost rank 1: shared memory \(path n0\.gpu\d->.*\) with process "
            + str(ranks[1].pid)
            + r", which has ended during all_reduce of 256 KiB \(call \d+, after \d+\.\d s\)"
        )
        assert any(witness.search(text) for text in texts), texts
        assert all("lost rank" in texts[rank] for rank in (0, 2)), texts
    # Nothing of it is in the way of the next communicator on the same daemon.
    all_well(run_ranks(lab, 3, lambda c: c.all_reduce(np.ones(1000))))


def test_a_stopped_rank_is_waited_for_until_the_timeout(lab: LocalLab) -> None:
    with busy_ranks(lab, elements=1 << 16, timeout_s=4) as ranks:
        ranks[2].send_signal(signal.SIGSTOP)
        texts = [ranks[rank].communicate(timeout=60)[0] for rank in (0, 1)]
        assert [ranks[rank].returncode for rank in (0, 1)] == [7, 7]
        late = re.compile(
            r"rank \d: all_reduce of 256 KiB not done after 4 s, waiting for .* rank \d over shared memory "
            r"\(path n0\.gpu\d->.*\) with process \d+ \(call \d+\)"
        )
        assert any(late.search(text) for text in texts), texts
