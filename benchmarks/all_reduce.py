"""All-reduce of float32, unshaped, against gloo on the same ranks in the same run: 4 ranks on 2 nodes unless told.

    python benchmarks/all_reduce.py [--mib 16] [--nodes 2] [--gpus 2] [--json]

Both backends live in the same four processes; rounds alternate, and the ratio is of the medians of the slowest rank.
gloo settles at one of several speeds for the life of its processes, so the whole is repeated with new ones and the
median of the ratios is what counts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

from fauxrdma.lab.local import LocalLab
from fauxrdma.lab.ports import free_port


def rank_main(mib: float, rounds: int) -> None:
    """What each rank runs."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("fauxrdma")
    groups = {"fauxrdma": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    rank, n = dist.get_rank(), dist.get_world_size()
    tensor = torch.ones(int(mib * 2**20) // 4)
    times: dict[str, list[float]] = {name: [] for name in groups}
    for i in range(rounds + 2):
        for name, group in groups.items():
            tensor.fill_(rank + 1)
            dist.barrier(group=groups["gloo"])
            began = time.perf_counter()
            dist.all_reduce(tensor, group=group)
            took = torch.tensor([time.perf_counter() - began], dtype=torch.float64)
            assert tensor[0] == tensor[-1] == n * (n + 1) / 2
            dist.all_reduce(took, dist.ReduceOp.MAX, group=groups["gloo"])
            if i >= 2:
                times[name].append(float(took))
    if rank == 0:
        print(json.dumps({name: statistics.median(values) for name, values in times.items()}), flush=True)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=float, default=16)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        rank_main(options.mib, options.rounds)
        return
    runs = [run_once(options.mib, options.rounds, options.nodes, options.gpus) for _ in range(options.repeats)]
    n = options.nodes * options.gpus
    nbytes = options.mib * 2**20
    figures = {
        f"{name}_busbw_GB_per_s": nbytes * 2 * (n - 1) / n / statistics.median(run[name] for run in runs) / 1e9
        for name in ("fauxrdma", "gloo")
    }
    ratios = sorted(run["gloo"] / run["fauxrdma"] for run in runs)
    figures |= {"ratio": statistics.median(ratios), "ratio_least": ratios[0], "ratio_most": ratios[-1]}
    if options.json:
        print(json.dumps(figures))
        return
    target = 2.0 if options.nodes == 1 else 1.0
    ours, theirs = figures["fauxrdma_busbw_GB_per_s"], figures["gloo_busbw_GB_per_s"]
    print(
        f"all-reduce of {options.mib:g} MiB, {n} ranks on {options.nodes} nodes: fauxrdma {ours:.3f} GB/s, gloo "
        f"{theirs:.3f} GB/s "
        f"of bus bandwidth, ratio {figures['ratio']:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}; target {target:.2f})"
    )


def run_once(mib: float, rounds: int, nodes: int, gpus: int) -> dict[str, float]:
    """Median seconds per all-reduce by backend, from one set of processes."""
    with LocalLab("fat-tree", nodes=nodes, gpus=gpus, clock="none", master_port=free_port()) as lab:
        command = [sys.executable, __file__, "--rank", "--mib", str(mib), "--rounds", str(rounds)]
        ranks = [
            subprocess.Popen(command, env={**os.environ, **lab.rank_env(node, gpu)}, stdout=subprocess.PIPE, text=True)
            for node in range(nodes)
            for gpu in range(gpus)
        ]
        outputs = [rank.communicate(timeout=300)[0] for rank in ranks]
        if any(rank.returncode for rank in ranks):
            sys.exit("a rank failed")
    medians: dict[str, float] = json.loads(outputs[0].splitlines()[-1])
    return medians


if __name__ == "__main__":
    main()
