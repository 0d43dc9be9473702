"""RDMA WRITE bandwidth into each kind of region: shared memory, an existing buffer by process_vm, one by staged copies.

    python benchmarks/memory_providers.py [--mib 4] [--seconds 1] [--json]

Both ends use the same kind. The ratio is to shared memory, measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import time

from fauxrdma.errors import VerbsError
from fauxrdma.ib.enums import IBV_SEND_SIGNALED, IBV_WR_RDMA_WRITE
from fauxrdma.lab.local import LocalLab
from fauxrdma.verbs import CQ, MR, PD, QP, SGE, CompChannel, Context, QPCap, QPInitAttr, SendWR

DEPTH = 8
ACCESS = 7


class End:
    """An open device with a region of one kind."""

    def __init__(self, socket_path: str, length: int, provider: str) -> None:
        self.ctx = Context("hca1", socket_path)
        pd = PD(self.ctx)
        channel = CompChannel(self.ctx)
        self.cq = CQ(self.ctx, 256, None, channel, 0)
        if provider == "memfd":
            self.mr = MR(pd, length, ACCESS)
        else:
            self.mr = MR.over(pd, bytearray(length), ACCESS, provider=provider)
        self.qp = QP(pd, QPInitAttr(scq=self.cq, rcq=self.cq, cap=QPCap(DEPTH, 1)))


def write_gb_per_s(lab: LocalLab, length: int, seconds: float, provider: str) -> float:
    """GB/s of WRITEs of `length` bytes."""
    a, b = End(str(lab.socket_path(0)), length, provider), End(str(lab.socket_path(1)), length, provider)
    a.qp.connect(b.qp.endpoint())
    b.qp.connect(a.qp.endpoint())
    wr = SendWR(1, IBV_WR_RDMA_WRITE, [SGE(a.mr.buf, length, a.mr.lkey)], 0, IBV_SEND_SIGNALED, b.mr.buf, b.mr.rkey)
    done, began = 0, time.perf_counter()
    a.qp.post_send(*[wr] * DEPTH)
    while time.perf_counter() - began < seconds:
        wcs = a.cq.wait(DEPTH, 10.0)
        assert wcs
        assert all(wc.status == 0 for wc in wcs)
        done += len(wcs)
        a.qp.post_send(*[wr] * len(wcs))
    took = time.perf_counter() - began
    a.ctx.close()
    b.ctx.close()
    return done * length / took / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures: dict[str, float | str] = {}
    with LocalLab("seed-rail8", nodes=2, gpus=1, clock="none") as lab:
        for provider in ("memfd", "process_vm", "staged"):
            try:
                figures[provider] = write_gb_per_s(lab, options.mib << 20, options.seconds, provider)
            except VerbsError as error:
                figures[provider] = str(error)  # not permitted on this machine
    if options.json:
        print(json.dumps(figures))
        return
    base = figures["memfd"]
    for provider, figure in figures.items():
        if isinstance(figure, str) or isinstance(base, str):
            print(f"{provider:10} {figure}")
        else:
            print(f"{provider:10} {figure:6.2f} GB/s, ratio to shared memory {figure / base:.2f}")


if __name__ == "__main__":
    main()
