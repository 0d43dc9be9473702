"""Every algorithm and the operations between some ranks, over daemons and queue pairs."""

from __future__ import annotations

import numpy as np
import pytest
from rank_threads import all_well, run_ranks

from fauxrdma.collectives.algorithms import ALL_REDUCE
from fauxrdma.communicator import Communicator
from fauxrdma.errors import LocalProtocolError
from fauxrdma.lab.local import LocalLab


@pytest.mark.parametrize("n", [3, 4])
def test_every_all_reduce_gives_the_same_sums(lab: LocalLab, n: int) -> None:
    """Integers, so that no order of reduction shows; sizes below, at and far above a chunk, and none."""
    sizes = (0, 1, 1000, 3_000_001)

    def work(communicator: Communicator) -> list[str]:
        wrong = []
        for algorithm in ALL_REDUCE:
            for size in sizes:
                mine = np.arange(size, dtype=np.int64) * (communicator.rank + 1)
                communicator.all_reduce(mine, algorithm=algorithm)
                if not (mine == np.arange(size, dtype=np.int64) * (n * (n + 1) // 2)).all():
                    wrong.append(f"{algorithm} {size}")
                average = np.full(size, communicator.rank, dtype=np.float64)
                communicator.all_reduce(average, "avg", algorithm=algorithm)
                if not (average == (n - 1) / 2).all():
                    wrong.append(f"{algorithm} {size} avg")
        return wrong

    assert all_well(run_ranks(lab, n, work)) == [[]] * n


def test_every_rank_has_the_same_bits_twice(lab: LocalLab) -> None:
    def work(communicator: Communicator) -> list[bytes]:
        out = []
        for algorithm in [*ALL_REDUCE, *ALL_REDUCE]:
            mine = np.random.default_rng(communicator.rank).random(5001, dtype=np.float32)
            communicator.all_reduce(mine, algorithm=algorithm)
            out.append(mine.tobytes())
        return out

    first, *others = all_well(run_ranks(lab, 4, work))
    assert all(other == first for other in others)
    assert first[: len(ALL_REDUCE)] == first[len(ALL_REDUCE) :]


def test_operations_with_a_root_and_all_to_all(lab: LocalLab) -> None:
    n, root = 3, 1
    table = [[1, 0, 3], [2, 2, 0], [0, 5, 4]]

    def work(communicator: Communicator) -> None:
        rank = communicator.rank
        mine = np.full(7, rank + 1, dtype=np.int32)
        communicator.reduce(mine, root, "product")
        assert (mine == (6 if rank == root else rank + 1)).all()

        whole = np.zeros((n, 4), dtype=np.int16) if rank == root else None
        communicator.gather(whole, np.full(4, rank, dtype=np.int16), root)
        if whole is not None:
            assert (whole == np.arange(n, dtype=np.int16)[:, None]).all()
        part = np.zeros(4, dtype=np.int16)
        communicator.scatter(part, whole, root)
        assert (part == rank).all()

        out = np.zeros(n * 2)
        communicator.all_to_all(out, np.repeat(rank * 10.0 + np.arange(n), 2))
        assert (out == np.repeat(np.arange(n) * 10.0 + rank, 2)).all()
        uneven = np.zeros(sum(row[rank] for row in table))
        sent = np.concatenate([np.full(count, rank * 10.0 + b) for b, count in enumerate(table[rank])])
        communicator.all_to_all(uneven, sent, table)
        assert (uneven == np.concatenate([np.full(table[a][rank], a * 10.0 + rank) for a in range(n)])).all()

        with pytest.raises(LocalProtocolError, match="there is no all-reduce algorithm 'star'"):
            communicator.all_reduce(mine, algorithm="star")
        with pytest.raises(LocalProtocolError, match="a multiple of 3"):
            communicator.all_to_all(np.zeros(4), np.zeros(4))
        if rank == root:
            with pytest.raises(LocalProtocolError, match="must give the whole array"):
                communicator.gather(None, part, root)

    all_well(run_ranks(lab, n, work))
