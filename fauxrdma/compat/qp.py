"""Queue pairs (pyverbs.qp)."""

from __future__ import annotations

from typing import Any

from fauxrdma import verbs
from fauxrdma.compat.base import PyverbsCM
from fauxrdma.compat.handles import Handle, adopt, not_offered, refused_as, verb
from fauxrdma.compat.qp_attributes import (
    ECE,
    DataBuffer,
    QPAttr,
    QPCap,
    QPInitAttr,
    QPInitAttrEx,
    QPRateLimitAttr,
)
from fauxrdma.compat.srq import copy_bad_wr
from fauxrdma.compat.utils import qp_state_to_str, qp_type_to_str, table
from fauxrdma.compat.wr import RecvWR, SendWR
from fauxrdma.errors import VerbsError
from fauxrdma.ib.enums import QpState, QpType, WrOpcode
from fauxrdma.verbs.cm import CMID

__all__ = [
    "ECE",
    "QP",
    "DataBuffer",
    "QPAttr",
    "QPCap",
    "QPEx",
    "QPInitAttr",
    "QPInitAttrEx",
    "QPRateLimitAttr",
]

_STATES = {QpState.IBV_QPS_INIT: "init", QpState.IBV_QPS_RTR: "RTR", QpState.IBV_QPS_RTS: "RTS"}
_IN_ORDER = (WrOpcode.IBV_WR_RDMA_WRITE, WrOpcode.IBV_WR_RDMA_WRITE_WITH_IMM, WrOpcode.IBV_WR_SEND)
_WHOLE_MESSAGE = 1
"""IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS, and IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG in the answer."""


class QP(Handle, verbs.QP, PyverbsCM):
    """A queue pair of a PD and a QPInitAttr, or of a context (or PD) and a QPInitAttrEx. With `qp_attr` it is brought
    to INIT, of UD to RTS, at once."""

    _CLOSING = "Failed to destroy QP"

    def __init__(self, creator: Any, init_attr: Any, qp_attr: QPAttr | None = None) -> None:
        if isinstance(creator, CMID):
            not_offered("Failed to create QP", "queue pairs made of a CMID: call its create_qp")
        with refused_as("Failed to create QP"):
            self._create(creator, init_attr)
        for parent in {id(each): each for each in (creator, self.pd, self.scq, self.rcq, self.srq)}.values():
            adopt(parent, self)
        if qp_attr is not None:
            self.to_rts(qp_attr) if self.qp_type == QpType.IBV_QPT_UD else self.to_init(qp_attr)

    def _create(self, creator: Any, init_attr: Any) -> None:
        pd, plain = init_attr.plain(creator) if isinstance(init_attr, verbs.QPInitAttrEx) else (creator, init_attr)
        verbs.QP.__init__(self, pd, plain)

    def _move(self, attr: Any, start: QpState, end: QpState) -> None:
        with refused_as(f"Failed to modify QP state to {_STATES[end]}"):
            super()._move(attr, start, end)

    modify = verb("Failed to modify QP")(verbs.QP.modify)
    bind_mw = verb("Failed to Bind MW")(verbs.QP.bind_mw)
    attach_mcast = verb("Failed to attach to multicast group")(verbs.QP.attach_mcast)
    detach_mcast = verb("Failed to detach from multicast group")(verbs.QP.detach_mcast)

    @verb("Failed to query QP")
    def query(self, attr_mask: int = 0) -> tuple[QPAttr, QPInitAttr]:
        """Attributes as they are set, and what the queue pair was made of."""
        attr, init_attr = verbs.QP.query(self, attr_mask)
        made = QPInitAttr(
            init_attr.qp_type, init_attr.qp_context, init_attr.scq, init_attr.rcq, init_attr.srq, init_attr.cap,
            init_attr.sq_sig_all,
        )  # fmt: skip
        return QPAttr.of(attr, init_attr.cap), made

    def post_send(self, wr: SendWR, bad_wr: SendWR | None = None) -> None:  # type: ignore[override]
        """Post a request and the chain behind it; `bad_wr` becomes a copy of the one that was refused."""
        with refused_as("Failed to post send"):
            try:
                verbs.QP.post_send(self, wr)
            except VerbsError as error:
                copy_bad_wr(error, bad_wr)
                raise

    def post_recv(self, wr: RecvWR, bad_wr: RecvWR | None = None) -> None:  # type: ignore[override]
        """Post a receive and the chain behind it; `bad_wr` becomes a copy of the one that was refused."""
        with refused_as("Failed to post recv"):
            try:
                verbs.QP.post_recv(self, wr)
            except VerbsError as error:
                copy_bad_wr(error, bad_wr)
                raise

    def set_ece(self, ece: ECE) -> None:
        """A vendor's options are EOPNOTSUPP; those of no vendor are none."""
        if ece.vendor_id:
            not_offered("Failed to set ECE", "enhanced connection establishment")

    def query_ece(self) -> ECE:
        """Not offered: PyverbsRDMAError(EOPNOTSUPP)."""
        not_offered("Failed to query ECE", "enhanced connection establishment")

    def modify_rate_limit(self, attr: QPRateLimitAttr) -> None:
        """Not offered: PyverbsRDMAError(EOPNOTSUPP). Flows are shaped by the fabric."""
        not_offered("Failed to modify QP rate limit", "rate limits of single queue pairs")

    def query_data_in_order(self, op: int, flags: int = 0) -> int:
        """Whether the bytes of one message land in the order of their addresses (docs/verbs.md, Order): those of WRITE
        and SEND do."""
        return _WHOLE_MESSAGE if op in _IN_ORDER else 0

    def __str__(self) -> str:
        return table(
            {
                "QP type": qp_type_to_str(self.qp_type),
                "  number": self.qp_num,
                "  state": qp_state_to_str(self.qp_state),
            }
        )


class QPEx(QP, verbs.QPEx):
    """A queue pair that is also posted to by calls between `wr_start` and `wr_complete`."""

    def _create(self, creator: Any, init_attr: Any) -> None:
        verbs.QPEx.__init__(self, creator, init_attr)

    @property
    def comp_mask(self) -> int:
        """Which extended fields it was made with."""
        return self._init_attr_ex.comp_mask

    @property
    def ind_table(self) -> Any:
        """Its receive indirection table: none."""
        return self._init_attr_ex.ind_table

    wr_start = verb("ibv_wr_start failed.")(verbs.QPEx.wr_start)
    wr_complete = verb("ibv_wr_complete failed.")(verbs.QPEx.wr_complete)
    wr_abort = verb("ibv_wr_abort failed.")(verbs.QPEx.wr_abort)
    wr_rdma_write = verb("Failed to post send")(verbs.QPEx.wr_rdma_write)
    wr_rdma_write_imm = verb("Failed to post send")(verbs.QPEx.wr_rdma_write_imm)
    wr_rdma_read = verb("Failed to post send")(verbs.QPEx.wr_rdma_read)
    wr_send = verb("Failed to post send")(verbs.QPEx.wr_send)
    wr_send_imm = verb("Failed to post send")(verbs.QPEx.wr_send_imm)
    wr_send_inv = verb("Failed to post send")(verbs.QPEx.wr_send_inv)
    wr_send_tso = verb("Failed to post send")(verbs.QPEx.wr_send_tso)
    wr_atomic_cmp_swp = verb("Failed to post send")(verbs.QPEx.wr_atomic_cmp_swp)
    wr_atomic_fetch_add = verb("Failed to post send")(verbs.QPEx.wr_atomic_fetch_add)
    wr_local_inv = verb("Failed to post send")(verbs.QPEx.wr_local_inv)
    wr_set_sge = verb("Failed to post send")(verbs.QPEx.wr_set_sge)
    wr_set_sge_list = verb("Failed to post send")(verbs.QPEx.wr_set_sge_list)
    wr_set_inline_data = verb("Failed to post send")(verbs.QPEx.wr_set_inline_data)
    wr_set_inline_data_list = verb("Failed to post send")(verbs.QPEx.wr_set_inline_data_list)
    wr_set_ud_addr = verb("Failed to post send")(verbs.QPEx.wr_set_ud_addr)
    wr_set_xrc_srqn = verb("Failed to post send")(verbs.QPEx.wr_set_xrc_srqn)

    @verb("Failed to post send")
    def wr_bind_mw(self, mw: verbs.MW, rkey: int, bind_info: verbs.MWBindInfo) -> None:
        """Begin the bind of a type 2 window, which the queue pair closes when it is closed."""
        verbs.QPEx.wr_bind_mw(self, mw, rkey, bind_info)
        self.add_ref(mw)

    def wr_atomic_write(self, rkey: int, remote_addr: int, atomic_wr: bytes) -> None:
        """Not offered: PyverbsRDMAError(EOPNOTSUPP)."""
        not_offered("Failed to post send", "ATOMIC_WRITE")

    def wr_flush(self, rkey: int, remote_addr: int, length: int, ptype: int, level: int) -> None:
        """Not offered: PyverbsRDMAError(EOPNOTSUPP)."""
        not_offered("Failed to post send", "FLUSH")
