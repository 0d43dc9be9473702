"""Printing: consoles, JSON, and errors as one line."""

from __future__ import annotations

import json
import shutil
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["console", "print_error", "print_json"]

_WIDTH_OF_A_PIPE = 140


def console(stderr: bool = False) -> Console:
    """A rich console on standard output or error. Piped output is wide enough to keep a table's rows on one line."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else max(_WIDTH_OF_A_PIPE, shutil.get_terminal_size().columns)
    return Console(stderr=stderr, highlight=False, width=width)


def print_json(value: Any) -> None:
    """`value` as indented JSON on standard output."""
    print(json.dumps(value, indent=2))


def print_error(message: str) -> None:
    """``fauxrdma: error: MESSAGE`` on standard error, on one line whatever the message holds."""
    print(f"fauxrdma: error: {' '.join(message.split())}", file=sys.stderr)
