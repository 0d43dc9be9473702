"""What the engine asks of the two halves of a queue pair, whatever its transport."""

from __future__ import annotations

from collections.abc import Sized
from typing import Protocol

from fauxrdma.hca.events import Action
from fauxrdma.ib.enums import WcStatus
from fauxrdma.memory.spans import Piece
from fauxrdma.wire.headers import Frame

__all__ = ["ReceiveHalf", "SendHalf"]


class SendHalf(Protocol):
    """The sending state machine: takes requests from the send queue and cuts them into frames."""

    retransmits: int
    queued: list[int]

    def reset(self) -> None:
        """Back to the beginning; outstanding work is forgotten without completions (RESET)."""

    def start(self) -> None:
        """Entering RTS from RTR: take the initial PSN from the attributes."""

    def has_work(self) -> bool:
        """Whether `next_frame` might yield something now."""

    def drain(self) -> None:
        """Entering SQD: nothing new is begun."""

    def drained(self) -> bool:
        """Whether everything that was begun is done, so that SQD has nothing to wait for."""

    def next_frame(self, max_payload: int, now: int, out: list[Action]) -> Frame | None:
        """Cut the next burst of at most `max_payload` bytes, or None when there is nothing to send just now. Operations
        that send nothing are executed on the way."""

    def local_failure(self) -> WcStatus | None:
        """The status of the oldest request when it failed locally and everything before it has retired."""

    def revoke(self, memory: object) -> bool:
        """The region with this memory is deregistered: keep no piece of it. Whether a request named it; one that was
        under way has failed."""

    def next_deadline_ns(self) -> int | None:
        """When `on_timer` wants to be called."""

    def on_timer(self, now: int) -> WcStatus | None:
        """The deadline has come: resend, or return the status to fail with."""

    def flush(self, status: WcStatus, now: int, out: list[Action]) -> None:
        """Complete the oldest request with `status` and the rest with WR_FLUSH_ERR."""


class ReceiveHalf(Protocol):
    """The receiving state machine: says where payload goes, then acts on the frame that brought it."""

    closing: bool

    @property
    def jobs(self) -> Sized:
        """Responses still to be sent (READs being answered)."""

    def reset(self) -> None:
        """Back to the beginning (RESET)."""

    def start(self) -> None:
        """Entering RTR: take the initial PSN from the attributes."""

    def place(self, frame: Frame) -> tuple[Piece, ...] | None:
        """The pieces of memory the payload belongs in, or None to drain it."""

    def land(self, frame: Frame) -> None:
        """The payload of a frame is here, but parts of it aside (`frame.aside`): store them where they belong, or have
        `finish` report that it cannot be done."""

    def revoke(self, memory: object) -> bool:
        """The region with this memory is deregistered: keep no piece of it. Whether something under way named it; that
        is refused when it goes on."""

    def finish(self, frame: Frame, now: int, out: list[Action]) -> bool:
        """The payload is in place. Returns True when the queue pair has to go to ERR."""

    @property
    def held_until_ns(self) -> int | None:
        """Until when responses, or the first bytes of a WRITE, are held back, if they are."""

    def release(self, now: int, out: list[Action]) -> bool:
        """That time has come: whether there are responses to send."""

    def next_response(self, max_payload: int) -> Frame | None:
        """The next burst of response data, or None."""

    def refuse_now(self, now: int, out: list[Action]) -> None:
        """Report why the queue pair ends, once the responses before that are out (`closing`)."""

    def flush(self, now: int, out: list[Action]) -> None:
        """Complete every posted receive with WR_FLUSH_ERR."""
