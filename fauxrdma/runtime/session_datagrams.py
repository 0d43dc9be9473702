"""The datagram verbs of one application: address handles, multicast groups, counters of what was dropped."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fauxrdma.abi import control_verbs as V
from fauxrdma.errors import FauxrdmaError, VerbsError
from fauxrdma.ib.attributes import AHAttr
from fauxrdma.ib.rnic import check_offered
from fauxrdma.memory.regions import ProtectionDomain
from fauxrdma.wire.control import Message

if TYPE_CHECKING:
    from fauxrdma.runtime.app_session import AppSession

__all__ = ["DatagramVerbs"]


class DatagramVerbs:
    """Serves the verbs in `handlers`, destroys the kinds in `destroyers` (by handle), owns what it made."""

    def __init__(self, session: AppSession) -> None:
        self._session = session
        self._handles: set[int] = set()
        self.handlers: dict[type[Message], Callable[[Any], None]] = {
            V.CreateAh: self._create_ah,
            V.AttachMcast: self._attach,
            V.DetachMcast: self._detach,
            V.QueryCounters: self._query_counters,
        }
        self.destroyers: dict[str, Callable[[int], None]] = {"ah": self._destroy_ah}

    # ---- address handles -----------------------------------------------------------------------------------------

    def _create_ah(self, msg: V.CreateAh) -> None:
        check_offered(self._session.hca.info.transport, "Failed to create AH", "address handles")
        pd = self._session.memory.pd(msg.pd)
        attr = self._session.hca.port.checked("Failed to create AH", msg.av.attr(), multicast=True)
        if attr.is_multicast:
            self._made(pd, attr)
            return
        # The data path needs the route; ask for it before a request can name the handle.
        self._session.track(self._session.loop.create_task(self._create_with_path(pd, attr)))

    async def _create_with_path(self, pd: ProtectionDomain, attr: AHAttr) -> None:
        try:
            attr = await self._session.resolve("Failed to create AH", attr)
            path = await self._session.subnet.path(self._session.hca.info.lid, attr.dlid)
            self._session.hca.port.check_found("Failed to create AH", attr, path)
            self._made(pd, attr)
        except VerbsError as error:
            self._session.reply(V.VerbFailed(error.errno or errno.EIO, error.strerror or str(error)))
        except FauxrdmaError as error:
            self._session.reply(V.VerbFailed(errno.ENETUNREACH, f"Failed to create AH: {error}"))

    def _made(self, pd: ProtectionDomain, attr: AHAttr) -> None:
        hca = self._session.hca
        handle = hca.new_handle()
        hca.engine.datagrams.create_ah(handle, pd, attr)
        self._handles.add(handle)
        self._session.reply(V.Created(handle))

    def _destroy_ah(self, handle: int) -> None:
        if handle not in self._handles:
            raise VerbsError(errno.EINVAL, f"there is no ah {handle} in this context")
        self._handles.discard(handle)
        self._session.hca.engine.datagrams.destroy_ah(handle)

    # ---- multicast groups ----------------------------------------------------------------------------------------

    def _attach(self, msg: V.AttachMcast) -> None:
        check_offered(self._session.hca.info.transport, "Failed to attach QP to multicast group", "multicast")
        qp = self._session.qps.own_qp(msg.qpn)
        lid = self._session.hca.port.group_lid(msg.gid, msg.lid)
        self._session.hca.engine.datagrams.attach(qp, msg.gid, lid)
        self._session.track(self._session.loop.create_task(self._join(msg, lid)))

    async def _join(self, msg: V.AttachMcast, lid: int) -> None:
        try:
            await self._session.subnet.join(self._session.hca.info.lid, lid)
            self._session.reply(V.Done())
        except FauxrdmaError as error:
            qp = self._session.hca.engine.qp(msg.qpn)
            if qp is not None:
                self._session.hca.engine.datagrams.detach(qp, msg.gid, lid)
            self._session.reply(V.VerbFailed(errno.ENETUNREACH, f"Failed to attach QP to multicast group: {error}"))

    def _detach(self, msg: V.DetachMcast) -> None:
        qp = self._session.qps.own_qp(msg.qpn)
        before = self._groups()
        lid = self._session.hca.port.group_lid(msg.gid, msg.lid)
        self._session.hca.engine.datagrams.detach(qp, msg.gid, lid)
        self._leave(before)
        self._session.reply(V.Done())

    def forget_qp(self, qpn: int) -> None:
        """A queue pair is about to go: it leaves its groups."""
        before = self._groups()
        if before:
            self._session.hca.engine.datagrams.forget_qp(qpn)
            self._leave(before)

    def _groups(self) -> set[int]:
        return self._session.hca.engine.datagrams.multicast.lids()

    def _leave(self, before: set[int]) -> None:
        """Tell the subnet manager of the multicast LIDs that nobody on this HCA hears any more."""
        for group in before - self._groups():
            self._session.subnet.leave(self._session.hca.info.lid, group)

    # ---- counters ------------------------------------------------------------------------------------------------

    def _query_counters(self, msg: V.QueryCounters) -> None:
        self._session.reply(V.DropCounters(asdict(self._session.hca.engine.port.counters)))

    def close(self) -> None:
        """Destroy everything. Queue pairs are gone already, and have left their groups."""
        for handle in self._handles:
            self._session.hca.engine.datagrams.destroy_ah(handle)
        self._handles.clear()
