"""All-reduce a numpy array over emulated HCAs: no torch, no MPI.

fauxrdma run fat-tree --nodes 2 --gpus 2 -- examples/ring_allreduce_numpy.py --mib 4
"""

from __future__ import annotations

import argparse

import numpy as np

from fauxrdma.communicator import Communicator


def main() -> None:
    """Sum one array per rank a few times; check the result; rank 0 prints time and bandwidth."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=float, default=4, help="size of the array in MiB")
    parser.add_argument("--iterations", type=int, default=5)
    args = parser.parse_args()

    with Communicator.from_env() as communicator:
        rank, n = communicator.rank, communicator.world_size
        count = max(1, int(args.mib * 2**20) // 4)
        wrong = 0
        for _ in range(args.iterations):
            array = np.full(count, rank + 1, np.float32)
            communicator.all_reduce(array)
            wrong += int((array != n * (n + 1) / 2).sum())
        communicator.barrier()

        times_ns = [op.end_ns - op.start_ns for op in communicator.statistics.operations if op.op == "all_reduce"]
        best_ns = max(1, min(times_ns))
        bus_gbytes = count * 4 / best_ns * 2 * (n - 1) / n
        if rank == 0:
            print(
                f"ranks={n} nbytes={count * 4} fabric_us={best_ns / 1e3:.1f} busbw_GBps={bus_gbytes:.3f} wrong={wrong}"
            )


if __name__ == "__main__":
    main()
