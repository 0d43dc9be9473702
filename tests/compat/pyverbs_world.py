"""Objects of pyverbs to try its names on."""

from __future__ import annotations

import time
from typing import Any

from pyverbs import enums as e
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ, CQEX, CompChannel, CqInitAttrEx
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPEx, QPInitAttr, QPInitAttrEx
from pyverbs.wr import SGE, RecvWR, SendWR

ACCESS = 0x1F  # local write, all remote, windows
QKEY = 0x1234
ALL_FIELDS = 0x8FF  # what this device can tell of a completion
ALL_OPERATIONS = 0x3FF  # what an RC queue pair here can do by calls


class World:
    """A context with a connected pair of RC queue pairs, a pair of UD ones, and their queues."""

    def __init__(self, name: str = "hca1") -> None:
        self.ctx = Context(name=name)
        self.port = self.ctx.query_port(1)
        self.pd = PD(self.ctx)
        self.mr = MR(self.pd, 4096, ACCESS)
        self.channel = CompChannel(self.ctx)
        self.cq = CQ(self.ctx, 64, None, self.channel, 0)
        self.a, self.b = self.pair(QP, self.cq)

    # ---- queue pairs ---------------------------------------------------------------------------------------------

    def cap(self) -> QPCap:
        return QPCap(max_send_wr=16, max_recv_wr=16, max_send_sge=2, max_recv_sge=2, max_inline_data=64)

    def attr(self) -> QPAttr:
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = ACCESS
        attr.qkey = QKEY
        return attr

    def plain(self, qp_type: int = e.IBV_QPT_RC, **more: Any) -> QPInitAttr:
        return QPInitAttr(qp_type=qp_type, scq=self.cq, rcq=self.cq, cap=self.cap(), **more)

    def extended(self, qp_type: int = e.IBV_QPT_RC, cq: Any = None, operations: int = ALL_OPERATIONS) -> QPInitAttrEx:
        mask = e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
        return QPInitAttrEx(
            qp_type=qp_type, scq=cq or self.cq, rcq=cq or self.cq, cap=self.cap(), pd=self.pd, comp_mask=mask,
            send_ops_flags=operations,
        )  # fmt: skip

    def pair(self, kind: Any, cq: Any, qp_type: int = e.IBV_QPT_RC) -> tuple[Any, Any]:
        ends = []
        for _ in range(2):
            init = self.extended(qp_type, cq) if kind is QPEx else self.plain(qp_type)
            ends.append(kind(self.ctx if kind is QPEx else self.pd, init, self.attr()))
        if qp_type != e.IBV_QPT_UD:
            for qp, peer in (ends, ends[::-1]):
                qp.to_rts(self.path(peer))
        return ends[0], ends[1]

    def path(self, peer: Any) -> QPAttr:
        attr = self.attr()
        attr.path_mtu, attr.dest_qp_num = e.IBV_MTU_1024, peer.qp_num
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
        attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 12, 14, 7, 7
        attr.ah_attr = self.address()
        return attr

    def address(self) -> AHAttr:
        gid = self.ctx.query_gid(1, 0)
        return AHAttr(dlid=self.port.lid, is_global=1, gr=GlobalRoute(dgid=GID(gid.gid), hop_limit=64))

    def remote(self) -> tuple[int, int]:
        """Key and address of memory to reach over the wire."""
        return self.mr.rkey, self.mr.buf + 2048

    # ---- work ----------------------------------------------------------------------------------------------------

    def sge(self, length: int = 8, offset: int = 0) -> SGE:
        return SGE(self.mr.buf + offset, length, self.mr.lkey)

    def recv(self, wr_id: int = 1) -> RecvWR:
        return RecvWR(wr_id=wr_id, num_sge=1, sg=[self.sge(1024, 1024)])

    def send(self, wr_id: int = 2, **more: Any) -> SendWR:
        return SendWR(wr_id=wr_id, num_sge=1, sg=[self.sge()], **more)

    def completions(self, count: int = 1) -> list[Any]:
        """The next ones, in the order of their wr_id; all good."""
        found: list[Any] = []
        deadline = time.monotonic() + 10
        while len(found) < count:
            found += self.cq.poll(count - len(found))[1]
            assert time.monotonic() < deadline, f"{len(found)} of {count} completions"
        assert [wc.status for wc in found] == [e.IBV_WC_SUCCESS] * count, [str(wc) for wc in found]
        return sorted(found, key=lambda wc: wc.wr_id)

    def by_calls(self, *calls: Any, receive: bool = False, count: int = 1) -> list[Any]:
        """Post by calls (each is given the queue pair) on a new extended pair; the completions."""
        a, b = self.pair(QPEx, self.cq)
        if receive:
            b.post_recv(self.recv())
        a.wr_start()
        a.wr_id, a.wr_flags = 2, e.IBV_SEND_SIGNALED
        for call in calls:
            call(a)
        a.wr_complete()
        wcs = self.completions(count + receive)
        a.close()
        b.close()
        return wcs

    def polled(self) -> CQEX:
        """An extended completion queue with a good receive at hand, of a batch that the caller ends."""
        cq = CQEX(self.ctx, CqInitAttrEx(cqe=16, wc_flags=ALL_FIELDS))
        self.kept = a, b = self.pair(QPEx, cq)
        b.post_recv(self.recv(9))
        a.post_send(self.send(opcode=e.IBV_WR_SEND_WITH_IMM, imm_data=5, send_flags=0))
        deadline = time.monotonic() + 10
        while cq.start_poll(None) == 2:
            assert time.monotonic() < deadline
        return cq
