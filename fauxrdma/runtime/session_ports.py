"""The port verbs of one application."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fauxrdma.abi import control_verbs as V
from fauxrdma.errors import FauxrdmaError, VerbsError
from fauxrdma.ib.enums import GidType
from fauxrdma.wire.control import Message

if TYPE_CHECKING:
    from fauxrdma.runtime.app_session import AppSession

__all__ = ["PortVerbs"]


class PortVerbs:
    """Serves the verbs in `handlers`; there is nothing to destroy."""

    def __init__(self, session: AppSession) -> None:
        self._session = session
        self.handlers: dict[type[Message], Callable[[Any], None]] = {
            V.QueryPort: self._query_port,
            V.SetPort: self._set_port,
        }
        self.destroyers: dict[str, Callable[[int], None]] = {}

    def _query_port(self, msg: V.QueryPort) -> None:
        _check("query", msg.port_num)
        hca = self._session.hca
        port = hca.port
        self._session.reply(
            V.PortStatus(
                state=int(port.state),
                phys_state=port.phys_state,
                sm_lid=port.sm_lid,
                bad_pkey_cntr=0,  # every frame carries the default P_Key
                qkey_viol_cntr=hca.engine.port.counters.qkey_violations,
                gids=[gid for gid, _ in port.gids],
                gid_types=[int(kind) for _, kind in port.gids],
                pkeys=list(port.pkeys),
            )
        )

    def _set_port(self, msg: V.SetPort) -> None:
        _check("set", msg.port_num)
        port = self._session.hca.port
        if msg.pkeys is not None:
            port.set_pkeys(msg.pkeys)
        if msg.gids is not None:
            table = port.with_gids(msg.gids)
            if port.ethernet:  # peers find it by its addresses
                self._session.track(self._session.loop.create_task(self._announce(msg, table)))
                return
            self._set_gids(table)
        self._finish(msg)

    async def _announce(self, msg: V.SetPort, table: list[tuple[str, GidType]]) -> None:
        try:
            taken = await self._session.subnet.set_gids(self._session.hca.info.lid, msg.gids or [])
            if taken:
                raise VerbsError(
                    errno.EADDRINUSE, f"Failed to set port: {taken} cannot be added, another port has that address"
                )
            self._set_gids(table)
            self._finish(msg)
        except VerbsError as error:
            self._session.reply(V.VerbFailed(error.errno or errno.EIO, error.strerror or str(error)))
        except FauxrdmaError as error:
            self._session.reply(V.VerbFailed(errno.ENETUNREACH, f"Failed to set port: {error}"))

    def _set_gids(self, table: list[tuple[str, GidType]]) -> None:
        self._session.hca.port.set_gids(table)
        self._session.hca.tell_gids()

    def _finish(self, msg: V.SetPort) -> None:
        if msg.state is not None:
            self._session.hca.port.set_state(msg.state)
        self._session.reply(V.Done())

    def close(self) -> None:
        """The application hears no more of the port."""
        listeners = self._session.hca.port.listeners
        if self._session.async_event in listeners:
            listeners.remove(self._session.async_event)


def _check(verb: str, port_num: int) -> None:
    if port_num != 1:
        raise VerbsError(errno.EINVAL, f"Failed to {verb} port {port_num}: this device has port 1")
