"""RDMA WRITE through real daemons, unshaped: bandwidth of 1 MiB messages against iperf3's single stream in the same
run, and the half round trip of 64-byte writes.

    python benchmarks/rdma_write.py [--json]

Bandwidth: rounds of fauxrdma and iperf3 alternate, the ratio is of their medians. Latency: two processes write into
each other's memory in turn and watch it arrive (as perftest's ib_write_lat does); the figure is half a round trip.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import time
from typing import Any

from fauxrdma.ib.enums import IBV_SEND_INLINE, IBV_SEND_SIGNALED, IBV_WR_RDMA_WRITE
from fauxrdma.lab.local import LocalLab
from fauxrdma.verbs import CQ, MR, PD, QP, SGE, CompChannel, Context, QPCap, QPInitAttr, SendWR

MIB = 1 << 20
DEPTH = 32
ACCESS = 7


class End:
    """One side: an open device, a region and a queue pair."""

    def __init__(self, socket_path: str, length: int) -> None:
        self.ctx = Context("hca1", socket_path)
        self.pd = PD(self.ctx)
        self.channel = CompChannel(self.ctx)
        self.cq = CQ(self.ctx, 1024, None, self.channel, 0)
        self.mr = MR(self.pd, length, ACCESS)
        cap = QPCap(max_send_wr=256, max_recv_wr=16, max_inline_data=64)
        self.qp = QP(self.pd, QPInitAttr(scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=0))

    def card(self) -> dict[str, Any]:
        return {**self.qp.endpoint(), "addr": self.mr.buf, "rkey": self.mr.rkey}


def bandwidth_round(a: End, b: End, seconds: float) -> float:
    """GB/s of 1 MiB WRITEs, DEPTH outstanding."""
    done = outstanding = 0
    began = time.perf_counter()
    while True:
        wrs = [
            SendWR(0, IBV_WR_RDMA_WRITE, [SGE(a.mr.buf, MIB, a.mr.lkey)], 0, IBV_SEND_SIGNALED, b.mr.buf, b.mr.rkey)
            for _ in range(DEPTH - outstanding)
        ]
        a.qp.post_send(*wrs)
        outstanding = DEPTH
        wcs = a.cq.wait(DEPTH, 10.0)
        assert wcs, "no completion in 10 s"
        assert all(wc.status == 0 for wc in wcs)
        done += len(wcs)
        outstanding -= len(wcs)
        elapsed = time.perf_counter() - began
        if elapsed >= seconds:
            break
    while outstanding:
        outstanding -= len(a.cq.wait(DEPTH, 10.0))
    return done * MIB / elapsed / 1e9


def iperf3_round(port: int, seconds: float) -> float:
    """GB/s of one iperf3 stream over loopback."""
    server = subprocess.Popen(["iperf3", "-s", "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    # iperf3 takes whole seconds, and 0 for "for ever".
    command = ["iperf3", "-c", "127.0.0.1", "-p", str(port), "-t", str(max(1, round(seconds))), "-J"]
    try:
        for _ in range(100):  # until the server listens
            result = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)
            if "sum_received" in result.get("end", {}):
                return float(result["end"]["sum_received"]["bits_per_second"]) / 8e9
            time.sleep(0.05)
        sys.exit(f"iperf3 does not work here: {result.get('error')}")
    finally:
        server.terminate()
        server.wait()


def ping(end: End, peer: dict[str, Any], first: bool, iterations: int) -> list[float]:
    """Write a counter into the peer's memory and wait for the peer's; returns half round trips in us."""
    view = end.mr.view.cast("Q")
    times = []
    wr = SendWR(
        0, IBV_WR_RDMA_WRITE, [SGE(end.mr.buf + 64, 64, end.mr.lkey)], 0, IBV_SEND_INLINE, peer["addr"], peer["rkey"]
    )
    for i in range(1, iterations + 1):
        # Every 64th is signaled, to free the queue.
        wr.send_flags = IBV_SEND_INLINE | (IBV_SEND_SIGNALED if i % 64 == 0 else 0)
        began = time.perf_counter_ns()
        if not first:
            while view[0] != i:
                os.sched_yield()
        view[8] = i
        end.qp.post_send(wr)
        if first:
            while view[0] != i:
                os.sched_yield()
            times.append((time.perf_counter_ns() - began) / 2e3)
        if i % 64 == 0:
            end.cq.poll(16)
    return times


def latency(lab: LocalLab, iterations: int) -> list[float]:
    """Half round trips in us, after a warm-up, between this process and a child."""
    here, there = socket.socketpair()
    child = os.fork()
    mine, node = (there, 1) if child == 0 else (here, 0)
    end = End(str(lab.socket_path(node)), 4096)
    card = json.dumps(end.card()).encode()
    mine.sendall(struct.pack("!I", len(card)) + card)
    (length,) = struct.unpack("!I", mine.recv(4, socket.MSG_WAITALL))
    peer = json.loads(mine.recv(length, socket.MSG_WAITALL))
    end.qp.connect(peer)
    mine.sendall(b"k")
    assert mine.recv(1) == b"k"
    times = ping(end, peer, child != 0, iterations)
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    end.ctx.close()
    return times[iterations // 5 :]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--iterations", type=int, default=5000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if shutil.which("iperf3") is None:
        sys.exit("iperf3 is not installed (apt-get install iperf3): nothing to compare with")
    with LocalLab("seed-rail8", nodes=2, gpus=1, clock="none") as lab:
        half_trips = latency(lab, options.iterations)
        a, b = End(str(lab.socket_path(0)), MIB), End(str(lab.socket_path(1)), MIB)
        a.qp.connect(b.card())
        b.qp.connect(a.card())
        bandwidth_round(a, b, 0.3)
        ours, theirs = [], []
        for i in range(options.rounds):
            ours.append(bandwidth_round(a, b, options.seconds))
            theirs.append(iperf3_round(5300 + i, options.seconds))
        a.ctx.close()
        b.ctx.close()
    figures = {
        "write_1MiB_GB_per_s": statistics.median(ours),
        "iperf3_GB_per_s": statistics.median(theirs),
        "ratio": statistics.median(ours) / statistics.median(theirs),
        "write_64B_half_round_trip_us_median": statistics.median(half_trips),
        "write_64B_half_round_trip_us_p99": statistics.quantiles(half_trips, n=100)[98],
    }
    if options.json:
        print(json.dumps(figures))
        return
    print(f"1 MiB WRITE {figures['write_1MiB_GB_per_s']:.2f} GB/s, iperf3 {figures['iperf3_GB_per_s']:.2f} GB/s, "
          f"ratio {figures['ratio']:.2f} (target 0.70)")  # fmt: skip
    print(f"64 B WRITE half round trip: median {figures['write_64B_half_round_trip_us_median']:.1f} us (target 40), "
          f"p99 {figures['write_64B_half_round_trip_us_p99']:.1f} us")  # fmt: skip


if __name__ == "__main__":
    main()
