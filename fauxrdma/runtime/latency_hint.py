"""Asking the kernel to run this process soon after it wakes (Linux 6.12 and later, no privilege needed).

Daemons sleep until a frame or a deadline comes and then work for microseconds, beside ranks that compute for
milliseconds. Under EEVDF a task with a shorter slice gets an earlier virtual deadline, hence the processor sooner, and
no more of it in total. `sched_setattr(2)` sets the slice of a normal task through `sched_runtime`.
"""

from __future__ import annotations

import ctypes
import os
import platform

__all__ = ["prefer_low_latency"]

_SLICE_NS = 100_000  # the shortest the kernel takes
_SYSCALL = {"x86_64": 314, "aarch64": 274}


class _SchedAttr(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime_ns", ctypes.c_uint64),
        ("deadline_ns", ctypes.c_uint64),
        ("period_ns", ctypes.c_uint64),
    )


def prefer_low_latency() -> bool:
    """Ask for the shortest time slice; whether the kernel agreed. Harmless where it does not know how."""
    number = _SYSCALL.get(platform.machine())
    if number is None or not hasattr(os, "sched_getscheduler"):
        return False
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    attr = _SchedAttr(ctypes.sizeof(_SchedAttr), os.SCHED_OTHER, 0, nice, 0, _SLICE_NS, 0, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    return int(libc.syscall(number, 0, ctypes.byref(attr), 0)) == 0
