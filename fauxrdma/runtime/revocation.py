"""Deregistration while frames are on their way: who still holds views of a region, and how they let go of it.

A payload is not copied on its way, so views of a region lie in the queues of links and of the pacing scheduler, and a
frame that is just arriving is received straight into one. When a region is deregistered the engine stops using it
(:meth:`HcaEngine.deregister`), and here the rest lets go: what had been cut into frames before counts as sent and is
copied now, what is still arriving goes to scratch memory and is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from fauxrdma.wire.headers import Frame

__all__ = ["Holder", "copied", "copy_payload", "let_go"]


class Holder(Protocol):
    """Something that keeps views of registered memory for a while."""

    def let_go(self, memory: object) -> None:
        """Keep no view whose `obj` is `memory`."""


def copied(part: memoryview | bytes, memory: object) -> memoryview | bytes:
    """The part itself, or a copy of its bytes if it is a view of `memory`."""
    return bytes(part) if isinstance(part, memoryview) and part.obj is memory else part


def copy_payload(frames: Iterable[object], memory: object) -> None:
    """Make the payloads of frames that wait to be sent independent of `memory`."""
    for frame in frames:
        if isinstance(frame, Frame) and any(view.obj is memory for view in frame.payload):
            frame.payload = tuple(memoryview(copied(view, memory)) for view in frame.payload)


def let_go(holders: Iterable[Holder], memory: object) -> None:
    """Have every holder let go of `memory`."""
    for holder in holders:
        holder.let_go(memory)
