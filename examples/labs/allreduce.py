"""Sums a vector over all ranks a few times, without torch."""

import os

import numpy as np

from fauxrdma.communicator import Communicator

STEPS = int(os.environ.get("STEPS", "5"))

with Communicator.from_env() as world:
    for _ in range(STEPS):
        data = np.full(250_000, world.rank + 1.0, dtype=np.float32)
        world.all_reduce(data)
    if world.rank == 0:
        print(f"total={data[0]:.0f} steps={STEPS}")
