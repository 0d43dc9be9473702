"""The memory verbs of one application: protection domains and memory regions."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fauxrdma.abi import control_verbs as V
from fauxrdma.errors import VerbsError
from fauxrdma.memory.regions import MemoryRegion, ProtectionDomain
from fauxrdma.memory.shared import SharedMemory
from fauxrdma.wire.control import Message

if TYPE_CHECKING:
    from fauxrdma.runtime.app_session import AppSession

__all__ = ["MemoryVerbs"]


class MemoryVerbs:
    """Serves the verbs in `handlers`, destroys the kinds in `destroyers` (by handle), owns what it made."""

    def __init__(self, session: AppSession) -> None:
        self._session = session
        self.pds: dict[int, ProtectionDomain] = {}
        self.mrs: dict[int, MemoryRegion] = {}
        self.handlers: dict[type[Message], Callable[[Any], None]] = {
            V.AllocPd: self._alloc_pd,
            V.RegMr: self._reg_mr,
        }
        self.destroyers: dict[str, Callable[[int], None]] = {"pd": self._dealloc_pd, "mr": self._dereg_mr}

    def _alloc_pd(self, msg: V.AllocPd) -> None:
        hca = self._session.hca
        if hca.pds >= hca.attributes.max_pd:
            raise VerbsError(errno.ENOMEM, f"Failed to allocate a PD: the device has max_pd = {hca.attributes.max_pd}")
        hca.pds += 1
        handle = self._session.hca.new_handle()
        self.pds[handle] = ProtectionDomain(handle)
        self._session.reply(V.Created(handle))

    def pd(self, handle: int) -> ProtectionDomain:
        pd = self.pds.get(handle)
        if pd is None:
            raise VerbsError(errno.EINVAL, f"there is no protection domain {handle} in this context")
        return pd

    def _reg_mr(self, msg: V.RegMr) -> None:
        fd = self._session.take_fd()
        hca = self._session.hca
        try:
            pd = self.pd(msg.pd)
            if len(hca.engine.keys) >= hca.attributes.max_mr:
                raise VerbsError(
                    errno.ENOMEM, f"Failed to register a MR: the device has max_mr = {hca.attributes.max_mr}"
                )
            memlock = hca.profile.memlock_bytes
            if memlock and hca.registered_bytes + msg.length > memlock:
                raise VerbsError(
                    errno.ENOMEM,
                    f"Failed to register a MR: {msg.length} B and the {hca.registered_bytes} B registered already "
                    f"exceed the profile's memlock_bytes {memlock}",
                )
            if not 0 < msg.length <= hca.attributes.max_mr_size:
                raise VerbsError(errno.EINVAL, f"Failed to register a MR: length {msg.length} is not 1 to max_mr_size")
        except VerbsError:
            os.close(fd)
            raise
        try:
            memory = SharedMemory.attach(fd, msg.length)
        except ValueError as error:
            raise VerbsError(errno.EINVAL, f"Failed to register a MR: {error}") from None
        memory.close_fd()
        handle = hca.new_handle()
        region = hca.engine.keys.register(handle, pd, msg.addr, msg.length, msg.access, memory.view)
        self.mrs[handle] = region
        hca.registered_bytes += msg.length
        self._session.reply(V.MrKeys(handle, region.lkey, region.rkey))

    def _dereg_mr(self, handle: int) -> None:
        region = self.mrs.get(handle)
        if region is None:
            raise VerbsError(errno.EINVAL, f"there is no mr {handle} in this context")
        self._session.data_path.deregister(self._session.hca, region)
        del self.mrs[handle]
        self._session.hca.registered_bytes -= region.length

    def _dealloc_pd(self, handle: int) -> None:
        if self.pd(handle).children:
            raise VerbsError(errno.EBUSY, f"Failed to dealloc PD {handle}: regions or queue pairs still use it")
        del self.pds[handle]
        self._session.hca.pds -= 1

    def close(self) -> None:
        """Deregister everything. Queue pairs are gone already."""
        for region in self.mrs.values():
            self._session.hca.registered_bytes -= region.length
            region.windows = 0  # they go, too
            self._session.hca.engine.keys.deregister(region)
            self._session.data_path.let_go(region)
        self._session.hca.pds -= len(self.pds)
        self.mrs.clear()
        self.pds.clear()
