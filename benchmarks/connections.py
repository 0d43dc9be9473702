"""Connect and part 5,000 times over two daemons: time per cycle, and what memory and descriptors do meanwhile.

python benchmarks/connections.py [CYCLES]
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

from fauxrdma.lab.local import LocalLab
from fauxrdma.verbs import Context, QPCap, QPInitAttr
from fauxrdma.verbs.cm import CMID, AddrInfo
from fauxrdma.verbs.cm.parameters import RAI_PASSIVE

CAP = QPCap(4, 4)


def serve(listener: CMID, cycles: int) -> None:
    for _ in range(cycles):
        with listener.get_request() as peer:
            peer.accept()
            peer.wait_disconnected()


def resident_kib(pid: int) -> int:
    """VmRSS."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmRSS")))


def main() -> None:
    cycles = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
    with LocalLab("seed-rail8", nodes=2, gpus=1, clock="none") as lab:
        a, b = (Context("hca1", str(lab.socket_path(node))) for node in (0, 1))
        pids = {"daemon 0": lab.daemons[0], "daemon 1": lab.daemons[1], "program": os.getpid()}
        with a, b, CMID(AddrInfo(flags=RAI_PASSIVE), QPInitAttr(cap=CAP), context=b) as listener:
            listener.listen()
            serving = threading.Thread(target=serve, args=(listener, cycles))
            serving.start()
            gid = b.query_gid_table()[-1].gid
            print(f"{'cycles':>8} {'ms/cycle':>9}", *(f"{name + ' KiB, fds':>22}" for name in pids))
            began, step = time.perf_counter(), max(1, cycles // 10)
            for i in range(1, cycles + 1):
                with CMID(AddrInfo(dst=gid, dst_service=listener.port), QPInitAttr(cap=CAP), context=a) as client:
                    client.connect()
                    client.disconnect()
                if i % step == 0:
                    each = (time.perf_counter() - began) * 1000 / step
                    held = (f"{resident_kib(pid):>16} {len(os.listdir(f'/proc/{pid}/fd')):>5}" for pid in pids.values())
                    print(f"{i:>8} {each:>9.2f}", *held)
                    began = time.perf_counter()
            serving.join()


if __name__ == "__main__":
    main()
