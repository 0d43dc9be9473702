"""Ending with the process that started us, so that a killed lab leaves no daemons behind (Linux)."""

from __future__ import annotations

import ctypes
import os
import signal

from fauxrdma.errors import SetupError

__all__ = ["die_with_parent"]

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have the kernel send this process SIGTERM when the thread that started it ends.

    If that has already happened, the signal is raised here. Raises SetupError where the kernel has no such thing.
    """
    parent = os.getppid()
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        done = libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) == 0
    except (OSError, AttributeError):
        done = False
    if not done:
        raise SetupError("this system cannot end a process with its parent (no prctl): leave out --die-with-parent")
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)
