"""One end of a connection, for tests that need some: an open device with a region and a queue pair."""

from __future__ import annotations

from typing import Any

from fauxrdma.ib.enums import IBV_QPT_RC, IBV_SEND_SIGNALED, IBV_WR_RDMA_WRITE, IBV_WR_SEND, AccessFlags, QpType
from fauxrdma.verbs import CQ, MR, PD, QP, SGE, WC, CompChannel, Context, QPCap, QPInitAttr, RecvWR, SendWR

__all__ = ["End"]

_ACCESS = (
    AccessFlags.IBV_ACCESS_LOCAL_WRITE
    | AccessFlags.IBV_ACCESS_REMOTE_WRITE
    | AccessFlags.IBV_ACCESS_REMOTE_READ
    | AccessFlags.IBV_ACCESS_REMOTE_ATOMIC
)


class End:
    """`pd`, `channel`, `cq`, `mr` of `length` bytes and `qp` of an open `context`; `source` is a buffer to register,
    `provider` a memory provider (docs/memory.md).
    Close it, or the context. Raises what verbs do."""

    def __init__(
        self,
        context: Context,
        length: int = 65536,
        qp_type: QpType = IBV_QPT_RC,
        *,
        source: Any = None,
        provider: str | None = None,
    ) -> None:
        self.context = context
        self.pd = PD(context)
        self.channel = CompChannel(context)
        self.cq = CQ(context, 1024, None, self.channel, 0)
        if source is None:
            self.mr = MR(self.pd, length, int(_ACCESS), provider=provider)
        else:
            self.mr = MR.over(self.pd, source, int(_ACCESS), provider=provider)
        cap = QPCap(max_send_wr=64, max_recv_wr=64, max_send_sge=4, max_recv_sge=4)
        self.qp = QP(self.pd, QPInitAttr(qp_type=qp_type, scq=self.cq, rcq=self.cq, cap=cap))

    def connect(self, other: End, **attributes: Any) -> None:
        """Connect both ends to each other; `attributes` are those of `QP.connect`."""
        self.qp.connect(other.qp.endpoint(), **attributes)
        other.qp.connect(self.qp.endpoint(), **attributes)

    def sge(self, offset: int = 0, length: int | None = None) -> SGE:
        """A part of the region."""
        return SGE(self.mr.buf + offset, self.mr.length - offset if length is None else length, self.mr.lkey)

    def post(
        self, opcode: int, wr_id: int, length: int, to: End | None = None, *, offset: int = 0, **fields: Any
    ) -> None:
        """Post a signaled request on `length` bytes at `offset` of the region, to the same offset of the other's."""
        if to is not None:
            fields = {"remote_addr": to.mr.buf + offset, "rkey": to.mr.rkey, **fields}
        fields.setdefault("send_flags", IBV_SEND_SIGNALED)
        self.qp.post_send(SendWR(wr_id, opcode, [self.sge(offset, length)], **fields))

    def write(self, to: End, length: int, wr_id: int = 1, **fields: Any) -> None:
        """Post an RDMA WRITE."""
        self.post(IBV_WR_RDMA_WRITE, wr_id, length, to, **fields)

    def send(self, length: int, wr_id: int = 1, **fields: Any) -> None:
        """Post a SEND."""
        self.post(IBV_WR_SEND, wr_id, length, **fields)

    def receive(self, length: int, wr_id: int = 1, *, offset: int = 0) -> None:
        """Post a receive."""
        self.qp.post_recv(RecvWR(wr_id, [self.sge(offset, length)]))

    def wait(self, count: int = 1, timeout_s: float = 20.0) -> list[WC]:
        """Exactly `count` completions. Raises AssertionError when they do not come in time."""
        got: list[WC] = []
        while len(got) < count:
            more = self.cq.wait(count - len(got), timeout_s)
            if not more:
                raise AssertionError(f"{len(got)} of {count} completions came within {timeout_s} s: {got}")
            got += more
        return got

    def close(self) -> None:
        """Close everything but the context, in order. Idempotent."""
        for thing in (self.qp, self.mr, self.cq, self.channel, self.pd):
            thing.close()
