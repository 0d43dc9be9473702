"""Existing memory of this process, whatever holds it: where it is, how long, and a view of its bytes."""

from __future__ import annotations

import ctypes
import errno
import mmap
from dataclasses import dataclass
from typing import Any

from fauxrdma.errors import VerbsError
from fauxrdma.memory.shared import address_of

__all__ = ["Buffer", "check_mapped", "locate"]

_PAGE = mmap.PAGESIZE
_CHECKED_AT_ONCE = 1 << 30
_ADDRESS_SPACE = 1 << 64

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


@dataclass(slots=True)
class Buffer:
    """`view` is the bytes at `address`; `owner` keeps them alive, and is None for a bare address: nothing does then."""

    address: int
    view: memoryview
    owner: object


def locate(source: Any, length: int | None, writable: bool) -> Buffer:
    """Find the bytes of `source`: an address (with `length`), a torch CPU tensor, a numpy array, or anything with the
    buffer protocol (bytearray, mmap, ctypes, memoryview). `length` in bytes, by default all of it.

    Raises VerbsError: EINVAL for what is not contiguous, empty, or shorter than `length`; EFAULT for memory that is not
    mapped, or read-only when it has to be `writable`; EOPNOTSUPP for memory of a real GPU.
    """
    if isinstance(source, int):
        if length is None:
            raise VerbsError(errno.EINVAL, "Failed to register a MR: an address needs a length")
        return _at_address(source, length)
    owner = source
    if hasattr(source, "data_ptr") and hasattr(source, "element_size"):
        if source.device.type != "cpu":
            raise VerbsError(
                errno.EOPNOTSUPP, f"Failed to register a MR: a tensor on {source.device}; emulated GPUs use host memory"
            )
        if not source.is_contiguous():
            raise VerbsError(errno.EINVAL, "Failed to register a MR: the tensor is not contiguous")
        found = _at_address(source.data_ptr(), source.numel() * source.element_size())
    else:
        found = _of_buffer(source)
    if length is not None:
        if length > len(found.view):
            raise VerbsError(
                errno.EINVAL, f"Failed to register a MR: length {length}, the buffer has {len(found.view)} B"
            )
        found.view = found.view[:length]
    if not len(found.view):
        raise VerbsError(errno.EINVAL, "Failed to register a MR: the buffer is empty")
    if writable and found.view.readonly:
        raise VerbsError(errno.EFAULT, "Failed to register a MR: IBV_ACCESS_LOCAL_WRITE for a read-only buffer")
    found.owner = owner
    return found


def _at_address(address: int, length: int) -> Buffer:
    if length <= 0 or address < 0 or address + length > _ADDRESS_SPACE:
        raise VerbsError(
            errno.EINVAL, f"Failed to register a MR: 0x{address:x} + {length} B is no range of the address space"
        )
    check_mapped(address, length)
    memory = (ctypes.c_ubyte * length).from_address(address)
    return Buffer(address, memoryview(memory).cast("B"), None)


def check_mapped(address: int, length: int) -> None:
    """Raise VerbsError(EFAULT) unless all of the range is mapped in this process."""
    first = address - address % _PAGE
    end = address + length
    vector = ctypes.create_string_buffer(min(end - first, _CHECKED_AT_ONCE) // _PAGE + 1)
    while first < end:
        size = min(end - first, _CHECKED_AT_ONCE)
        if _libc.mincore(first, size, vector):
            raise VerbsError(errno.EFAULT, f"not all of the MR's memory 0x{address:x} + {length} B is mapped")
        first += size


def _of_buffer(source: Any) -> Buffer:
    if hasattr(source, "__array_interface__"):
        # numpy exports no buffer of some types (datetime64); as bytes it does of all.
        import numpy as np

        array = np.asarray(source)
        if not array.flags.c_contiguous:
            raise VerbsError(errno.EINVAL, "Failed to register a MR: the array is not C-contiguous")
        source = array.reshape(-1).view(np.uint8)
    try:
        view = memoryview(source)
    except TypeError:
        raise VerbsError(
            errno.EINVAL,
            f"Failed to register a MR: {type(source).__name__} has no buffer; give an array, a tensor, a buffer object "
            "or an address",
        ) from None
    if not view.c_contiguous:
        raise VerbsError(errno.EINVAL, "Failed to register a MR: the buffer is not C-contiguous")
    if view.nbytes == 0:
        return Buffer(0, memoryview(b""), source)
    view = view.cast("B")
    return Buffer(_address(view), view, source)


def _address(view: memoryview) -> int:
    if not view.readonly:
        return address_of(view)
    import numpy as np

    return int(np.frombuffer(view, np.uint8).ctypes.data)
