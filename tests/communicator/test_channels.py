"""Collectives cut over channels, each on HCAs and around a ring of its own: right results whatever the policy."""

from __future__ import annotations

import numpy as np
import pytest
from rank_threads import all_well, run_ranks

from fauxrdma.communicator import Communicator
from fauxrdma.errors import CollectiveError, ConfigError
from fauxrdma.lab.local import LocalLab

SIZES = (0, 1, 40_000, 1_000_001)


@pytest.mark.parametrize(("n", "channels", "cross_nic"), [(4, 2, 0), (4, 4, 1), (4, 2, 2), (3, 3, 0), (4, 1, 0)])
def test_right_results(lab: LocalLab, n: int, channels: int, cross_nic: int) -> None:
    def work(communicator: Communicator) -> None:
        rank = communicator.rank
        for size in SIZES:
            for algorithm in ("ring", "double-tree", "halving-doubling"):
                mine = np.arange(size, dtype=np.int64) * (rank + 1)
                communicator.all_reduce(mine, algorithm=algorithm)
                assert (mine == np.arange(size, dtype=np.int64) * (n * (n + 1) // 2)).all()
            whole = np.arange(n * size, dtype=np.int32).reshape(n, size)
            part = np.empty(size, np.int32)
            communicator.reduce_scatter(part, whole)
            assert (part == whole[rank] * n).all()
            gathered = np.empty((n, size), np.int32)
            communicator.all_gather(gathered, whole[rank])
            assert (gathered == whole).all()
            sent = np.full(size, rank, np.int16)
            communicator.broadcast(sent, root=1)
            assert (sent == 1).all()
            summed = np.full(size, rank, np.int16)
            communicator.reduce(summed, root=2, op="max")
            assert (summed == (n - 1 if rank == 2 else rank)).all()
            # What is not cut goes over the main mesh, in between.
            out = np.empty(n * size)
            communicator.all_to_all(out, np.repeat(rank * 10.0 + np.arange(n), size))
            assert (out == np.repeat(np.arange(n) * 10.0 + rank, size)).all()
            communicator.barrier()

    all_well(run_ranks(lab, n, work, channels=channels, cross_nic=cross_nic))


def test_the_environment_says_how_many(lab: LocalLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_MIN_NCHANNELS", "2")
    monkeypatch.setenv("NCCL_CROSS_NIC", "0")

    def work(communicator: Communicator) -> list[tuple[int, ...]]:
        mine = np.ones(100_000)
        communicator.all_reduce(mine)
        assert (mine == 4).all()
        return [route.hcas for route in communicator._channels.routes]

    assert all_well(run_ranks(lab, 4, work)) == [[(1,) * 4, (2,) * 4]] * 4


@pytest.mark.parametrize(
    ("name", "value"),
    [("NCCL_CROSS_NIC", "5"), ("NCCL_ALGO", "rnig"), ("NCCL_IB_HCA", "hca1:2"), ("NCCL_MIN_CTAS", "x")],
)
def test_a_mistake_is_refused_before_anything_runs(
    lab: LocalLab, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    outcomes = run_ranks(lab, 2, lambda communicator: pytest.fail("made all the same"))
    assert all(isinstance(outcome, ConfigError) and f"{name}='{value}'" in str(outcome) for outcome in outcomes)


def test_arguments_that_make_no_sense(lab: LocalLab) -> None:
    (outcome,) = run_ranks(lab, 1, lambda communicator: None, channels=0)
    assert isinstance(outcome, ConfigError)
    (outcome,) = run_ranks(lab, 1, lambda communicator: None, cross_nic=3)
    assert "cross_nic=3: it must be 0 (same HCA), 1 (any) or 2" in str(outcome)


def test_a_rank_that_leaves_breaks_all_channels(lab: LocalLab) -> None:
    def work(communicator: Communicator) -> str:
        communicator.all_reduce(np.ones(100_000))
        if communicator.rank == 3:
            return ""
        with pytest.raises(CollectiveError) as caught:
            communicator.all_reduce(np.ones(100_000))
        return str(caught.value)

    texts = all_well(run_ranks(lab, 4, work, channels=2, timeout_s=30))
    assert any("lost rank 3" in text for text in texts), texts
    assert all(texts[:3])
