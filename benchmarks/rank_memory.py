"""Memory per rank of float32 all-reduces, against gloo: 4 ranks on 2 nodes unless told.

    python benchmarks/rank_memory.py [--mib 64] [--nodes 2] [--gpus 2] [--json]

The peak of the proportional set size (PSS, /proc/PID/smaps_rollup) of all ranks, and for fauxrdma of the HCA daemons,
above what the ranks have once torch is imported and the tensor is made; divided by the number of ranks. PSS shares a
page among those that map it, so memory that ranks and daemons share is counted once, and each rank carries its part of
its daemon. The subnet manager belongs to the fabric, not to a rank, and is not counted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from fauxrdma.lab.local import LocalLab
from fauxrdma.lab.ports import free_port

TARGET_MIB = 64
"""What a rank may take more than with gloo."""
CALLS = 6


def rank_main(mib: float, backend: str) -> None:
    """What each rank runs: says when it stands at its baseline, works when told to, says when it is done."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    tensor = torch.ones(int(mib * 2**20) // 4)
    tell_and_wait("imported")
    dist.init_process_group(backend)
    for size in (1024, tensor.numel()):
        for _ in range(CALLS):
            dist.all_reduce(tensor[:size], dist.ReduceOp.MAX)
    assert (tensor == 1).all()
    tell_and_wait("worked")
    dist.destroy_process_group()


def tell_and_wait(what: str) -> None:
    """To the parent."""
    print(what, flush=True)
    input()


def pss_bytes(pids: Sequence[int]) -> int:
    """The proportional set size of these processes together."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


@contextlib.contextmanager
def places(backend: str, nodes: int, gpus: int) -> Iterator[tuple[list[dict[str, str]], list[int]]]:
    """The environment of each rank, and the processes of which the ranks carry a part."""
    if backend == "fauxrdma":
        with LocalLab("fat-tree", nodes=nodes, gpus=gpus, clock="none", master_port=free_port()) as lab:
            yield [lab.env_of_rank(rank) for rank in range(nodes * gpus)], lab.daemons
        return
    port, n = str(free_port()), nodes * gpus
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(n), "OMP_NUM_THREADS": "1"}
    yield [{**common, "RANK": str(rank)} for rank in range(n)], []


def measure(backend: str, mib: float, nodes: int, gpus: int) -> float:
    """MiB per rank above the baseline, at the peak."""
    command = [sys.executable, __file__, "--rank", backend, "--mib", str(mib)]
    with places(backend, nodes, gpus) as (environments, daemons):
        ranks = [
            subprocess.Popen(
                command, env={**os.environ, **env}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for env in environments
        ]
        try:
            pids = [rank.pid for rank in ranks]
            hear(ranks, "imported")
            baseline = pss_bytes(pids)
            tell(ranks)
            peak = 0
            outputs = [rank.stdout for rank in ranks]
            while len(select.select(outputs, (), (), 0.02)[0]) < len(ranks):
                peak = max(peak, pss_bytes([*pids, *daemons]))
            hear(ranks, "worked")
            peak = max(peak, pss_bytes([*pids, *daemons]))
            tell(ranks)
            if any(rank.wait(60) for rank in ranks):
                sys.exit("a rank failed")
        finally:
            for rank in ranks:
                rank.kill()
    return (peak - baseline) / len(ranks) / 2**20


def hear(ranks: Sequence[subprocess.Popen[str]], what: str) -> None:
    """Wait until every rank has said it."""
    for rank in ranks:
        assert rank.stdout is not None
        if rank.stdout.readline().strip() != what:
            sys.exit("a rank failed")


def tell(ranks: Sequence[subprocess.Popen[str]]) -> None:
    """Let every rank go on."""
    for rank in ranks:
        assert rank.stdin is not None
        rank.stdin.write("\n")
        rank.stdin.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=float, default=64)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        rank_main(options.mib, options.rank)
        return
    ours, theirs = (measure(backend, options.mib, options.nodes, options.gpus) for backend in ("fauxrdma", "gloo"))
    if options.json:
        print(json.dumps({"fauxrdma_MiB": ours, "gloo_MiB": theirs, "more_MiB": ours - theirs}))
        return
    print(
        f"memory per rank, all-reduce of {options.mib:g} MiB, {options.nodes * options.gpus} ranks on {options.nodes} "
        f"nodes: fauxrdma {ours:.0f} MiB, gloo {theirs:.0f} MiB, {ours - theirs:+.0f} MiB (target at most "
        f"+{TARGET_MIB})"
    )


if __name__ == "__main__":
    main()
