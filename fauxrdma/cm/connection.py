"""One connection of the communication manager: its state, what was said last, and when that is said again.

The states are those of IBTA vol. 1, 12.9.7. Whoever asked repeats the question until it is answered or the tries are
used up, and what was answered is kept, so that a repeated question gets the same answer and nothing happens twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from fauxrdma.cm.messages import CmMessage

__all__ = ["MOST_TRIES", "RESPONSE_NS", "SERVICE_TIMEOUT", "Connection", "State", "timeout_ns"]


def timeout_ns(code: int) -> int:
    """4.096 us x 2^code, as all timeouts of InfiniBand."""
    return 4096 << code


RESPONSE_NS = timeout_ns(15)
"""How long an answer is waited for: 134 ms. Linux waits 4.3 s, and tries 16 times."""
MOST_TRIES = 8
SERVICE_TIMEOUT = 22
"""What an MRA asks for: the program behind a connection may take 17.2 s until the question is repeated (Linux: 69 s).
An MRA gives time, not tries: who does not decide is given up after MOST_TRIES of them, 2.3 minutes."""


class State(Enum):
    """IBTA figures 147 to 149. REQ_SENT covers "MRA received" too: only the time to wait differs."""

    IDLE = "nothing said yet, or all over"
    REQ_SENT = "asked, waiting for REP"
    REQ_RCVD = "asked by the peer, the program is to accept or reject"
    REP_SENT = "accepted, waiting for RTU"
    REP_RCVD = "accepted by the peer, the program is to make its queue pair ready"
    ESTABLISHED = "in use"
    DREQ_SENT = "asked to part, waiting for DREP"
    TIMEWAIT = "over; repeated questions still get their answers"
    SIDR_REQ_SENT = "asked for a datagram service, waiting for SIDR_REP"
    SIDR_REQ_RCVD = "asked for a datagram service, the program is to accept or reject"


@dataclass(slots=True, eq=False)
class Connection:
    """`number` is ours, `peer_number` theirs, `lid` where they are. `request` is the REQ or SIDR_REQ it began with.

    `said` is repeated at `deadline_ns` while `tries_left`; `answer` is what a repeated question gets. `owned` is False
    once the program has let go: it is brought to its end without telling. `peer_qpn` is the queue pair it is with.
    """

    number: int
    lid: int
    request: CmMessage
    state: State = State.IDLE
    peer_number: int = 0
    listener: int = 0
    peer_qpn: int = 0
    said: CmMessage | None = None
    answer: CmMessage | None = None
    deadline_ns: int | None = None
    tries_left: int = 0
    owned: bool = True
