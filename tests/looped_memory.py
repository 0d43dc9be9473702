"""Memory of any length that takes no more than a small file does: it is mapped over and over."""

from __future__ import annotations

import ctypes
import mmap
import os

__all__ = ["looped"]


def looped(length: int, part: int) -> memoryview:
    """Memory of this length that repeats every `part` bytes. It stays mapped."""
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    fd = os.memfd_create("looped")
    os.ftruncate(fd, part)
    base = libc.mmap(None, length, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    fixed = 0x10
    for at in range(0, length, part):
        where = libc.mmap(base + at, part, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | fixed, fd, 0)
        assert where == base + at
    os.close(fd)
    return memoryview((ctypes.c_char * length).from_address(base)).cast("B")
