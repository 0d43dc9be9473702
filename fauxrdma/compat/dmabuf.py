"""Memory of GPUs by descriptor (pyverbs.dmabuf): that of this node's emulated GPUs."""

from __future__ import annotations

import mmap
from enum import Enum
from typing import Any

from fauxrdma import verbs
from fauxrdma.compat.base import PyverbsCM
from fauxrdma.compat.handles import Handle, not_offered, refused_as
from fauxrdma.compat.pyverbs_error import PyverbsUserError

__all__ = ["DmaBuf", "DrmDmaBuf", "GpuType", "HabanaLabsDmaBuf"]


class GpuType(Enum):
    """Who made the GPU."""

    drm = (0,)
    habana = (1,)


class DmaBuf(Handle, verbs.DmaBuf, PyverbsCM):
    """`size` bytes of emulated GPU number `gpu`."""

    CLOSE_ORDER = 3

    def __init__(self, size: int, gpu: int = 0, gtt: int = 0) -> None:
        with refused_as(f"Failed to allocate dmabuf of size {size} on gpu {gpu}"):
            verbs.DmaBuf.__init__(self, size, gpu)
        self.map_offset = 0

    @property
    def dmabuf_fd(self) -> int:
        """Its descriptor."""
        return self.fd

    def _map(self, length: int, offset: int) -> mmap.mmap:
        if not 0 <= offset <= self.size - length:
            raise PyverbsUserError(f"{length} B at offset {offset} leave the dma-buf of {self.size} B")
        return mmap.mmap(self.fd, self.size)

    def read(self, length: int, offset: int = 0) -> bytes:
        """A copy of `length` bytes from `offset`."""
        with self._map(length, offset) as memory:
            return memory[offset : offset + length]

    def write(self, data: Any, length: int, offset: int = 0) -> None:
        """Put the first `length` bytes of `data`, text or bytes, at `offset`."""
        raw = data.encode() if isinstance(data, str) else bytes(data)
        with self._map(length, offset) as memory:
            memory[offset : offset + length] = raw[:length]


class DrmDmaBuf(DmaBuf):
    """The same, under the name it has for a GPU with a DRM driver."""


class HabanaLabsDmaBuf(PyverbsCM):
    """PyverbsRDMAError(EOPNOTSUPP)."""

    def __init__(self, size: int) -> None:
        not_offered(f"Failed to allocate HL dmabuf of size {size}", "Habana GPUs")
