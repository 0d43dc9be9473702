"""How long a lab of 4 nodes takes to be ready, and a job of 8 ranks in it to begin: wall seconds on an idle machine.

    python benchmarks/startup.py [--nodes 4] [--gpus 2] [--repeats 5] [--json]

Three parts: the lab (subnet manager and daemons are processes, all in the fabric); ranks that join a communicator of
fauxrdma's own and do one barrier, without torch; the same with torch's process group, most of which is importing torch.
And what `fauxrdma --help` takes. Medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fauxrdma.lab.launcher import run_job
from fauxrdma.lab.local import LocalLab

LAB_TARGET_S, WHOLE_TARGET_S, HELP_TARGET_S = 1.5, 5.0, 0.2
OWN = """
from fauxrdma.communicator import Communicator
with Communicator.from_env() as ranks:
    ranks.barrier()
"""
TORCH = """
import torch.distributed as dist
dist.init_process_group("fauxrdma")
dist.barrier()
dist.destroy_process_group()
"""


def measure(nodes: int, gpus: int) -> dict[str, float]:
    """Seconds of each part, once."""
    out = {}
    began = time.perf_counter()
    with LocalLab("fat-tree", nodes, gpus, clock="none") as lab, tempfile.TemporaryDirectory() as folder:
        out["lab"] = time.perf_counter() - began
        for name, code in (("ranks", OWN), ("torch", TORCH)):
            script = Path(folder) / f"with_{name}.py"  # not torch.py, which would be what it imports
            script.write_text(code)
            began = time.perf_counter()
            run_job(lab, [str(script)])
            out[name] = time.perf_counter() - began
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "fauxrdma.cli.main", "--help"], check=True, stdout=subprocess.DEVNULL)
    out["help"] = time.perf_counter() - began
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    runs = [measure(options.nodes, options.gpus) for _ in range(options.repeats)]
    median = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    if options.json:
        print(json.dumps(median))
        return
    print(f"{options.nodes} nodes, {options.nodes * options.gpus} ranks")
    print(f"lab ready             {median['lab']:6.2f} s  (target {LAB_TARGET_S})")
    print(f"lab and torch's ranks {median['lab'] + median['torch']:6.2f} s  (target {WHOLE_TARGET_S})")
    print(f"ranks without torch   {median['ranks']:6.2f} s")
    print(f"fauxrdma --help       {median['help']:6.2f} s  (target {HELP_TARGET_S})")


if __name__ == "__main__":
    main()
