"""The memory-window verbs of one application. Binding and invalidating are work requests; only making one is a verb."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fauxrdma.abi import control_verbs as V
from fauxrdma.errors import VerbsError
from fauxrdma.memory.windows import MemoryWindow
from fauxrdma.wire.control import Message

if TYPE_CHECKING:
    from fauxrdma.runtime.app_session import AppSession

__all__ = ["WindowVerbs"]


class WindowVerbs:
    """Serves the verbs in `handlers`, destroys the kinds in `destroyers` (by handle), owns what it made."""

    def __init__(self, session: AppSession) -> None:
        self._session = session
        self.mws: dict[int, MemoryWindow] = {}
        self.handlers: dict[type[Message], Callable[[Any], None]] = {V.AllocMw: self._alloc_mw}
        self.destroyers: dict[str, Callable[[int], None]] = {"mw": self._dealloc_mw}

    def _alloc_mw(self, msg: V.AllocMw) -> None:
        hca = self._session.hca
        pd = self._session.memory.pd(msg.pd)
        windows = hca.engine.keys.windows
        if len(windows) >= hca.attributes.max_mw:
            raise VerbsError(errno.ENOMEM, f"Failed to allocate a MW: the device has max_mw = {hca.attributes.max_mw}")
        window = windows.allocate(hca.new_handle(), pd, msg.mw_type)
        self.mws[window.handle] = window
        self._session.reply(V.MwKey(window.handle, window.rkey))

    def _dealloc_mw(self, handle: int) -> None:
        window = self.mws.pop(handle, None)
        if window is None:
            raise VerbsError(errno.EINVAL, f"there is no mw {handle} in this context")
        self._session.hca.engine.keys.windows.free(window)

    def close(self) -> None:
        """Free every window. Queue pairs are gone already."""
        for window in self.mws.values():
            self._session.hca.engine.keys.windows.free(window)
        self.mws.clear()
