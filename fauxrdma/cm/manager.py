"""All connections of one HCA: who listens to which service, what each message and each passing of time leads to.

`receive`, `on_timer` and what programs call append to `out`: MADs to send and things to tell a program. Errors that a
program can make are VerbsError(EINVAL), naming the state and what is legal in it.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from fauxrdma.cm.connection import RESPONSE_NS, SERVICE_TIMEOUT, Connection, State, timeout_ns
from fauxrdma.cm.messages import PRIVATE_BYTES, CmMessage, Kind, Reject
from fauxrdma.cm.steps import ConnectionSteps, Listener, Out, SendMad, Tell
from fauxrdma.errors import RemoteProtocolError, VerbsError

__all__ = ["ConnectionManager"]

_OK, _REJECTED_SIDR, _NO_SERVICE_SIDR = 0, 2, 1
_S, _K = State, Kind


class ConnectionManager(ConnectionSteps):
    """`rng` makes the numbers of connections, which must not be guessable."""

    # ---- what programs do ----------------------------------------------------------------------------------------

    def listen(self, service_id: int, backlog: int) -> int:
        """Hear requests for a service; the listener's number. Raises VerbsError(EADDRINUSE)."""
        if service_id in self.services:
            raise VerbsError(errno.EADDRINUSE, f"Failed to listen: port {service_id & 0xFFFF} is taken")
        number = self.book.number(self.listeners)
        self.services[service_id] = Listener(number, max(1, backlog))
        self.listeners[number] = service_id
        return number

    def taken(self, service_id: int) -> bool:
        """Whether somebody listens to it."""
        return service_id in self.services

    def unlisten(self, number: int, now: int, out: Out) -> None:
        """Hear no more of it; who waits to be accepted is refused."""
        listener = self.services.pop(self.listeners.pop(number))
        for waiting in list(listener.waiting):
            self.forget(waiting, now, out)

    def connect(self, lid: int, request: CmMessage, now: int, out: Out) -> int:
        """Send a REQ or SIDR_REQ; the connection's number."""
        _check_private(request)
        number = request.local_id = self.book.number(self.listeners)
        request.transaction = self.book.transaction()
        connection = Connection(number, lid, request)
        connection.state = _S.REQ_SENT if request.kind == _K.REQ else _S.SIDR_REQ_SENT
        self.book.add(connection)
        self._ask(connection, request, now, out)
        return number

    def accept(self, number: int, reply: CmMessage, now: int, out: Out) -> None:
        """Answer a request with a REP or SIDR_REP; datagram services are established by that."""
        connection = self._in(number, "accept", _S.REQ_RCVD, _S.SIDR_REQ_RCVD)
        _check_private(reply)
        self._decided(connection)
        self._address(connection, reply)
        if connection.state == _S.SIDR_REQ_RCVD:
            self._answer_last(connection, reply, now, out)
            return
        connection.state, connection.answer = _S.REP_SENT, reply
        self._ask(connection, reply, now, out)

    def reject(self, number: int, private: bytes, now: int, out: Out) -> None:
        """Refuse a request, or a peer's acceptance, with private data."""
        connection = self._in(number, "reject", _S.REQ_RCVD, _S.SIDR_REQ_RCVD, _S.REP_RCVD)
        if connection.state == _S.SIDR_REQ_RCVD:
            refusal = CmMessage(_K.SIDR_REP, reason=_REJECTED_SIDR, private=private)
        else:
            which = 0 if connection.state == _S.REQ_RCVD else 1
            refusal = CmMessage(_K.REJ, answered=which, reason=Reject.CONSUMER_DEFINED, private=private)
        _check_private(refusal)
        self._decided(connection)
        self._address(connection, refusal)
        self._answer_last(connection, refusal, now, out)

    def establish(self, number: int, now: int, out: Out) -> None:
        """The queue pair of an accepted request is ready: send RTU."""
        connection = self._in(number, "establish", _S.REP_RCVD)
        connection.state = _S.ESTABLISHED
        connection.answer = self._address(connection, CmMessage(_K.RTU))
        self._quiet(connection)
        out.append(SendMad(connection.lid, connection.answer))
        self._tell(connection, "established", None, out)

    def disconnect(self, number: int, now: int, out: Out) -> None:
        """Part. Nothing to do where the peer did so before."""
        states = (_S.ESTABLISHED, _S.REP_SENT, _S.REP_RCVD, _S.DREQ_SENT, _S.TIMEWAIT)
        connection = self._in(number, "disconnect", *states)
        if connection.state not in (_S.DREQ_SENT, _S.TIMEWAIT):
            self._part(connection, now, out)

    def forget(self, number: int, now: int, out: Out) -> None:
        """The program lets go: the peer is told what it has to know, and nobody here hears of it any more."""
        connection = self.connections.get(number)
        if connection is None:
            return
        connection.owned = False
        self._decided(connection)
        state = connection.state
        if state in (_S.ESTABLISHED, _S.REP_SENT):
            self._part(connection, now, out)
        elif state in (_S.REQ_SENT, _S.REQ_RCVD, _S.REP_RCVD):
            reason = Reject.TIMEOUT if state == _S.REQ_SENT else Reject.CONSUMER_DEFINED
            refusal = self._address(connection, CmMessage(_K.REJ, answered=int(state == _S.REP_RCVD), reason=reason))
            self._answer_last(connection, refusal, now, out)
        elif state == _S.SIDR_REQ_RCVD:
            refusal = self._address(connection, CmMessage(_K.SIDR_REP, reason=_REJECTED_SIDR))
            self._answer_last(connection, refusal, now, out)
        elif state not in (_S.DREQ_SENT, _S.TIMEWAIT):
            self.book.remove(connection)

    # ---- what comes in -------------------------------------------------------------------------------------------

    def receive(self, lid: int, mad: bytes | memoryview, now: int, out: Out) -> None:
        """A MAD from the HCA with this LID. What is no connection message is dropped."""
        try:
            message = CmMessage.decode(mad)
        except RemoteProtocolError:
            return
        if message.kind in (_K.REQ, _K.SIDR_REQ):
            self._on_request(lid, message, now, out)
            return
        connection = self.connections.get(message.remote_id)
        if message.kind == _K.REJ and not message.remote_id:  # from who gave up before we answered
            connection = self.book.asked_by(lid, message.local_id, False)
        if connection is None or connection.lid != lid or self._strange(connection, message):
            self._on_unknown(lid, message, out)
            return
        handler = _HANDLERS.get((connection.state, message.kind))
        if handler is not None:
            handler(self, connection, message, now, out)

    def _strange(self, connection: Connection, message: CmMessage) -> bool:
        """Whether it is from another connection than ours is with."""
        return bool(connection.peer_number and message.local_id and connection.peer_number != message.local_id)

    def _on_unknown(self, lid: int, message: CmMessage, out: Out) -> None:
        if message.kind == _K.DREQ:
            out.append(SendMad(lid, _back(message, CmMessage(_K.DREP))))
        elif message.kind == _K.REP:
            out.append(SendMad(lid, _back(message, CmMessage(_K.REJ, answered=1, reason=Reject.INVALID_COMM_ID))))

    def _on_request(self, lid: int, message: CmMessage, now: int, out: Out) -> None:
        datagram = message.kind == _K.SIDR_REQ
        known = self.book.asked_by(lid, message.local_id, datagram)
        if known is not None:
            if known.answer is not None and known.state in (_S.REP_SENT, _S.TIMEWAIT):
                out.append(SendMad(lid, known.answer))
            elif known.state == _S.REQ_RCVD:
                # Heard before: the program needs more time.
                more = CmMessage(_K.MRA, answered=0, timeout=SERVICE_TIMEOUT)
                out.append(SendMad(lid, self._address(known, more)))
            return
        listener = self.services.get(message.service_id)
        if listener is None:
            refusal = (
                CmMessage(_K.SIDR_REP, reason=_NO_SERVICE_SIDR)
                if datagram
                else CmMessage(_K.REJ, reason=Reject.INVALID_SERVICE_ID)
            )
            out.append(SendMad(lid, _back(message, refusal)))
            return
        if not datagram and self._stale(lid, message.qpn, now, out):
            refusal = CmMessage(_K.REJ, reason=Reject.STALE_CONNECTION)
            out.append(SendMad(lid, _back(message, refusal)))
            return
        if len(listener.waiting) >= listener.backlog:
            return  # it will be repeated
        number = self.book.number(self.listeners)
        state = _S.SIDR_REQ_RCVD if datagram else _S.REQ_RCVD
        connection = Connection(number, lid, message, state, message.local_id, listener.number)
        self.book.add(connection)
        if not datagram:
            self.book.meet_queue_pair(connection, message.qpn)
        listener.waiting.add(number)
        out.append(Tell(number, "request", message, lid, listener.number))

    def _stale(self, lid: int, qpn: int, now: int, out: Out) -> bool:
        """Whether the peer has connected a queue pair that we believe to be connected already (IBTA 12.9.8.3.1): it has
        lost its side of that connection, by a restart most likely. It is parted, and our program hears of that."""
        old = self.book.with_queue_pair(lid, qpn)
        if old is None:
            return False
        if old.state in (_S.ESTABLISHED, _S.REP_SENT):
            self._decided(old)
            self._part(old, now, out)
        return True

    def _on_mra(self, connection: Connection, message: CmMessage, now: int, out: Out) -> None:
        self.book.wake_at(connection, now + timeout_ns(message.timeout) + RESPONSE_NS)

    def _on_rep(self, connection: Connection, message: CmMessage, now: int, out: Out) -> None:
        connection.peer_number = message.local_id
        if self._stale(connection.lid, message.qpn, now, out):
            refusal = CmMessage(_K.REJ, answered=1, reason=Reject.STALE_CONNECTION)
            out.append(SendMad(connection.lid, self._address(connection, refusal)))
            self._tell(connection, "rejected", refusal, out)
            self._over(connection, now)
            return
        self.book.meet_queue_pair(connection, message.qpn)
        connection.state = _S.REP_RCVD
        self._quiet(connection)
        self._tell(connection, "response", message, out)
        if not connection.owned:
            self.forget(connection.number, now, out)

    def _on_rep_again(self, connection: Connection, message: CmMessage, now: int, out: Out) -> None:
        if connection.answer is not None:
            out.append(SendMad(connection.lid, connection.answer))
        elif connection.state == _S.REP_RCVD:
            more = CmMessage(_K.MRA, answered=1, timeout=SERVICE_TIMEOUT)
            out.append(SendMad(connection.lid, self._address(connection, more)))

    def _on_rtu(self, connection: Connection, message: CmMessage, now: int, out: Out) -> None:
        connection.state = _S.ESTABLISHED
        self._quiet(connection)
        self._tell(connection, "established", message, out)

    def _on_rej(self, connection: Connection, message: CmMessage, now: int, out: Out) -> None:
        self._decided(connection)
        self._tell(connection, "rejected", message, out)
        self._over(connection, now)

    def _on_dreq(self, connection: Connection, message: CmMessage, now: int, out: Out) -> None:
        self._answer_last(connection, self._address(connection, CmMessage(_K.DREP)), now, out)
        self._tell(connection, "disconnected", message, out)

    def _on_dreq_again(self, connection: Connection, message: CmMessage, now: int, out: Out) -> None:
        out.append(SendMad(connection.lid, self._address(connection, CmMessage(_K.DREP))))

    def _on_drep(self, connection: Connection, message: CmMessage, now: int, out: Out) -> None:
        self._wait_out(connection, now)
        self._tell(connection, "disconnected", message, out)

    def _on_sidr_rep(self, connection: Connection, message: CmMessage, now: int, out: Out) -> None:
        self._tell(connection, "established" if message.reason == _OK else "rejected", message, out)
        self.book.remove(connection)

    # ---- time ----------------------------------------------------------------------------------------------------

    def on_timer(self, now: int, out: Out) -> None:
        """Repeat what was not answered; give up where the tries are used up."""
        for connection in self.book.due(now):
            self._due(connection, now, out)

    def _due(self, connection: Connection, now: int, out: Out) -> None:
        if connection.state == _S.TIMEWAIT:
            self._tell(connection, "timewait_exit", None, out)
            self.book.remove(connection)
        elif connection.tries_left and connection.said is not None:
            connection.tries_left -= 1
            self.book.wake_at(connection, now + RESPONSE_NS)
            out.append(SendMad(connection.lid, connection.said))
        elif connection.state == _S.DREQ_SENT:
            self._wait_out(connection, now)
            self._tell(connection, "disconnected", None, out)
        else:
            if connection.state in (_S.REQ_SENT, _S.REP_SENT):
                which = int(connection.state == _S.REP_SENT)
                given_up = CmMessage(_K.REJ, answered=which, reason=Reject.TIMEOUT)
                out.append(SendMad(connection.lid, self._address(connection, given_up)))
            self._tell(connection, "unreachable", None, out)
            self._over(connection, now)


def _back(message: CmMessage, answer: CmMessage) -> CmMessage:
    """The answer to a message that belongs to no connection here."""
    answer.local_id, answer.remote_id, answer.transaction = message.remote_id, message.local_id, message.transaction
    return answer


def _check_private(message: CmMessage) -> None:
    most = PRIVATE_BYTES[message.kind]
    if len(message.private) > most:
        raise VerbsError(
            errno.EINVAL, f"{len(message.private)} B of private data, a {message.kind.name} has room for {most} B"
        )


_M = ConnectionManager
_Handler = Callable[[ConnectionManager, Connection, CmMessage, int, Out], None]
_HANDLERS: dict[tuple[State, Kind], _Handler] = {
    (_S.REQ_SENT, _K.MRA): _M._on_mra,
    (_S.REQ_SENT, _K.REP): _M._on_rep,
    (_S.REQ_SENT, _K.REJ): _M._on_rej,
    (_S.REQ_RCVD, _K.REJ): _M._on_rej,
    (_S.REP_RCVD, _K.REP): _M._on_rep_again,
    (_S.REP_RCVD, _K.REJ): _M._on_rej,
    (_S.REP_RCVD, _K.DREQ): _M._on_dreq,
    (_S.REP_SENT, _K.MRA): _M._on_mra,
    (_S.REP_SENT, _K.RTU): _M._on_rtu,
    (_S.REP_SENT, _K.REJ): _M._on_rej,
    (_S.REP_SENT, _K.DREQ): _M._on_dreq,
    (_S.ESTABLISHED, _K.REP): _M._on_rep_again,
    (_S.ESTABLISHED, _K.REJ): _M._on_rej,
    (_S.ESTABLISHED, _K.DREQ): _M._on_dreq,
    (_S.DREQ_SENT, _K.DREP): _M._on_drep,
    (_S.DREQ_SENT, _K.DREQ): _M._on_dreq,
    (_S.TIMEWAIT, _K.DREQ): _M._on_dreq_again,
    (_S.TIMEWAIT, _K.REP): _M._on_rep_again,
    (_S.SIDR_REQ_SENT, _K.SIDR_REP): _M._on_sidr_rep,
}
"""What each message means in each state; what is not here is a repetition that needs no answer, and is dropped."""
