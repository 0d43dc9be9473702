"""Which memory the bytes for each queue pair go into: what the subnet manager has to know for the rate of a flow.

The sender names the memory it reads from when it starts a flow. Where the bytes land only the receiver finds out, frame
by frame; it tells the manager when that is another memory than before. So the first burst to a queue pair is paced by
the memory that its HCA usually serves, and the first after a change by the one before.
"""

from __future__ import annotations

from collections.abc import Callable

from fauxrdma.memory.location import main_memory
from fauxrdma.wire.control import Message
from fauxrdma.wire.fabric_messages import FlowLanding
from fauxrdma.wire.headers import Frame

__all__ = ["Landings", "moves"]

_MOVING_BYTES = 4096
"""A flow is where its bulk is: smaller payloads (flags, credits between bulk data) do not make it change its way."""


def moves(frame: Frame, memory: int) -> bool:
    """Whether a flow that had to do with `memory` has to do with another one now, by what `frame` carries."""
    return frame.nbytes >= _MOVING_BYTES and main_memory(frame.extents) != memory


class Landings:
    """The memory of one daemon's queue pairs. `notify(message)` goes to the manager."""

    def __init__(self, notify: Callable[[Message], None]) -> None:
        self._notify = notify
        self._memory: dict[tuple[int, int], int] = {}  # by LID and queue pair

    def landed(self, frame: Frame) -> None:
        """The payload of `frame` is in place, where its `extents` say."""
        key = (frame.dlid, frame.dest_qpn)
        known = self._memory.get(key)
        if known is None or moves(frame, known):
            memory = self._memory[key] = main_memory(frame.extents)
            self._notify(FlowLanding(*key, memory))

    def forget(self, lid: int, qpn: int) -> None:
        """A queue pair is gone."""
        if self._memory.pop((lid, qpn), None) is not None:
            self._notify(FlowLanding(lid, qpn, None))
