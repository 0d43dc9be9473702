"""The queue-pair verbs of one application."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fauxrdma.abi import control_verbs as V
from fauxrdma.abi.layout import QpLayout
from fauxrdma.abi.rings import QueuePairRings
from fauxrdma.errors import FauxrdmaError, VerbsError
from fauxrdma.ib.attributes import QPAttr, QPCap
from fauxrdma.ib.enums import AsyncEventType, QpAttrMask, QpState, QpType
from fauxrdma.ib.qp_states import check_type
from fauxrdma.ib.rnic import check_offered
from fauxrdma.memory.shared import SharedMemory
from fauxrdma.runtime.queue_rings import RecvRing, SendRing
from fauxrdma.wire.control import Message

if TYPE_CHECKING:
    from fauxrdma.runtime.app_session import AppSession

__all__ = ["QpVerbs"]

_ATTRIBUTES = frozenset(name for name in QPAttr.__dataclass_fields__ if name != "ah_attr")


class QpVerbs:
    """Serves the verbs in `handlers`, destroys the kinds in `destroyers` (by handle), owns what it made."""

    def __init__(self, session: AppSession) -> None:
        self._session = session
        self.qpns: set[int] = set()
        self.handlers: dict[type[Message], Callable[[Any], None]] = {
            V.CreateQp: self._create_qp,
            V.ModifyQp: self._modify_qp,
            V.QueryQp: self._query_qp,
        }
        self.destroyers: dict[str, Callable[[int], None]] = {"qp": self._destroy_own_qp}

    def _create_qp(self, msg: V.CreateQp) -> None:
        limits = self._session.hca.attributes
        for name, value, limit in (
            ("max_send_wr", msg.max_send_wr, limits.max_qp_wr),
            ("max_recv_wr", msg.max_recv_wr, limits.max_qp_wr),
            ("max_send_sge", msg.max_send_sge, limits.max_sge),
            ("max_recv_sge", msg.max_recv_sge, limits.max_sge),
            ("max_inline_data", msg.max_inline_data, limits.max_inline_data),
        ):
            if not 0 <= value <= limit:
                raise VerbsError(
                    errno.EINVAL, f"Failed to create QP: {name} is {value}, this device takes 0 to {limit}"
                )
        for cqn in (msg.send_cq, msg.recv_cq):
            if cqn not in self._session.queues.cqs:
                raise VerbsError(
                    errno.EINVAL, f"Failed to create QP: there is no completion queue {cqn} in this context"
                )
        qp_type = check_type(msg.qp_type)
        reliable = qp_type == QpType.IBV_QPT_RC
        transport = self._session.hca.info.transport
        check_offered(transport, "Failed to create QP", qp_type.name, reliable_connection=reliable)
        pd = self._session.memory.pd(msg.pd)
        cap = QPCap(
            msg.max_send_wr,
            0 if msg.srq is not None else msg.max_recv_wr,
            msg.max_send_sge,
            msg.max_recv_sge,
            msg.max_inline_data,
        )
        srq = None if msg.srq is None else self._session.srqs.srq(msg.srq)
        layout = QpLayout(cap.max_send_wr, cap.max_recv_wr, cap.max_send_sge, cap.max_recv_sge, cap.max_inline_data)
        memory = SharedMemory.create(layout.total_bytes, "fauxrdma-qp")
        rings = QueuePairRings(memory.view, layout)
        rings.format()
        made: list[int] = []

        def broken() -> None:
            # Not at once: the engine is in the middle of something.
            self._session.loop.call_soon(self._session.ring_broken, AsyncEventType.IBV_EVENT_QP_FATAL, made[0])

        try:
            qp = self._session.hca.engine.create_qp(
                qp_type, pd, msg.send_cq, msg.recv_cq, cap, msg.sq_sig_all, SendRing(rings, broken),
                RecvRing(rings, broken),
                srq,
            )  # fmt: skip
        except VerbsError:
            memory.close_fd()
            raise
        made.append(qp.qpn)
        self._session.hca.rings[qp.qpn] = rings
        self._session.hca.owners["qp", qp.qpn] = self._session.async_event
        for cqn in (msg.send_cq, msg.recv_cq):
            self._session.queues.cqs[cqn].users += 1
        self.qpns.add(qp.qpn)
        self._session.reply(V.QpCreated(qp.qpn), memory.fd)
        memory.close_fd()

    def _modify_qp(self, msg: V.ModifyQp) -> None:
        self.own_qp(msg.qpn)
        mask = QpAttrMask(msg.mask)
        attr = QPAttr(**_known_attributes(msg.attr), ah_attr=msg.av.attr())
        if mask & QpAttrMask.IBV_QP_AV:
            attr.ah_attr = self._session.hca.port.checked("Failed to modify QP", attr.ah_attr, multicast=False)
            # The data path needs the route; ask for it before the queue pair can use it.
            self._session.track(self._session.loop.create_task(self._modify_with_path(msg.qpn, attr, mask)))
        else:
            self._apply_modify(msg.qpn, attr, mask)

    async def _modify_with_path(self, qpn: int, attr: QPAttr, mask: QpAttrMask) -> None:
        try:
            hca = self._session.hca
            attr.ah_attr = await self._session.resolve("Failed to modify QP", attr.ah_attr)
            path = await self._session.subnet.path(hca.info.lid, attr.ah_attr.dlid, hca.flow_label(qpn))
            hca.port.check_found("Failed to modify QP", attr.ah_attr, path)
            self._apply_modify(qpn, attr, mask)
        except VerbsError as error:
            self._session.reply(V.VerbFailed(error.errno or errno.EIO, error.strerror or str(error)))
        except FauxrdmaError as error:
            self._session.reply(V.VerbFailed(errno.ENETUNREACH, f"Failed to modify QP: {error}"))

    def _apply_modify(self, qpn: int, attr: QPAttr, mask: QpAttrMask) -> None:
        qp = self.own_qp(qpn)
        actions = self._session.hca.engine.modify_qp(qpn, attr, mask, self._session.data_path.clock.now_ns())
        self._session.hca.rings[qpn].state = qp.state
        if qp.state == QpState.IBV_QPS_RESET or mask & QpAttrMask.IBV_QP_AV:
            # In SQD a drained queue pair may be given another path: what it sends next takes it.
            self._session.data_path.forget_qp(self._session.hca, qpn)
        self._session.data_path.perform(self._session.hca, actions)
        self._session.reply(V.Done())

    def own_qp(self, qpn: int) -> Any:
        if qpn not in self.qpns:
            raise VerbsError(errno.EINVAL, f"there is no queue pair 0x{qpn:x} in this context")
        return self._session.hca.engine.qp(qpn)

    def _query_qp(self, msg: V.QueryQp) -> None:
        qp = self.own_qp(msg.qpn)
        attr = {k: int(v) for k, v in asdict(qp.attr).items() if k != "ah_attr"}
        attr["qp_state"] = int(qp.state)
        self._session.reply(
            V.QpState(attr, V.AddressVector.of(self._session.hca.port.shown(qp.attr.ah_attr)), qp.last_error)
        )

    def _destroy_own_qp(self, qpn: int) -> None:
        self.own_qp(qpn)
        groups = self._session.hca.engine.datagrams.multicast.groups_of(qpn)
        if groups:
            raise VerbsError(
                errno.EBUSY,
                f"Failed to destroy QP 0x{qpn:x}: it is attached to {len(groups)} multicast groups, detach it first",
            )
        self._destroy_qp(qpn)

    def _destroy_qp(self, qpn: int) -> None:
        qp = self._session.hca.engine.qp(qpn)
        self._session.data_path.forget_qp(self._session.hca, qpn)
        self._session.forget_paths(qpn)
        self._session.datagrams.forget_qp(qpn)
        self._session.hca.engine.destroy_qp(qpn)
        self._session.hca.rings.pop(qpn, None)
        self._session.hca.owners.pop(("qp", qpn), None)
        self.qpns.discard(qpn)
        if qp is not None:
            for cqn in (qp.send_cqn, qp.recv_cqn):
                self._session.queues.cqs[cqn].users -= 1

    def waits_for(self) -> list[str]:
        """The queue pairs with work that is not done, in words."""
        out = []
        for qpn in sorted(self.qpns):
            qp, rings = self._session.hca.engine.qp(qpn), self._session.hca.rings.get(qpn)
            if qp is not None and rings is not None and (receives := rings.pending_recvs()):
                out.append(f"QP 0x{qpn:x} to LID {qp.dlid} ({qp.state.name}, {receives} receives posted)")
        return out

    def close(self) -> None:
        """Destroy every queue pair; the peers hear nothing more."""
        for qpn in list(self.qpns):
            self._destroy_qp(qpn)


def _known_attributes(given: dict[str, int]) -> dict[str, Any]:
    unknown = given.keys() - _ATTRIBUTES
    if unknown:
        raise VerbsError(errno.EINVAL, f"Failed to modify QP: unknown attribute {', '.join(sorted(unknown))}")
    return dict(given)
