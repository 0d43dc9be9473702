"""How many operations a second a fabric in one process plays (`fauxrdma.sim.fabric_world`).

python benchmarks/virtual_world.py [--fabric fat-tree] [--nodes 2] [--gpus 2] [--operations 10000]

Three programs: WRITEs of 4 KiB one after the other, the same with 32 under way, and ring all-reduces of 1 MiB.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from fauxrdma.collectives import ring_all_reduce
from fauxrdma.hca.work_queue import SendWqe
from fauxrdma.ib.enums import IBV_SEND_SIGNALED, IBV_WR_RDMA_WRITE
from fauxrdma.ib.work import WC
from fauxrdma.sim.fabric_world import FabricWorld
from fauxrdma.sim.plan_run import run_plan

WRITE_BYTES = 4096
COUNT = 1 << 18


def writes(world: FabricWorld, operations: int, under_way: int) -> None:
    """From the first HCA to the last, a new WRITE for each that is done."""
    here, there = world.hcas[0], world.hcas[-1]
    a, b = here.create_qp(), there.create_qp()
    world.connect(a, b, timeout=14)
    source, target = here.alloc(WRITE_BYTES)[0], there.alloc(WRITE_BYTES)[0]
    sges = ((source.base, WRITE_BYTES, source.lkey),)

    def post(_: WC | None = None) -> None:
        a.post_send(SendWqe(0, 1, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, sges, target.base, target.rkey))

    here.on_completion = post
    for _ in range(under_way):
        post()
    world.run(lambda: world.operations >= operations)


def all_reduces(world: FabricWorld, operations: int) -> None:
    """Over all ranks, until so many requests are done."""
    ranks = len(world.hcas)
    plan = ring_all_reduce(COUNT, ranks, itemsize=4, chunk=16384, lanes=1)
    while world.operations < operations:
        run_plan(world, plan, [{"data": np.ones(COUNT, np.float32)} for _ in range(ranks)], op="sum")


def main() -> None:
    """Print a line for each program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fabric", default="fat-tree")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--operations", type=int, default=10_000)
    options = parser.parse_args()
    programs: dict[str, Callable[[FabricWorld], None]] = {
        "WRITEs in a row": lambda world: writes(world, options.operations, 1),
        "WRITEs, 32 under way": lambda world: writes(world, options.operations, 32),
        "ring all-reduces": lambda world: all_reduces(world, options.operations),
    }
    for name, program in programs.items():
        world = FabricWorld(options.fabric, options.nodes, options.gpus)
        began = time.perf_counter()
        program(world)
        took_s = time.perf_counter() - began
        print(f"{name:22} {world.operations / took_s:8.0f} operations/s, {world.now / 1e6:8.3f} ms of fabric time")


if __name__ == "__main__":
    main()
