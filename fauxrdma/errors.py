"""The exceptions fauxrdma raises, one per situation; each docstring is advice.

Every error carries the exit code that a command ending with it returns
(0 ok, 1 check failed, 2 usage or configuration, 3 environment, 4 fabric unhealthy).
"""

from __future__ import annotations

import os

__all__ = [
    "CallMismatch",
    "CheckFailed",
    "CollectiveError",
    "ConfigError",
    "FabricUnhealthy",
    "FauxrdmaError",
    "LocalProtocolError",
    "ProtocolError",
    "RemoteProtocolError",
    "SetupError",
    "VerbsError",
]


class FauxrdmaError(Exception):
    """Base of everything fauxrdma raises on purpose. Catch this to catch all of them."""

    exit_code = 1


class CheckFailed(FauxrdmaError):
    """Something ran and its result is not what was asked for (a threshold, a comparison, the user's job)."""

    exit_code = 1


class ConfigError(FauxrdmaError):
    """What the user wrote cannot be used: a bad YAML file, an unknown preset, too many nodes. Fix the input."""

    exit_code = 2


class SetupError(FauxrdmaError):
    """The machine is missing something (torch, a free port, a running daemon). `fauxrdma doctor` names the fix."""

    exit_code = 3


class FabricUnhealthy(FauxrdmaError):
    """The emulated fabric cannot carry the traffic: a daemon died, a node is unreachable."""

    exit_code = 4


class ProtocolError(FauxrdmaError):
    """Bytes or messages that break the wire protocol."""

    exit_code = 4


class LocalProtocolError(ProtocolError):
    """This side was asked to do what the protocol does not allow; the bug is in the caller. Nothing was sent."""


class RemoteProtocolError(ProtocolError):
    """The other side broke the protocol (bad version, over the limits, malformed). Close the connection."""


class CallMismatch(RemoteProtocolError):
    """Ranks called different collectives, or the same with different sizes, dtypes or roots. `peer` is the rank whose
    message shows it. Make all ranks call the same in the same order."""

    def __init__(self, peer: int, text: str) -> None:
        super().__init__(text)
        self.peer = peer


class VerbsError(FauxrdmaError, OSError):
    """A verb was refused, with the errno libibverbs would give.

    `errno` holds the code (EINVAL, ENOMEM, ...); the message says which argument was wrong, its value and the rule.
    `bad_wr` is set by `post_send` and `post_recv`: the first work request that was not posted.
    """

    bad_wr: object = None

    def __init__(self, errno_: int, message: str) -> None:
        OSError.__init__(self, errno_, message)

    @property
    def error_code(self) -> int:
        """The errno, under the name pyverbs gives it."""
        return self.errno or 0

    def __str__(self) -> str:
        return f"{self.strerror}. Errno: {self.errno}, {os.strerror(self.errno or 0)}"


class CollectiveError(FauxrdmaError):
    """A collective cannot complete: a peer died, a completion came back in error, or the timeout passed.

    The message names the rank, the queue pair, the status and the link. The communicator cannot be used again.
    """

    exit_code = 4
