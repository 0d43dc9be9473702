"""Daemons as child processes of a lab: started alike, awaited, and their last words as the errors they stand for."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fauxrdma.errors import ConfigError, FabricUnhealthy, FauxrdmaError, SetupError
from fauxrdma.lab.processes import Child, Supervisor, describe_exit

__all__ = ["await_ready", "obituary", "start_daemon", "verdict"]

_DAEMON_ERROR = re.compile(r"fauxrdma-[\w-]+: (?:error: )?(.+)")


def start_daemon(
    supervisor: Supervisor,
    name: str,
    module: str,
    arguments: Sequence[str],
    log: Path,
    *,
    tied: bool,
    verbose: bool = False,
) -> Child:
    """Start ``python -m module arguments``, called `name`, with its output in `log`. `tied`: it ends with the thread
    that this is called in. Raises SetupError when it cannot be started."""
    # -P: a directory named `daemons` where the user stands must not shadow ours.
    argv = [sys.executable, "-P", "-m", module, *arguments, *(["--die-with-parent"] if tied else [])]
    argv += ["--verbose"] if verbose else []
    log.unlink(missing_ok=True)
    return supervisor.start(name, argv, log=log, ready_option="--ready-fd", die_with_parent=tied)


def await_ready(supervisor: Supervisor, child: Child, deadline: float, timeout_s: float) -> dict[str, Any]:
    """What a daemon said when it was ready. `deadline` is by time.monotonic(), `timeout_s` what that was at first.
    Raises FabricUnhealthy when it takes longer, and the daemon's own error when it ends instead."""
    if supervisor.wait_ready(child, deadline - time.monotonic()):
        assert child.ready is not None
        return child.ready
    if child.running:
        raise FabricUnhealthy(f"the {child.name} was not ready after {timeout_s:g} s{_last_words(child)}")
    raise _start_failure(child)


def obituary(child: Child) -> str:
    """One line about a daemon that ended: which, how, and its last words."""
    returncode = child.returncode if child.returncode is not None else 0
    words = _last_words(child) if returncode > 0 else ""  # killed by a signal, it had no time to say anything
    return f"the {child.name} (pid {child.pid}) died: {describe_exit(returncode)}{words}"


def verdict(child: Child) -> FabricUnhealthy | None:
    """What a subnet manager said that ended because nothing can go on (a deadlock in virtual time); None for one that
    ended otherwise."""
    spoken = _spoken_error(child)
    return FabricUnhealthy(spoken) if spoken and child.returncode == FabricUnhealthy.exit_code else None


def _start_failure(child: Child) -> FauxrdmaError:
    """The daemon's own one-line error, as the error its exit code stands for."""
    words = _spoken_error(child)
    if words and child.returncode == ConfigError.exit_code:
        return ConfigError(words)
    if words and child.returncode == SetupError.exit_code:
        return SetupError(words)
    return FabricUnhealthy(obituary(child).replace("died", "ended before it was ready"))


def _spoken_error(child: Child) -> str:
    """The error that a daemon told in its last line, "" if it told none."""
    lines = [line.strip() for line in child.last_stderr() if line.strip()]
    spoken = _DAEMON_ERROR.match(lines[-1]) if lines else None
    return spoken.group(1) if spoken is not None else ""


def _last_words(child: Child) -> str:
    lines = [line for line in child.last_stderr() if line.strip()]
    return f": {lines[-1].strip()}" if lines else ""
