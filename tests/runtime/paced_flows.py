"""Streams over a paced lab whose rate is measured in fabric time."""

from __future__ import annotations

import itertools
import statistics
import threading
from collections.abc import Callable, Sequence

import pytest

from fauxrdma.ib.enums import IBV_SEND_SIGNALED, IBV_WC_SUCCESS, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE
from fauxrdma.lab.local import LocalLab
from fauxrdma.verbs import CQ, MR, PD, QP, SGE, CompChannel, Context, QPCap, QPInitAttr, SendWR

LENGTH = 262_144


class Stream:
    """A queue pair from `source` to `target`, each (node, HCA), and regions of LENGTH bytes at both ends: one for each
    of `out` and `into`, GPUs of the nodes or None for host memory. Message i of a run goes from the region of phase
    ``i // (messages / phases)``. With `read` the target asks for the data."""

    def __init__(
        self,
        lab: LocalLab,
        source: tuple[int, str],
        target: tuple[int, str],
        out: Sequence[int | None],
        into: Sequence[int | None],
        *,
        read: bool = False,
    ) -> None:
        ends = [target, source] if read else [source, target]
        memories = [into, out] if read else [out, into]
        self._opcode = IBV_WR_RDMA_READ if read else IBV_WR_RDMA_WRITE
        self.contexts = [Context(hca, str(lab.socket_path(node))) for node, hca in ends]
        pds = [PD(ctx) for ctx in self.contexts]
        self._channel = CompChannel(self.contexts[0])
        self._cqs = [CQ(self.contexts[0], 256, None, self._channel), CQ(self.contexts[1], 16)]
        self._mrs = [[MR(pd, LENGTH, 7, gpu=gpu) for gpu in gpus] for pd, gpus in zip(pds, memories, strict=True)]
        cap = QPCap(max_send_wr=128)
        self._qps = [
            QP(pd, QPInitAttr(scq=cq, rcq=cq, cap=cap, sq_sig_all=0)) for pd, cq in zip(pds, self._cqs, strict=True)
        ]
        self._qps[0].connect(self._qps[1].endpoint(), timeout=14)
        self._qps[1].connect(self._qps[0].endpoint(), timeout=14)
        self.path_rate_bps = self.contexts[0].path(self.contexts[1].hca.lid).rate_bps
        self.bps: list[float] = []

    def run(self, messages: int, start: threading.Barrier) -> None:
        """The rate of each phase from completion to completion, in fabric time: latency and start-up do not count."""
        phases = len(self._mrs[0])
        each = messages // phases
        requests = []
        for local, remote in zip(*self._mrs, strict=True):
            sge = SGE(local.buf, LENGTH, local.lkey)
            requests += [SendWR(1, self._opcode, [sge], 0, IBV_SEND_SIGNALED, remote.buf, remote.rkey)] * each
        start.wait(30)
        self._qps[0].post_send(*requests)
        stamps: list[int] = []
        while len(stamps) < len(requests):
            wcs = self._cqs[0].wait(64, 60)
            assert wcs
            assert all(wc.status == IBV_WC_SUCCESS for wc in wcs)
            stamps += [wc.timestamp_ns for wc in wcs]
        self.bps = [_rate(stamps[phase * each : (phase + 1) * each]) for phase in range(phases)]

    def close(self) -> None:
        for ctx in self.contexts:
            ctx.close()


def _rate(stamps: list[int]) -> float:
    """The median slope (Theil-Sen): the pacing keeps absolute deadlines, so that the completions a stalled host makes
    late, the first and the last among them, do not move the line through the others."""
    slopes = [(b - a) / (j - i) for (i, a), (j, b) in itertools.combinations(enumerate(stamps), 2)]
    return LENGTH * 8e9 / statistics.median(slopes)


def rates(streams: Sequence[Stream], messages: int) -> None:
    """Run streams at the same time."""
    start = threading.Barrier(len(streams))
    threads = [threading.Thread(target=stream.run, args=(messages, start)) for stream in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    for stream in streams:
        stream.close()


def settled(
    open_streams: Callable[[], Sequence[Stream]], share: Sequence[float], tolerance: float, messages: int = 24
) -> None:
    """In each phase every stream gets that `share` of its path's rate, within `tolerance`; measured again if the host
    was in the way.

    The emulation never runs ahead of the model; a host that stalls for a while can only make it late. So the best of
    three runs tells what the pacing does, and the first is nearly always enough.
    """
    worst, seen = 1.0, []
    for _ in range(3):
        streams = open_streams()
        rates(streams, messages)
        seen = [[bps / stream.path_rate_bps for bps in stream.bps] for stream in streams]
        worst = max(abs(got / want - 1) for got, want in zip(itertools.chain(*seen), share, strict=True))
        if worst <= tolerance:
            return
    pytest.fail(f"a flow was {worst:.1%} off its modelled rate, {tolerance:.0%} allowed: {seen}, not {share}")
