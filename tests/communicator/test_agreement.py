"""Ranks with different settings are told so, by rank, setting and values, before anything is sent."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
from rank_threads import open_communicator

from fauxrdma.collectives.algorithms import ALGORITHMS
from fauxrdma.communicator.settings import CollectiveSettings
from fauxrdma.communicator.settings.agreement import check_agreement, shared_settings
from fauxrdma.errors import ConfigError
from fauxrdma.lab.local import LocalLab
from fauxrdma.lab.rank_threads import ThreadStore


def told(**environment: str) -> dict[str, str]:
    settings = CollectiveSettings.from_env(ALGORITHMS, environment)
    return shared_settings(settings, share_memory=settings.share_memory, slots=8, slot_bytes=1 << 20, lanes=2)


@pytest.mark.parametrize(
    ("ours", "theirs", "says"),
    [
        ({}, {"NCCL_ALGO": "tree"}, "algorithm of all_reduce (FAUXRDMA_ALGO, NCCL_ALGO): double-tree instead of the "),
        ({"NCCL_ALGO": "ring"}, {"NCCL_ALGO": "tree"}, "none allowed instead of ring"),
        ({"FAUXRDMA_ALGO": "auto"}, {}, "the default instead of auto"),
        ({"NCCL_MIN_NCHANNELS": "2"}, {"FAUXRDMA_CHANNELS": "4"}, "NCCL_MIN_NCHANNELS, channels=): 4 instead of 2"),
        ({}, {"NCCL_CROSS_NIC": "1"}, "cross-NIC policy (NCCL_CROSS_NIC, cross_nic=): 1 instead of the default"),
        ({"NCCL_PXN_DISABLE": "1"}, {}, "use of PXN (NCCL_PXN_DISABLE): on instead of off"),
        ({}, {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}, "off instead of on"),
    ],
)  # fmt: skip
def test_each_setting_is_named(ours: dict[str, str], theirs: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        check_agreement([told(**ours), told(**ours), told(**theirs)])
    assert str(raised.value).startswith("rank 2 has other settings than rank 0: ")
    assert says in str(raised.value)


def test_other_words_for_the_same_agree() -> None:
    check_agreement([told(), told(NCCL_PXN_DISABLE="0"), told(FAUXRDMA_CHANNELS="1"), told(NCCL_IB_HCA="hca1")])
    check_agreement([told(NCCL_ALGO="tree,ring"), told(NCCL_ALGO="RING,TREE")])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"channels": 2}, "rank 1 has other settings than rank 0: number of channels"),
        ({"share_memory": False}, "shared memory within nodes"),
        ({"slots": 16}, "number of staging slots (slots=): 16 instead of 8"),
    ],
)
def test_arguments_that_differ(lab: LocalLab, options: dict[str, Any], says: str) -> None:
    store = ThreadStore()
    errors: list[Exception | None] = [None] * 3

    def run(rank: int) -> None:
        context, communicator = open_communicator(lab, rank, 3, store, timeout_s=20.0, **options if rank == 1 else {})
        try:
            communicator.all_reduce(np.ones(100_000))
        except Exception as error:
            errors[rank] = error
        try:
            communicator.barrier()
        except Exception as error:
            assert str(errors[rank]) in str(error)  # noqa: PT017  what broke it is said again
        communicator.close()
        context.close()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [type(error) for error in errors] == [ConfigError] * 3, errors
    assert all(says in str(error) for error in errors)


RANK = """
import numpy as np
from fauxrdma.communicator import Communicator
with Communicator.from_env() as communicator:
    communicator.all_reduce(np.ones(10))
"""


def test_a_different_nccl_algo_on_one_rank(lab: LocalLab) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK],
            env={**os.environ, **lab.env_of_rank(rank), "WORLD_SIZE": "2", **({"NCCL_ALGO": "tree"} if rank else {})},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for rank in ranks:
        _, errors = rank.communicate(timeout=60)
        assert rank.returncode == 1
        assert (
            "algorithm of all_reduce (FAUXRDMA_ALGO, NCCL_ALGO): double-tree instead of the default"
            in errors.splitlines()[-1]
        )
