"""What goes into the HCA engine and what comes out.

``engine.handle(event, now_ns) -> list[Action]``. Hot-path events are slotted and not frozen (frozen ones cost six times
as much to build).
"""

from __future__ import annotations

from dataclasses import dataclass

from fauxrdma.ib.enums import AsyncEventType
from fauxrdma.ib.work import WC
from fauxrdma.wire.headers import Frame

__all__ = [
    "Action",
    "AsyncEvent",
    "Complete",
    "Doorbell",
    "Event",
    "FrameReceived",
    "LinkReady",
    "SendFrame",
    "TimerExpired",
    "WantsLink",
]


@dataclass(slots=True)
class Doorbell:
    """Event: the application posted to a queue of this queue pair."""

    qpn: int


@dataclass(slots=True)
class FrameReceived:
    """Event: a frame is completely here, its payload already where :meth:`HcaEngine.place` said."""

    frame: Frame


@dataclass(slots=True)
class LinkReady:
    """Event: the link can take one more burst of this queue pair, of at most `max_payload` bytes (whole MTUs)."""

    qpn: int
    max_payload: int


@dataclass(slots=True)
class TimerExpired:
    """Event: `next_deadline_ns()` has come."""


@dataclass(slots=True)
class SendFrame:
    """Action: put this frame on the wire, on behalf of queue pair `qpn`."""

    qpn: int
    frame: Frame


@dataclass(slots=True)
class WantsLink:
    """Action: this queue pair has bursts to send; answer with LinkReady whenever the link has room, as long as its
    `wants_link` holds."""

    qpn: int


@dataclass(slots=True)
class Complete:
    """Action: add a completion to a completion queue. `solicited` completions wake solicited-only waiters."""

    cqn: int
    wc: WC
    solicited: bool = False


@dataclass(slots=True)
class AsyncEvent:
    """Action: report an asynchronous event about queue pair or completion queue `element`; `text` explains it."""

    kind: AsyncEventType
    element: int
    text: str


Event = Doorbell | FrameReceived | LinkReady | TimerExpired
Action = SendFrame | WantsLink | Complete | AsyncEvent
