"""Ends of a connection over a real lab, for the tests here."""

from __future__ import annotations

from typing import Any

from fauxrdma.ib.enums import IBV_SEND_SIGNALED, IBV_WR_RDMA_WRITE
from fauxrdma.lab.local import LocalLab
from fauxrdma.verbs import CQ, MR, PD, QP, SGE, WC, CompChannel, Context, QPCap, QPInitAttr, SendWR

ACCESS = 7  # local write, remote write, remote read


class End:
    """An open device with a region, a completion queue and a queue pair."""

    def __init__(
        self, lab: LocalLab, node: int, hca: str = "hca1", length: int = 1 << 20, access: int = ACCESS
    ) -> None:
        self.ctx = Context(hca, str(lab.socket_path(node)))
        self.pd = PD(self.ctx)
        self.channel = CompChannel(self.ctx)
        self.cq = CQ(self.ctx, 4096, None, self.channel, 0)
        self.mr = MR(self.pd, length, access)
        cap = QPCap(max_send_wr=64, max_recv_wr=64, max_send_sge=4, max_recv_sge=4, max_inline_data=128)
        self.qp = QP(self.pd, QPInitAttr(scq=self.cq, rcq=self.cq, cap=cap))

    def sge(self, offset: int, length: int) -> SGE:
        return SGE(self.mr.buf + offset, length, self.mr.lkey)

    def write(self, to: End, length: int, wr_id: int = 1, **fields: Any) -> SendWR:
        values: dict[str, Any] = {
            "remote_addr": to.mr.buf,
            "rkey": to.mr.rkey,
            "send_flags": IBV_SEND_SIGNALED,
            **fields,
        }
        sg = values.pop("sg", [self.sge(0, length)])
        return SendWR(wr_id, IBV_WR_RDMA_WRITE, sg, **values)

    def wait(self, count: int = 1, timeout_s: float = 20.0) -> list[WC]:
        """Exactly `count` completions."""
        got: list[WC] = []
        while len(got) < count:
            wcs = self.cq.wait(count - len(got), timeout_s)
            assert wcs, f"{len(got)} of {count} completions within {timeout_s} s"
            got += wcs
        return got

    def close(self) -> None:
        self.ctx.close()


def connect(a: End, b: End, **attributes: int) -> None:
    a.qp.connect(b.qp.endpoint(), **attributes)
    b.qp.connect(a.qp.endpoint(), **attributes)
