"""The page by which a thread of an application and its HCA daemon agree on waiting for virtual time.

u64 words: the magic and ABI version (daemon), fabric time now (daemon), the time to be woken at (application; all ones:
never), whether it waits in an empty poll (application). The daemon reads them while the application sleeps, clears the
last two and makes the eventfd readable when it wakes it.
"""

from __future__ import annotations

import os
import struct

from fauxrdma.abi.layout import ABI_VERSION, MAGIC

__all__ = ["TIMER_BYTES", "AppTimer"]

TIMER_BYTES = 4096
_NEVER = (1 << 64) - 1
_NOW, _WAKE_AT, _POLLING = 1, 2, 3


class AppTimer:
    """Either side's view of the page and its eventfd, which the object does not own."""

    def __init__(self, view: memoryview, event_fd: int) -> None:
        self._view = view
        self._words = view[:64].cast("Q")
        self.event_fd = event_fd

    def format(self) -> None:
        """Daemon, once."""
        struct.pack_into("<II", self._view, 0, MAGIC, ABI_VERSION)
        self._words[_WAKE_AT] = _NEVER

    @property
    def now(self) -> int:
        """Fabric time."""
        return self._words[_NOW]

    @now.setter
    def now(self, now_ns: int) -> None:
        self._words[_NOW] = now_ns

    @property
    def wake_at(self) -> int | None:
        """When the thread wants to be woken."""
        at = self._words[_WAKE_AT]
        return None if at == _NEVER else at

    @wake_at.setter
    def wake_at(self, at_ns: int | None) -> None:
        self._words[_WAKE_AT] = _NEVER if at_ns is None else at_ns

    @property
    def polling(self) -> bool:
        """Whether the thread waits in an empty poll: it is woken in every step."""
        return bool(self._words[_POLLING])

    @polling.setter
    def polling(self, value: bool) -> None:
        self._words[_POLLING] = value

    def signal(self) -> None:
        """Daemon: wake the thread."""
        self.wake_at = None
        self.polling = False
        os.eventfd_write(self.event_fd, 1)
