"""Who is on the same machine? An identity that is equal exactly when memory can be shared."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

__all__ = ["boot_id", "epoch_here", "host_identity"]


def boot_id() -> str:
    """Equal on all that share a kernel, and with it CLOCK_MONOTONIC; empty where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def epoch_here(epoch_ns: int, their_boot_id: str, their_monotonic_ns: int) -> int:
    """An instant of another process's CLOCK_MONOTONIC on ours, given what that clock showed a moment ago.

    On the same machine it is the same; on another it is late by the time the message took.
    """
    if not their_boot_id or their_boot_id == boot_id():
        return epoch_ns
    return epoch_ns + time.monotonic_ns() - their_monotonic_ns


def host_identity() -> str:
    """Host name, boot id and the IPC and PID namespaces: containers on one kernel differ, processes beside each other
    do not."""
    try:
        spaces = "/".join(os.readlink(f"/proc/self/ns/{name}") for name in ("ipc", "pid"))
    except OSError:
        spaces = ""
    return f"{socket.gethostname()}:{boot_id()}:{spaces}"
