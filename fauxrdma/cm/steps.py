"""What the communication manager does to a connection, whatever the cause: ask, answer, wait, tell, end."""

from __future__ import annotations

import errno
import random
from dataclasses import dataclass, field

from fauxrdma.cm.book import ConnectionBook
from fauxrdma.cm.connection import MOST_TRIES, RESPONSE_NS, Connection, State
from fauxrdma.cm.messages import CmMessage, Kind
from fauxrdma.errors import VerbsError

__all__ = ["TIMEWAIT_NS", "ConnectionSteps", "Listener", "Out", "SendMad", "Tell"]

TIMEWAIT_NS = 2 * MOST_TRIES * RESPONSE_NS
"""As long as a repeated message of the peer can still come."""
_S, _K = State, Kind


@dataclass(slots=True)
class SendMad:
    """A message for the HCA with this LID."""

    lid: int
    message: CmMessage


@dataclass(slots=True)
class Tell:
    """Tell the program that owns connection `number`. `what` is one of request, response, established, rejected,
    unreachable, disconnected, timewait_exit; `listener` is set for a request."""

    number: int
    what: str
    message: CmMessage | None = None
    lid: int = 0
    listener: int = 0


Out = list[SendMad | Tell]


@dataclass(slots=True)
class Listener:
    """Who hears requests; at most `backlog` of them wait to be accepted or rejected."""

    number: int
    backlog: int
    waiting: set[int] = field(default_factory=set)


class ConnectionSteps:
    """The steps; `book` has the connections."""

    def __init__(self, rng: random.Random) -> None:
        self.book = ConnectionBook(rng)
        self.services: dict[int, Listener] = {}
        self.listeners: dict[int, int] = {}  # service by listener

    @property
    def connections(self) -> dict[int, Connection]:
        """By our number."""
        return self.book.connections

    def next_deadline_ns(self) -> int | None:
        """When to call `on_timer`."""
        return self.book.next_deadline_ns()

    def _in(self, number: int, what: str, *states: State) -> Connection:
        connection = self.connections.get(number)
        if connection is None or not connection.owned:
            raise VerbsError(errno.EINVAL, f"Failed to {what}: there is no such connection, or it is over")
        if connection.state not in states:
            legal = ", ".join(state.name for state in states)
            raise VerbsError(
                errno.EINVAL, f"Failed to {what}: the connection is in {connection.state.name}, legal are {legal}"
            )
        return connection

    def _address(self, connection: Connection, message: CmMessage) -> CmMessage:
        message.local_id, message.remote_id = connection.number, connection.peer_number
        message.transaction = connection.request.transaction
        return message

    def _ask(self, connection: Connection, message: CmMessage, now: int, out: Out) -> None:
        connection.said = message
        connection.tries_left = MOST_TRIES - 1
        self.book.wake_at(connection, now + RESPONSE_NS)
        out.append(SendMad(connection.lid, message))

    def _quiet(self, connection: Connection) -> None:
        connection.said = connection.deadline_ns = None

    def _answer_last(self, connection: Connection, message: CmMessage, now: int, out: Out) -> None:
        """Say the last word; it is said again to who repeats the question."""
        out.append(SendMad(connection.lid, message))
        self._wait_out(connection, now)
        connection.answer = message

    def _wait_out(self, connection: Connection, now: int) -> None:
        connection.state, connection.said = _S.TIMEWAIT, None
        self.book.part_from_queue_pair(connection)
        self.book.wake_at(connection, now + TIMEWAIT_NS)

    def _part(self, connection: Connection, now: int, out: Out) -> None:
        connection.state = _S.DREQ_SENT
        self._ask(connection, self._address(connection, CmMessage(_K.DREQ, qpn=0)), now, out)

    def _decided(self, connection: Connection) -> None:
        """It does not count against its listener's backlog any more."""
        if (service := self.listeners.get(connection.listener)) is not None:
            self.services[service].waiting.discard(connection.number)

    def _tell(self, connection: Connection, what: str, message: CmMessage | None, out: Out) -> None:
        if connection.owned:
            out.append(Tell(connection.number, what, message, connection.lid))

    def _over(self, connection: Connection, now: int) -> None:
        """It came to nothing. A request that was heard is remembered, or a late copy of it would begin it anew."""
        connection.owned, connection.answer = False, None
        if connection.listener:
            self._wait_out(connection, now)
        else:
            self.book.remove(connection)
