"""The device memory of one application: allocate, copy, register (ibv_alloc_dm and its relatives)."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fauxrdma.abi import control_verbs as V
from fauxrdma.errors import VerbsError
from fauxrdma.ib.enums import AccessFlags
from fauxrdma.memory.location import HCA_MEMORY
from fauxrdma.memory.regions import MemoryRegion, check_access
from fauxrdma.memory.shared import SharedMemory
from fauxrdma.wire.control import Message

if TYPE_CHECKING:
    from fauxrdma.runtime.app_session import AppSession

__all__ = ["DeviceMemoryVerbs"]

_ALIGNMENT = 4
_LARGEST_LOG_ALIGN = 31


@dataclass(slots=True)
class _DeviceMemory:
    """One allocation. Every region over it has a mapping of its own, so that deregistering one is told from another."""

    memory: SharedMemory
    regions: list[MemoryRegion]


class DeviceMemoryVerbs:
    """Serves the verbs in `handlers`, destroys the kinds in `destroyers` (by handle), owns what it made."""

    def __init__(self, session: AppSession) -> None:
        self._session = session
        self._dms: dict[int, _DeviceMemory] = {}
        self.handlers: dict[type[Message], Callable[[Any], None]] = {
            V.AllocDm: self._alloc,
            V.CopyToDm: self._copy_to,
            V.CopyFromDm: self._copy_from,
            V.RegDmMr: self._register,
        }
        self.destroyers: dict[str, Callable[[int], None]] = {"dm": self._free}

    def _alloc(self, msg: V.AllocDm) -> None:
        hca = self._session.hca
        if msg.length <= 0 or not 0 <= msg.log_align_req <= _LARGEST_LOG_ALIGN or msg.comp_mask:
            raise VerbsError(
                errno.EINVAL,
                f"Failed to allocate DM: length {msg.length}, log_align_req {msg.log_align_req}, comp_mask "
                f"0x{msg.comp_mask:x}; legal are a positive length, 0 to {_LARGEST_LOG_ALIGN} and 0",
            )
        left = hca.attributes.max_dm_size - hca.device_memory_used
        if msg.length > left:
            raise VerbsError(
                errno.ENOMEM,
                f"Failed to allocate DM of {msg.length} B: of max_dm_size {hca.attributes.max_dm_size} B "
                f"{left} are left",
            )
        memory = SharedMemory.create(msg.length, "fauxrdma-dm")
        handle = hca.new_handle()
        self._dms[handle] = _DeviceMemory(memory, [])
        hca.device_memory_used += msg.length
        self._session.reply(V.Created(handle))

    def _dm(self, handle: int) -> _DeviceMemory:
        dm = self._dms.get(handle)
        if dm is None:
            raise VerbsError(errno.EINVAL, f"there is no device memory {handle} in this context")
        return dm

    def _checked(self, handle: int, offset: int, length: int, direction: str) -> memoryview:
        dm = self._dm(handle)
        if offset % _ALIGNMENT or length % _ALIGNMENT:
            raise VerbsError(
                errno.EINVAL,
                f"Failed to copy {direction} dm: offset {offset} and length {length} must be multiples of {_ALIGNMENT}",
            )
        if offset < 0 or length < 0 or offset + length > dm.memory.length:
            raise VerbsError(
                errno.EINVAL,
                f"Failed to copy {direction} dm: {length} B at offset {offset} leave its {dm.memory.length} B",
            )
        return dm.memory.view[offset : offset + length]

    def _copy_to(self, msg: V.CopyToDm) -> None:
        self._checked(msg.dm, msg.offset, len(msg.data), "to")[:] = msg.data
        self._session.reply(V.Done())

    def _copy_from(self, msg: V.CopyFromDm) -> None:
        self._session.reply(V.DmData(bytes(self._checked(msg.dm, msg.offset, msg.length, "from"))))

    def _register(self, msg: V.RegDmMr) -> None:
        dm = self._dm(msg.dm)
        verbs = self._session.memory
        pd = verbs.pd(msg.pd)
        verbs.check_room(msg.length)
        access = msg.access | AccessFlags.IBV_ACCESS_ZERO_BASED
        check_access(access)
        if msg.offset % _ALIGNMENT or msg.offset < 0 or msg.offset + msg.length > dm.memory.length:
            raise VerbsError(
                errno.EINVAL,
                f"Failed to register DM: {msg.length} B at offset {msg.offset} of {dm.memory.length} B (an offset is "
                f"a multiple of {_ALIGNMENT})",
            )
        mapping = SharedMemory.attach(os.dup(dm.memory.fd), dm.memory.length)
        mapping.close_fd()
        view = mapping.view[msg.offset : msg.offset + msg.length]
        dm.regions = [region for region in dm.regions if verbs.mrs.get(region.handle) is region]
        dm.regions.append(verbs.enter(pd, 0, msg.length, access, view, HCA_MEMORY))

    def _free(self, handle: int) -> None:
        dm = self._dm(handle)
        registered = sum(self._session.memory.mrs.get(region.handle) is region for region in dm.regions)
        if registered:
            raise VerbsError(errno.EBUSY, f"Failed to free DM {handle}: {registered} regions are over it")
        self._release(self._dms.pop(handle))

    def _release(self, dm: _DeviceMemory) -> None:
        self._session.hca.device_memory_used -= dm.memory.length
        dm.memory.close_fd()

    def close(self) -> None:
        """Free everything. The regions are gone already."""
        for dm in self._dms.values():
            self._release(dm)
        self._dms.clear()
