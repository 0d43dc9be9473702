"""A writer between two nodes of a lab, for the tests here: n0.hca1 writes to n1.hca1."""

from __future__ import annotations

import os

from fauxrdma.ib.enums import IBV_SEND_SIGNALED, IBV_WC_SUCCESS, IBV_WR_RDMA_WRITE, AsyncEventType, WcStatus
from fauxrdma.lab.local import LocalLab
from fauxrdma.verbs import CQ, MR, PD, QP, SGE, CompChannel, Context, QPCap, QPInitAttr, SendWR

__all__ = ["LENGTH", "Writer", "events"]

LENGTH = 1 << 18


class Writer:
    """Two contexts, a region each, and a connected pair of RC queue pairs; `payload` is what is written."""

    def __init__(
        self, lab: LocalLab, *, timeout: int = 14, retry_cnt: int = 7, length: int = LENGTH, gpu: int | None = None
    ) -> None:
        self.ctx = [Context("hca1", str(lab.socket_path(node))) for node in (0, 1)]
        pds = [PD(ctx) for ctx in self.ctx]
        self.length = length
        self.channel = CompChannel(self.ctx[0])
        self.cqs = [CQ(self.ctx[0], 256, None, self.channel), CQ(self.ctx[1], 16)]
        self.mrs = [MR(pd, length, 7, gpu=gpu) for pd in pds]
        self.qps = [
            QP(pd, QPInitAttr(scq=cq, rcq=cq, cap=QPCap(max_send_wr=64))) for pd, cq in zip(pds, self.cqs, strict=True)
        ]
        for one, other in (self.qps, self.qps[::-1]):
            one.connect(other.endpoint(), timeout=timeout, retry_cnt=retry_cnt)
        self.payload = os.urandom(length)
        self.mrs[0].write(self.payload, length)

    def post(self, messages: int = 1) -> None:
        local, remote = self.mrs
        sge = SGE(local.buf, self.length, local.lkey)
        wr = SendWR(1, IBV_WR_RDMA_WRITE, [sge], 0, IBV_SEND_SIGNALED, remote.buf, remote.rkey)
        self.qps[0].post_send(*[wr] * messages)

    def statuses(self, count: int = 1) -> list[WcStatus]:
        """Of the next `count` completions."""
        got: list[WcStatus] = []
        while len(got) < count:
            wcs = self.cqs[0].wait(count - len(got), 30)
            assert wcs, f"{len(got)} of {count} completions in half a minute"
            got += [WcStatus(wc.status) for wc in wcs]
        return got

    def arrives(self, messages: int = 1) -> None:
        """Write new bytes; all completions are good, and the bytes are there."""
        self.payload = os.urandom(self.length)
        self.mrs[0].write(self.payload, self.length)
        self.post(messages)
        assert self.statuses(messages) == [IBV_WC_SUCCESS] * messages
        assert self.mrs[1].read(self.length, 0) == self.payload

    def time_ns(self, messages: int = 4) -> int:
        """Fabric time from the first post to the last completion of that many writes."""
        begin = self.ctx[0].fabric_now_ns()
        self.post(messages)
        assert self.statuses(messages) == [IBV_WC_SUCCESS] * messages
        return self.ctx[0].fabric_now_ns() - begin

    def close(self) -> None:
        for ctx in self.ctx:
            ctx.close()


def events(ctx: Context, count: int) -> list[AsyncEventType]:
    """The next asynchronous events of a context."""
    got = []
    for _ in range(count):
        event = ctx.get_async_event(20)
        assert event is not None, f"only {got}"
        got.append(AsyncEventType(event.event_type))
        event.ack()
    return got
