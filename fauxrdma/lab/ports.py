"""TCP ports on loopback: finding a free one, and saying clearly that one is taken."""

from __future__ import annotations

import errno
import random
import socket

from fauxrdma.errors import ConfigError, SetupError

__all__ = ["free_port", "parse_endpoint", "require_free_port"]

# Below the kernel's range for outgoing connections (32768-60999 by default), which could take the port between the
# moment it is chosen here and the moment the rank binds it.
_RANGE = (20_000, 32_000)
_TRIES = 200


def _try_bind(host: str, port: int) -> OSError | None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the later owner does: TIME_WAIT is not in use
        try:
            probe.bind((host, port))
        except OSError as error:
            return error
    return None


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port that nothing is bound to right now. Raises SetupError when none can be bound."""
    chooser = random.SystemRandom()  # two labs that start together must not choose alike
    error: OSError | None = None
    for _ in range(_TRIES):
        port = chooser.randrange(*_RANGE)
        error = _try_bind(host, port)
        if error is None:
            return port
    raise SetupError(f"no TCP port of {host} between {_RANGE[0]} and {_RANGE[1]} can be bound: {error}")


def require_free_port(host: str, port: int, option: str) -> None:
    """Raise SetupError, naming the option that asked for it, when `port` cannot be bound on `host`."""
    error = _try_bind(host, port)
    if error is None:
        return
    if error.errno == errno.EADDRINUSE:
        raise SetupError(
            f"{option}: port {port} of {host} is in use; choose another, or leave {option} out for a free one"
        )
    raise SetupError(f"{option}: port {port} of {host} cannot be bound: {error.strerror}")


def parse_endpoint(text: str, option: str) -> tuple[str, int]:
    """Split ``HOST:PORT``. Raises ConfigError naming the option."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"{option} must be HOST:PORT with a port from 0 to 65535, got {text!r}")
    return host, int(port)
