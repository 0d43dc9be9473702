"""Ranks that are processes and run one all-reduce after another until it fails."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from fauxrdma.lab.local import LocalLab

__all__ = ["busy_ranks"]

SCRIPT = """
import sys
import numpy as np
from fauxrdma.communicator import Communicator
from fauxrdma.errors import CollectiveError
with Communicator.from_env(timeout_s=float(sys.argv[1])) as communicator:
    data = np.ones(int(sys.argv[2]), np.float32)
    communicator.all_reduce(data)
    print("ready", flush=True)
    try:
        while True:
            communicator.all_reduce(data)
    except CollectiveError as error:
        print(error, flush=True)
        sys.exit(7)
"""


@contextmanager
def busy_ranks(lab: LocalLab, *, elements: int, timeout_s: float) -> Iterator[list[subprocess.Popen[str]]]:
    """All ranks of `lab`, after their first all-reduce of `elements` float32; a rank prints its error and exits with
    7."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(timeout_s), str(elements)],
            env={**os.environ, **lab.env_of_rank(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(lab.world_size)
    ]
    try:
        for rank in ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "ready\n"
        yield ranks
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
