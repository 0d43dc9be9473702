"""The paced clock keeps the model's rates: achieved against modelled, in fabric time, over real daemons."""

from __future__ import annotations

import itertools
import statistics
import threading
from collections.abc import Iterator

import pytest

from fauxrdma.ib.enums import IBV_SEND_SIGNALED, IBV_WC_SUCCESS, IBV_WR_RDMA_WRITE
from fauxrdma.lab.local import LocalLab
from fauxrdma.verbs import CQ, MR, PD, QP, SGE, CompChannel, Context, QPCap, QPInitAttr, SendWR


@pytest.fixture(scope="module")
def lab() -> Iterator[LocalLab]:
    with LocalLab("seed-rail8", nodes=2, gpus=8, clock="paced", dilation=3000) as running:
        yield running


class Flow:
    """A stream of WRITEs from node 0 to node 1, rail to rail (or into one rail's HCA); `run` measures its rate."""

    def __init__(self, lab: LocalLab, source: str, target: str, length: int) -> None:
        self.length = length
        self.contexts = [Context(source, str(lab.socket_path(0))), Context(target, str(lab.socket_path(1)))]
        pds = [PD(ctx) for ctx in self.contexts]
        self.channel = CompChannel(self.contexts[0])
        self.cqs = [CQ(self.contexts[0], 256, None, self.channel), CQ(self.contexts[1], 16)]
        self.mrs = [MR(pd, length, 7) for pd in pds]
        cap = QPCap(max_send_wr=128)
        self.qps = [
            QP(pd, QPInitAttr(scq=cq, rcq=cq, cap=cap, sq_sig_all=0)) for pd, cq in zip(pds, self.cqs, strict=True)
        ]
        self.qps[0].connect(self.qps[1].endpoint(), timeout=14)
        self.qps[1].connect(self.qps[0].endpoint(), timeout=14)
        self.path_rate_bps = self.contexts[0].path(self.contexts[1].hca.lid).rate_bps
        self.bps = 0.0

    def run(self, messages: int, start: threading.Barrier) -> None:
        """Rate from completion to completion, in fabric time: latency and start-up do not count."""
        local, remote = self.mrs
        sge = SGE(local.buf, self.length, local.lkey)
        wr = SendWR(1, IBV_WR_RDMA_WRITE, [sge], 0, IBV_SEND_SIGNALED, remote.buf, remote.rkey)
        start.wait(30)
        self.qps[0].post_send(*[wr] * messages)
        stamps: list[int] = []
        while len(stamps) < messages:
            wcs = self.cqs[0].wait(64, 60)
            assert wcs
            assert all(wc.status == IBV_WC_SUCCESS for wc in wcs)
            stamps += [wc.timestamp_ns for wc in wcs]
        # The median slope (Theil-Sen): the pacing keeps absolute deadlines, so that the completions a stalled host
        # makes late, the first and the last among them, do not move the line through the others.
        slopes = [(b - a) / (j - i) for (i, a), (j, b) in itertools.combinations(enumerate(stamps), 2)]
        self.bps = self.length * 8e9 / statistics.median(slopes)

    def close(self) -> None:
        for ctx in self.contexts:
            ctx.close()


def rates(lab: LocalLab, ends: list[tuple[str, str]], messages: int, length: int) -> list[Flow]:
    flows = [Flow(lab, source, target, length) for source, target in ends]
    start = threading.Barrier(len(flows))
    threads = [threading.Thread(target=flow.run, args=(messages, start)) for flow in flows]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    for flow in flows:
        flow.close()
    return flows


def settled(lab: LocalLab, ends: list[tuple[str, str]], share: float, tolerance: float) -> None:
    """Each flow gets `share` of its path's rate, within `tolerance`; measured again if the host was in the way.

    The emulation never runs ahead of the model; a host that stalls for a while can only make it late. So the best of
    three runs tells what the pacing does, and the first is nearly always enough.
    """
    worst = 1.0
    for _ in range(3):
        flows = rates(lab, ends, messages=24, length=262_144)
        for flow in flows:
            assert flow.bps > 0
        worst = max(abs(flow.bps / (share * flow.path_rate_bps) - 1) for flow in flows)
        if worst <= tolerance:
            return
    pytest.fail(f"a flow was {worst:.1%} off its modelled rate, {tolerance:.0%} allowed")


def rails(count: int) -> list[tuple[str, str]]:
    return [(f"hca{i % 8 + 1}", f"hca{i % 8 + 1}") for i in range(count)]


def test_one_flow_runs_at_the_path_rate(lab: LocalLab) -> None:
    settled(lab, rails(1), 1.0, 0.02)


def test_four_flows_on_four_rails_run_at_the_path_rate(lab: LocalLab) -> None:
    settled(lab, rails(4), 1.0, 0.02)


def test_sixteen_flows_two_to_a_rail_get_half_each(lab: LocalLab) -> None:
    settled(lab, rails(16), 0.5, 0.02)


def test_flows_that_share_one_link_get_fair_shares(lab: LocalLab) -> None:
    settled(lab, [("hca1", "hca1"), ("hca2", "hca1"), ("hca3", "hca1")], 1 / 3, 0.03)
