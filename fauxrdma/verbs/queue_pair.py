"""Queue pairs."""

from __future__ import annotations

import ctypes
import errno
import random
import struct
import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from fauxrdma.abi import control_verbs as V
from fauxrdma.abi.layout import QpLayout
from fauxrdma.abi.rings import QueuePairRings
from fauxrdma.errors import VerbsError
from fauxrdma.ib.attributes import AHAttr, QPAttr, QPCap
from fauxrdma.ib.enums import AccessFlags, LinkLayer, Mtu, QpAttrMask, QpState, QpType, SendFlags, WrOpcode
from fauxrdma.ib.gids import connection_gid_index, gid_table
from fauxrdma.ib.qp_states import TRANSITIONS, check_type
from fauxrdma.ib.rnic import operations_of
from fauxrdma.ib.work import RecvWR, SendWR
from fauxrdma.memory.shared import SharedMemory
from fauxrdma.verbs.completion import CQ
from fauxrdma.verbs.memory import PD
from fauxrdma.verbs.memory_windows import MW, MWBind
from fauxrdma.verbs.posting import PLAIN, check_inline, datagram_operands, no_operation, refused, special_operands
from fauxrdma.verbs.shared_receive import SRQ

__all__ = ["QP", "QPInitAttr"]

M = QpAttrMask
_INLINE = int(SendFlags.IBV_SEND_INLINE)
_RESET, _INIT, _RTR, _RTS = (
    QpState.IBV_QPS_RESET, QpState.IBV_QPS_INIT, QpState.IBV_QPS_RTR, QpState.IBV_QPS_RTS,
)  # fmt: skip
_ALL_REMOTE = int(
    AccessFlags.IBV_ACCESS_LOCAL_WRITE
    | AccessFlags.IBV_ACCESS_REMOTE_WRITE
    | AccessFlags.IBV_ACCESS_REMOTE_READ
    | AccessFlags.IBV_ACCESS_REMOTE_ATOMIC
)
_ROUTED_HOPS = 64
"""Hop limit of a RoCE packet, the usual IP time to live."""


@dataclass(slots=True)
class QPInitAttr:
    """What a queue pair is made of, with pyverbs' defaults (every send is signaled unless `sq_sig_all` is 0).

    With `srq` it receives from there, and `cap.max_recv_wr` is ignored.
    """

    qp_type: int = QpType.IBV_QPT_RC
    scq: CQ | None = None
    rcq: CQ | None = None
    cap: QPCap = field(default_factory=QPCap)
    sq_sig_all: int = 1
    qp_context: object = None
    srq: SRQ | None = None


class QP:
    """A queue pair, created in RESET; with `attr` it is brought to INIT (UD: to RTS) at once, as in pyverbs.

    Connect one of RC or UC with :meth:`connect` (one call) or `to_init`, `to_rtr`, `to_rts`. Raises VerbsError as
    libibverbs would.
    """

    CLOSE_ORDER = 0

    def __init__(self, pd: PD, init_attr: QPInitAttr, attr: QPAttr | None = None) -> None:
        if init_attr.scq is None or init_attr.rcq is None:
            raise VerbsError(errno.EINVAL, "Failed to create QP: QPInitAttr needs both scq and rcq")
        self.pd = pd
        self.context = pd.context
        self.scq, self.rcq = init_attr.scq, init_attr.rcq
        self.srq = init_attr.srq
        self._init_attr = replace(init_attr)
        self.cap = cap = init_attr.cap if self.srq is None else replace(init_attr.cap, max_recv_wr=0)
        self.qp_type = check_type(init_attr.qp_type)
        self._offered = operations_of(self.context.hca.transport, self.qp_type)
        created, fds = self.context._channel.request(
            V.CreateQp(
                int(init_attr.qp_type), pd.handle, self.scq.handle, self.rcq.handle,
                None if self.srq is None else self.srq.handle, cap.max_send_wr, cap.max_recv_wr,
                cap.max_send_sge, cap.max_recv_sge, cap.max_inline_data, bool(init_attr.sq_sig_all),
            ),
            V.QpCreated,
            expect_fds=1,
        )  # fmt: skip
        self.qp_num: int = created.qpn
        layout = QpLayout(cap.max_send_wr, cap.max_recv_wr, cap.max_send_sge, cap.max_recv_sge, cap.max_inline_data)
        memory = SharedMemory.attach(fds[0], layout.total_bytes)
        memory.close_fd()
        self._rings = QueuePairRings(memory.view, layout)
        self._sq_posted = 0
        self._rq_posted = 0
        self._sq_released = 0  # advanced by CQ.poll
        self._rq_released = 0
        self._psn = random.getrandbits(24)
        self._lock = threading.Lock()  # of both work queues
        self._closed = False
        self.context._qps[self.qp_num] = self
        if self.srq is not None:
            self.context._srq_of_qp[self.qp_num] = self.srq
        self.context._children.add(self)
        if attr is not None:
            try:
                self.to_rts(attr) if self.qp_type == QpType.IBV_QPT_UD else self.to_init(attr)
            except VerbsError:
                self.close()
                raise

    # ---- state ---------------------------------------------------------------------------------------------------

    @property
    def qp_state(self) -> QpState:
        """The state as the daemon last published it (no system call)."""
        return QpState(self._rings.state)

    def modify(self, attr: QPAttr, mask: int) -> None:
        """Set the attributes named in `mask`. Raises VerbsError(EINVAL), naming what is wrong, and changes nothing."""
        values = {name: int(value) for name, value in asdict(attr).items() if name != "ah_attr"}
        self.context._request(V.ModifyQp(self.qp_num, int(mask), values, V.AddressVector.of(attr.ah_attr)), V.Done)
        if mask & M.IBV_QP_STATE and attr.qp_state == QpState.IBV_QPS_RESET:
            self.scq._purge(self.qp_num)
            self.rcq._purge(self.qp_num)
            self._sq_released = self._sq_posted
            self._rq_released = self._rq_posted
            # A frame of the old connection that is still under way must not fit into the next one.
            self._psn = random.getrandbits(24)

    def to_init(self, attr: QPAttr) -> None:
        """RESET to INIT: pkey_index, port_num and qp_access_flags, for UD qkey in its place."""
        self._move(attr, _RESET, _INIT)

    def to_rtr(self, attr: QPAttr) -> None:
        """INIT to RTR, from RESET through INIT: ah_attr, path_mtu, dest_qp_num, rq_psn, for RC also
        max_dest_rd_atomic and min_rnr_timer, for UD nothing."""
        if self.qp_state == _RESET:
            self.to_init(attr)
        self._move(attr, _INIT, _RTR)

    def to_rts(self, attr: QPAttr) -> None:
        """RTR to RTS, from RESET or INIT through RTR: sq_psn, for RC also timeout, retry_cnt, rnr_retry and
        max_rd_atomic."""
        if self.qp_state in (_RESET, _INIT):
            self.to_rtr(attr)
        self._move(attr, _RTR, _RTS)

    def _move(self, attr: QPAttr, start: QpState, end: QpState) -> None:
        attr.qp_state = end
        QP.modify(self, attr, TRANSITIONS[self.qp_type][start, end].required | M.IBV_QP_STATE)

    def attach_mcast(self, gid: str, lid: int) -> None:
        """Hear a multicast group (UD only); when this returns the whole fabric delivers to it. Raises VerbsError:
        EINVAL for another transport or what is no group, ENOMEM at the device's limits."""
        self.context._request(V.AttachMcast(self.qp_num, gid, lid), V.Done)

    def detach_mcast(self, gid: str, lid: int) -> None:
        """Hear it no more. Raises VerbsError(EINVAL) when the queue pair is not attached to it."""
        self.context._request(V.DetachMcast(self.qp_num, gid, lid), V.Done)

    def query(self, attr_mask: int = 0) -> tuple[QPAttr, QPInitAttr]:
        """Attributes as they are set, and what the queue pair was made of."""
        state: V.QpState = self.context._request(V.QueryQp(self.qp_num), V.QpState)
        attr = QPAttr(**state.attr, ah_attr=state.av.attr())
        return attr, replace(self._init_attr, cap=self.cap)

    def last_error(self) -> str:
        """What went wrong first, in words: the key, the region and the range; empty when nothing did."""
        state: V.QpState = self.context._request(V.QueryQp(self.qp_num), V.QpState)
        return state.last_error

    def endpoint(self) -> dict[str, Any]:
        """What the other side needs to connect: send it over any channel you have."""
        hca = self.context.hca
        gids = gid_table(hca.guid, hca.lid, hca.gid, hca.transport, hca.subnet)
        gid = gids[connection_gid_index(hca.transport)][0]
        return {"lid": hca.lid, "qpn": self.qp_num, "psn": self._psn, "gid": gid, "node": self.context.node}

    def address_of(self, remote: dict[str, Any]) -> AHAttr:
        """The way to a remote endpoint from this device: what connecting uses, and what a datagram's AH is made of. On
        InfiniBand with the service level of the path record, as a connection manager asks for."""
        hca = self.context.hca
        if hca.link_layer != LinkLayer.IBV_LINK_LAYER_ETHERNET:
            return AHAttr(remote["lid"], sl=self.context.path(remote["lid"]).sl, dgid=remote["gid"])
        return AHAttr(
            dgid=remote["gid"],
            is_global=True,
            sgid_index=connection_gid_index(hca.transport),
            hop_limit=_ROUTED_HOPS,
        )

    def connect(
        self,
        remote: dict[str, Any],
        *,
        access: int = _ALL_REMOTE,
        timeout: int = 14,
        retry_cnt: int = 7,
        rnr_retry: int = 7,
        path_mtu: int | None = None,
        max_rd_atomic: int | None = None,
        min_rnr_timer: int = 12,
    ) -> None:
        """RESET to RTS towards the `remote` endpoint. `path_mtu` is an IBV_MTU_* code, by default the port's;
        `max_rd_atomic` is by default the most the device has, up to 16.

        Of RC and UC; the attributes that a UC queue pair has not are not used. Raises VerbsError(EINVAL) for UD."""
        if self.qp_type == QpType.IBV_QPT_UD:
            raise VerbsError(
                errno.EINVAL, f"QP 0x{self.qp_num:x} is IBV_QPT_UD: it is not connected, each request names an AH"
            )
        if max_rd_atomic is None:
            limits = self.context.profile.attributes
            max_rd_atomic = min(16, limits.max_qp_rd_atom, limits.max_qp_init_rd_atom)
        attr = QPAttr(
            qp_access_flags=access,
            path_mtu=Mtu.of_bytes(self.context.hca.mtu) if path_mtu is None else path_mtu,
            dest_qp_num=remote["qpn"],
            rq_psn=remote["psn"],
            sq_psn=self._psn,
            ah_attr=self.address_of(remote),
            max_rd_atomic=max_rd_atomic,
            max_dest_rd_atomic=max_rd_atomic,
            min_rnr_timer=min_rnr_timer,
            timeout=timeout,
            retry_cnt=retry_cnt,
            rnr_retry=rnr_retry,
        )
        self.to_init(attr)
        self.to_rtr(attr)
        self.to_rts(attr)

    # ---- work ----------------------------------------------------------------------------------------------------

    def post_send(self, *wrs: SendWR) -> None:
        """Post send requests, in order and each with its `next_wr` chain, with one doorbell.

        Raises VerbsError: ENOMEM when the queue is full (a slot is free again once a completion of its request or a
        later one was polled), EINVAL for a bad request, an operation this transport does not have or a state that
        cannot send. Requests before the bad one are posted; the error's `bad_wr` is the bad one.
        """
        self._post_send(wrs)

    def _post_send(self, wrs: Iterable[SendWR], of_type_1: bool = False, *, all_or_none: bool = False) -> None:
        if self.context._failures:
            self.context._failures.check("post_send")
        if self.context._staged:
            self.context._sync_staged()
        with self._lock:
            wr: SendWR | None = None
            posted = self._sq_posted
            try:
                for first in wrs:
                    wr = first
                    self._check_sending()
                    while wr is not None:
                        self._put_send(posted, wr, of_type_1)
                        posted += 1
                        wr = wr.next_wr
            except (VerbsError, struct.error) as error:
                if all_or_none:
                    posted = self._sq_posted
                raise refused("send", error, wr) from None
            finally:
                if posted != self._sq_posted:
                    self._sq_posted = posted
                    self._rings.publish_sends(posted)
                    self.context._ring(self.qp_num)

    def _check_sending(self) -> None:
        if self._closed:
            raise VerbsError(errno.EINVAL, f"Failed to post send: QP 0x{self.qp_num:x} was destroyed")
        state = self._rings.state
        if state in (QpState.IBV_QPS_RESET, QpState.IBV_QPS_INIT, QpState.IBV_QPS_RTR):
            raise VerbsError(errno.EINVAL, f"Failed to post send: QP 0x{self.qp_num:x} is in {QpState(state).name}")

    def bind_mw(self, mw: MW, mw_bind: MWBind) -> None:
        """Post the bind of a type 1 window and give it its new `rkey`; a bind of length zero takes its access away.

        The window may be used once the bind has completed. Raises VerbsError as `post_send`, and EINVAL for a type 2
        window (post IBV_WR_BIND_MW) or one of another protection domain.
        """
        if mw.pd is not self.pd:
            raise VerbsError(errno.EINVAL, "Failed to bind MW: it belongs to another protection domain than the QP")
        wr = SendWR(mw_bind.wr_id, WrOpcode.IBV_WR_BIND_MW, send_flags=mw_bind.send_flags)
        wr.set_bind_wr(mw, mw_bind.info)
        self._post_send((wr,), of_type_1=True)
        mw.rkey = wr.rkey

    def _put_send(self, index: int, wr: SendWR, of_type_1: bool) -> None:
        cap = self.cap
        if index - self._sq_released >= cap.max_send_wr:
            raise VerbsError(
                errno.ENOMEM,
                f"Failed to post send: all {cap.max_send_wr} send requests of QP 0x{self.qp_num:x} are outstanding; "
                "poll completions (of signaled requests) first",
            )
        if wr.opcode not in self._offered:
            raise no_operation(wr.opcode, self.qp_type, self.context.hca.transport)
        sg = wr.sg
        if len(sg) > cap.max_send_sge:
            raise VerbsError(
                errno.EINVAL, f"Failed to post send: {len(sg)} SGEs, this QP has max_send_sge {cap.max_send_sge}"
            )
        if wr.opcode == WrOpcode.IBV_WR_RDMA_READ and len(sg) > self.context.profile.attributes.max_sge_rd:
            raise VerbsError(
                errno.EINVAL,
                f"Failed to post send: an RDMA_READ into {len(sg)} SGEs, this device has max_sge_rd "
                f"{self.context.profile.attributes.max_sge_rd}",
            )
        inline: bytes | None = None
        if wr.send_flags & _INLINE:
            check_inline(wr)
            inline = self._inline(wr)
        if self.qp_type == QpType.IBV_QPT_UD:
            operands = datagram_operands(wr)
        elif wr.opcode in PLAIN:
            operands = wr.remote_addr, wr.rkey, wr.imm_data, 0, 0, 0
        else:
            operands = special_operands(wr, of_type_1)
        remote_addr, rkey, imm, compare_add, swap, handle = operands
        self._rings.put_send(
            index, wr.wr_id, wr.opcode, wr.send_flags, remote_addr, rkey, imm,
            [(s.addr, s.length, s.lkey) for s in sg], inline, compare_add, swap, handle,
        )  # fmt: skip

    def _inline(self, wr: SendWR) -> bytes:
        sg = wr.sg
        total = sg[0].length if len(sg) == 1 else sum(s.length for s in sg)
        if total > self.cap.max_inline_data:
            raise VerbsError(
                self.context.profile.inline_errno,
                f"Failed to post send: {total} B inline, this QP has max_inline_data {self.cap.max_inline_data}",
            )
        # Inline data is copied now, from plain memory of this process; lkeys do not matter.
        if len(sg) == 1:
            return ctypes.string_at(sg[0].addr, total)
        return b"".join(ctypes.string_at(s.addr, s.length) for s in sg)

    def post_recv(self, *wrs: RecvWR) -> None:
        """Post receives, in order and each with its `next_wr` chain. Raises VerbsError: ENOMEM when the queue is full,
        EINVAL for too many SGEs or in RESET. Receives before the bad one are posted; the error's `bad_wr` is the bad
        one."""
        if self.context._failures:
            self.context._failures.check("post_recv")
        with self._lock:
            rings = self._rings
            posted = self._rq_posted
            wr: RecvWR | None = None
            try:
                for first in wrs:
                    wr = first
                    while wr is not None:
                        self._put_recv(posted, wr)
                        posted += 1
                        wr = wr.next_wr
            except (VerbsError, struct.error) as error:
                raise refused("receive", error, wr) from None
            finally:
                if posted != self._rq_posted:
                    self._rq_posted = posted
                    rings.publish_recvs(posted)
                    # The daemon looks at receives when it needs one; only flushing them in ERR wants a doorbell.
                    if rings.state == QpState.IBV_QPS_ERR:
                        self.context._ring(self.qp_num)

    def _put_recv(self, index: int, wr: RecvWR) -> None:
        rings, cap = self._rings, self.cap
        if self._closed:
            raise VerbsError(errno.EINVAL, f"Failed to post recv: QP 0x{self.qp_num:x} was destroyed")
        if self.srq is not None:
            raise VerbsError(
                errno.EINVAL, f"Failed to post recv: QP 0x{self.qp_num:x} receives from a shared queue, post to the SRQ"
            )
        if rings.state == QpState.IBV_QPS_RESET:
            raise VerbsError(errno.EINVAL, f"Failed to post recv: QP 0x{self.qp_num:x} is in IBV_QPS_RESET")
        if index - self._rq_released >= cap.max_recv_wr:
            raise VerbsError(
                errno.ENOMEM, f"Failed to post recv: all {cap.max_recv_wr} receives of the QP are outstanding"
            )
        if len(wr.sg) > cap.max_recv_sge:
            raise VerbsError(
                errno.EINVAL, f"Failed to post recv: {len(wr.sg)} SGEs, this QP has max_recv_sge {cap.max_recv_sge}"
            )
        rings.put_recv(index, wr.wr_id, [(s.addr, s.length, s.lkey) for s in wr.sg])

    def close(self) -> None:
        """Destroy it; the peer hears nothing more. Idempotent."""
        if not self._closed:
            self.context._destroy("qp", self.qp_num)
            self._closed = True
            if self.srq is not None:
                self.rcq._forget_shared(self.qp_num)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"QP(0x{self.qp_num:x}, {QpState(self._rings.state).name})"
