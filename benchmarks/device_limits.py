"""What many objects on one device cost: queue pairs, memory regions, connections made and unmade.

    python benchmarks/device_limits.py [--qps 1000] [--mrs 10000] [--cycles 5000] [--json]

Prints time per object and what the HCA daemon's resident memory and descriptors grew by.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from typing import Any

from fauxrdma.lab.local import LocalLab
from fauxrdma.verbs import CQ, MR, PD, QP, Context, QPInitAttr


def resident_kib(pid: int) -> int:
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def measure(daemon: int, count: int, work: Callable[[], object]) -> dict[str, float]:
    """Run `work`; time per object in us, growth of the daemon in KiB per object and in descriptors."""
    memory, files = resident_kib(daemon), descriptors(daemon)
    began = time.perf_counter()
    work()
    took = time.perf_counter() - began
    return {
        "count": count,
        "us_each": took / count * 1e6,
        "daemon_KiB_each": (resident_kib(daemon) - memory) / count,
        "daemon_descriptors": descriptors(daemon) - files,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--qps", type=int, default=1000)
    parser.add_argument("--mrs", type=int, default=10_000)
    parser.add_argument("--cycles", type=int, default=5000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    with LocalLab("seed-rail8", nodes=2, gpus=1, clock="none") as lab, Context("hca1", str(lab.socket_path(0))) as ctx:
        daemon = lab.daemons[0]
        pd = PD(ctx)
        cq = CQ(ctx, 64)
        buffer = bytearray(4096)
        kept: list[object] = []

        def cycle(times: int) -> None:
            for _ in range(times):
                one, two = (QP(pd, QPInitAttr(scq=cq, rcq=cq)) for _ in range(2))
                one.connect(two.endpoint())
                two.connect(one.endpoint())
                one.close()
                two.close()

        cycle(100)  # what is allocated once is there
        figures["connections"] = measure(daemon, options.cycles, lambda: cycle(options.cycles))
        figures["queue pairs"] = measure(
            daemon, options.qps, lambda: kept.extend(QP(pd, QPInitAttr(scq=cq, rcq=cq)) for _ in range(options.qps))
        )
        figures["memory regions"] = measure(
            daemon, options.mrs, lambda: kept.extend(MR.over(pd, buffer, 1) for _ in range(options.mrs))
        )
        providers = {mr.provider for mr in kept if isinstance(mr, MR)}
    if options.json:
        print(json.dumps(figures))
        return
    for name, row in figures.items():
        print(
            f"{row['count']:6} {name:15} {row['us_each']:8.0f} us each, daemon {row['daemon_KiB_each']:+.2f} KiB each, "
            f"{row['daemon_descriptors']:+} descriptors"
        )
    print(f"regions are reached by {', '.join(sorted(providers))}")


if __name__ == "__main__":
    main()
