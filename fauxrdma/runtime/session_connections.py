"""The connection verbs of one application: listeners and connections of the HCA's communication manager."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fauxrdma.abi import control_verbs as V
from fauxrdma.cm import CmMessage, Kind, SendMad, Tell
from fauxrdma.errors import FauxrdmaError, VerbsError
from fauxrdma.ib.gids import connection_gid_index
from fauxrdma.runtime.connection_service import ConnectionService
from fauxrdma.runtime.event_pipe import EventPipe
from fauxrdma.wire.control import Message, pack_frame
from fauxrdma.wire.grh import gid_bytes, gid_text

if TYPE_CHECKING:
    from fauxrdma.runtime.app_session import AppSession

__all__ = ["ConnectionVerbs"]

_PS_UDP = 0x111
_EPHEMERAL = range(49152, 65536)
_FIELDS = (
    "qpn", "psn", "qkey", "responder_resources", "initiator_depth", "flow_control", "retry_count", "rnr_retry_count",
    "srq", "path_mtu", "private",
)  # fmt: skip


def _service_id(port_space: int, port: int) -> int:
    """The service of a port (IBTA annex A11)."""
    return port_space << 16 | port


def _fill(message: CmMessage, parameters: V.CmParameters) -> CmMessage:
    for name in _FIELDS:
        setattr(message, name, getattr(parameters, name))
    return message


class ConnectionVerbs:
    """Serves the verbs in `handlers`, destroys the kinds in `destroyers` (by handle), owns what it made."""

    def __init__(self, session: AppSession) -> None:
        self._session = session
        self._pipe: EventPipe | None = None
        self._connections: set[int] = set()
        self._listeners: set[int] = set()
        self.handlers: dict[type[Message], Callable[[Any], None]] = {
            V.CmChannel: self._channel,
            V.CmResolve: self._resolve,
            V.CmListen: self._listen,
            V.CmConnect: self._connect,
            V.CmAccept: self._accept,
            V.CmReject: self._reject,
            V.CmEstablish: self._establish,
            V.CmDisconnect: self._disconnect,
        }
        self.destroyers: dict[str, Callable[[int], None]] = {
            "connection": self._destroy_connection,
            "listener": self._destroy_listener,
        }

    @property
    def _service(self) -> ConnectionService:
        session = self._session
        return session.data_path.connections(session.hca)

    def _channel(self, msg: V.CmChannel) -> None:
        if self._pipe is not None:
            raise VerbsError(errno.EBUSY, "this context has its connection events already")
        read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
        self._pipe = EventPipe(self._session.loop, write_fd, self._session.data_path.gate)
        self._session.reply(V.Created(0), read_fd)
        os.close(read_fd)

    def _resolve(self, msg: V.CmResolve) -> None:
        self._session.track(self._session.loop.create_task(self._answer_lid(msg.gid)))

    async def _answer_lid(self, gid: str) -> None:
        session = self._session
        try:
            info = session.hca.info
            known = [text for text, _ in session.hca.port.gids]
            lid = info.lid if gid in known else (await session.subnet.find(gid)).lid
        except FauxrdmaError as error:
            session.reply(V.VerbFailed(errno.ENETUNREACH, str(error)))
            return
        if lid:
            session.reply(V.CmResolved(lid))
        else:
            session.reply(V.VerbFailed(errno.ENETUNREACH, f"Failed to resolve address: no port has {gid}"))

    # ---- listening -----------------------------------------------------------------------------------------------

    def _listen(self, msg: V.CmListen) -> None:
        manager = self._service.manager
        port = msg.port
        if not 0 <= port < 1 << 16:
            raise VerbsError(errno.EINVAL, f"Failed to bind address: port {port} is not one of 0 to 65535")
        if not port:
            free = (p for p in _EPHEMERAL if not manager.taken(_service_id(msg.port_space, p)))
            port = next(free, 0)
        if not port:
            raise VerbsError(errno.EADDRINUSE, "Failed to bind address: no port is free")
        number = manager.listen(_service_id(msg.port_space, port), msg.backlog)
        self._listeners.add(number)
        self._service.owners[number] = self._happened
        self._session.reply(V.CmListening(number, port))

    def _destroy_listener(self, number: int) -> None:
        if number not in self._listeners:
            raise VerbsError(errno.EINVAL, f"there is no listener {number} in this context")
        self._listeners.discard(number)
        self._service.owners.pop(number, None)
        self._do(lambda out: self._service.manager.unlisten(number, self._service.now, out))

    # ---- connections ---------------------------------------------------------------------------------------------

    def _do(self, call: Callable[[list[SendMad | Tell]], object]) -> None:
        out: list[SendMad | Tell] = []
        call(out)
        self._service.perform(out)

    def _connect(self, msg: V.CmConnect) -> None:
        kind = Kind.SIDR_REQ if msg.port_space == _PS_UDP else Kind.REQ
        request = _fill(CmMessage(kind, service_id=_service_id(msg.port_space, msg.port)), msg.parameters)
        request.source_gid = gid_bytes(self._own_gid())
        request.target_gid = gid_bytes(msg.gid)
        service, out = self._service, list[SendMad | Tell]()
        number = service.manager.connect(msg.lid, request, service.now, out)
        self._own(number)
        self._session.reply(V.Created(number))
        service.perform(out)

    def _own_gid(self) -> str:
        """The address that peers answer to."""
        hca = self._session.hca
        return hca.port.gids[connection_gid_index(hca.info.transport)][0]

    def _own(self, number: int) -> None:
        self._connections.add(number)
        self._service.owners[number] = self._happened

    def _check(self, number: int) -> int:
        if number not in self._connections:
            raise VerbsError(errno.EINVAL, f"there is no connection {number} in this context")
        return number

    def _accept(self, msg: V.CmAccept) -> None:
        service, number = self._service, self._check(msg.handle)
        connection = service.manager.connections.get(number)
        datagram = connection is not None and connection.request.kind == Kind.SIDR_REQ
        reply = _fill(CmMessage(Kind.SIDR_REP if datagram else Kind.REP), msg.parameters)
        self._do(lambda out: service.manager.accept(number, reply, service.now, out))
        self._session.reply(V.Done())

    def _reject(self, msg: V.CmReject) -> None:
        service, number = self._service, self._check(msg.handle)
        self._do(lambda out: service.manager.reject(number, msg.private, service.now, out))
        self._session.reply(V.Done())

    def _establish(self, msg: V.CmEstablish) -> None:
        service, number = self._service, self._check(msg.handle)
        self._do(lambda out: service.manager.establish(number, service.now, out))
        self._session.reply(V.Done())

    def _disconnect(self, msg: V.CmDisconnect) -> None:
        service, number = self._service, self._check(msg.handle)
        self._do(lambda out: service.manager.disconnect(number, service.now, out))
        self._session.reply(V.Done())

    def _destroy_connection(self, number: int) -> None:
        self._check(number)
        self._connections.discard(number)
        service = self._service
        service.owners.pop(number, None)
        self._do(lambda out: service.manager.forget(number, service.now, out))

    def _happened(self, tell: Tell) -> None:
        if tell.listener:
            self._own(tell.number)
        message = tell.message or CmMessage(Kind.RTU)
        notice = V.CmNotice(
            tell.number, tell.what, tell.listener, tell.lid, gid_text(message.source_gid), message.source_port,
            message.reason, V.CmParameters(**{name: getattr(message, name) for name in _FIELDS}),
        )  # fmt: skip
        if self._pipe is not None:
            self._pipe.put(pack_frame(notice))

    def close(self) -> None:
        """Let go of everything: peers hear of it."""
        for number in list(self._listeners):
            self._destroy_listener(number)
        for number in list(self._connections):
            self._destroy_connection(number)
        if self._pipe is not None:
            self._pipe.close()
