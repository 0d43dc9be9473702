"""One side of a test: its device, memory and queue pairs."""

from __future__ import annotations

import os
import time
from typing import Any

from fauxrdma.errors import FabricUnhealthy
from fauxrdma.ib.attributes import QPAttr, QPCap
from fauxrdma.ib.enums import AccessFlags, Mtu, QpType, SendFlags, WcStatus, WrOpcode
from fauxrdma.ib.work import SGE, WC, RecvWR, SendWR
from fauxrdma.perf.spec import PerfSpec
from fauxrdma.verbs import AH, CQ, MR, PD, QP, Context, QPInitAttr

__all__ = ["GRH_BYTES", "RX_DEPTH", "End"]

GRH_BYTES = 40
RX_DEPTH = 512
"""Receives that are kept posted, as perftest's default."""

_QKEY = 0x11111111
_ACCESS = (
    AccessFlags.IBV_ACCESS_LOCAL_WRITE
    | AccessFlags.IBV_ACCESS_REMOTE_WRITE
    | AccessFlags.IBV_ACCESS_REMOTE_READ
    | AccessFlags.IBV_ACCESS_REMOTE_ATOMIC
)
_STALLED_S = 120.0


class End:
    """An open device with one region, the outgoing message in its first half and the incoming one in its second, and
    the queue pairs. `number` is 0 for the client, 1 for the server. Raises VerbsError as the verbs do."""

    def __init__(self, spec: PerfSpec, number: int) -> None:
        socket, device = spec.ends[number]
        self.spec = spec
        self.ctx = Context(device, socket)
        self.pd = PD(self.ctx)
        depth = spec.tx_depth * spec.qps
        self.cq = CQ(self.ctx, depth + 1)
        self.recv_cq = CQ(self.ctx, RX_DEPTH * spec.qps + 1)
        # Outgoing and incoming message on cache lines of their own; in front of a datagram comes its GRH.
        self.incoming = -(-spec.most_bytes // 64) * 64
        self.mr = MR(self.pd, self.incoming + GRH_BYTES + spec.most_bytes, int(_ACCESS), gpu=spec.gpu)
        inline = spec.inline_bytes
        cap = QPCap(max_send_wr=spec.tx_depth, max_recv_wr=RX_DEPTH, max_inline_data=inline)
        init = QPInitAttr(spec.qp_type, scq=self.cq, rcq=self.recv_cq, cap=cap, sq_sig_all=0)
        self.qps = [QP(self.pd, init) for _ in range(spec.qps)]
        self.peer: dict[str, Any] = {}
        self._ah: AH | None = None

    @property
    def now_ns(self) -> int:
        """Fabric time."""
        return self.ctx.fabric_now_ns()

    def card(self) -> dict[str, Any]:
        """What the other side needs to know of this one."""
        return {
            "qps": [qp.endpoint() for qp in self.qps],
            "addr": self.mr.buf + self.incoming,
            "rkey": self.mr.rkey,
            "device": self.ctx.name,
        }

    def connect(self, peer: dict[str, Any]) -> None:
        """Bring the queue pairs to RTS towards the peer's."""
        self.peer = peer
        if self.spec.qp_type == QpType.IBV_QPT_UD:
            for qp in self.qps:
                qp.to_rts(QPAttr(qkey=_QKEY, sq_psn=0))
            self._ah = AH(self.pd, attr=self.qps[0].address_of(peer["qps"][0]))
            return
        mtu = self.spec.path_mtu_bytes
        for qp, remote in zip(self.qps, peer["qps"], strict=True):
            qp.connect(remote, path_mtu=None if mtu is None else Mtu.of_bytes(mtu))

    def request(self, qp_index: int, size: int, signaled: bool) -> SendWR:
        """The test's operation with `size` bytes."""
        flags = SendFlags.IBV_SEND_SIGNALED if signaled else 0
        opcode = self.spec.test.opcode
        if size <= self.spec.inline_bytes and opcode in (WrOpcode.IBV_WR_RDMA_WRITE, WrOpcode.IBV_WR_SEND):
            flags |= SendFlags.IBV_SEND_INLINE
        wr = SendWR(qp_index, opcode, [SGE(self.mr.buf, size, self.mr.lkey)], 0, int(flags))
        if self._ah is not None:
            wr.set_wr_ud(self._ah, self.peer["qps"][qp_index]["qpn"], _QKEY)
        elif opcode != WrOpcode.IBV_WR_SEND:
            wr.remote_addr, wr.rkey = self.peer["addr"], self.peer["rkey"]
            wr.compare_add = 1
        return wr

    def post_receives(self, qp_index: int, size: int, count: int) -> None:
        """Post `count` receives; all land in the same place, as nobody reads them."""
        head = GRH_BYTES if self.spec.qp_type == QpType.IBV_QPT_UD else 0
        sg = [SGE(self.mr.buf + self.incoming, size + head, self.mr.lkey)]
        self.qps[qp_index].post_recv(*[RecvWR(qp_index, sg) for _ in range(count)])

    def completions(self, cq: CQ, at_least_one: bool = True) -> list[WC]:
        """What has completed; waits by polling, as perftest does, yielding the processor to the daemons between polls.

        Raises FabricUnhealthy, with the status and the reason, for a completion in error or none in two minutes.
        """
        polled, wcs = cq.poll(64)
        deadline = 0.0
        while at_least_one and not polled:
            os.sched_yield()
            polled, wcs = cq.poll(64)
            if not polled:
                deadline = self.patience(deadline)
        for wc in wcs:
            if wc.status != WcStatus.IBV_WC_SUCCESS:
                reason = self.qps[0].last_error()
                raise FabricUnhealthy(f"a request completed with {WcStatus(wc.status).name}: {reason}")
        return wcs

    def yield_time(self) -> None:
        """Let the daemons run between two looks at memory, and virtual time go on."""
        if self.ctx.virtual is not None:
            self.ctx.virtual.timer.wait_step()
        else:
            os.sched_yield()

    def patience(self, deadline: float) -> float:
        """Call it in a loop that waits, first with 0. Raises FabricUnhealthy when the loop has waited too long."""
        now = time.monotonic()
        if deadline and now > deadline:
            raise FabricUnhealthy(
                f"nothing came for {_STALLED_S:.0f} s: a message was lost (UC and UD do not repeat them), "
                "or the dilation is so high that one takes longer"
            )
        return deadline or now + _STALLED_S

    def close(self) -> None:
        """Close the device, and with it all that is made from it."""
        self.ctx.close()
