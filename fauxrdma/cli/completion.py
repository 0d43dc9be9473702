"""The words that completion in the shell offers for fabrics, engines, placements, transports and algorithms.

The script that `fauxrdma --show-completion` prints asks the command for every press of the tab key, so what is offered
here is cheap to find.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

__all__ = [
    "complete_algorithm",
    "complete_fabric",
    "complete_placement",
    "complete_routing",
    "complete_transport",
]

_FABRIC_FILES = (".yaml", ".yml")


def complete_fabric(incomplete: str) -> list[str]:
    """Presets, and fabric files and folders below the folder that has been typed."""
    from fauxrdma.topology.presets import PRESETS

    found = [name for name in PRESETS if name.startswith(incomplete)]
    typed = Path(incomplete)
    folder = typed if incomplete.endswith(os.sep) else typed.parent
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return found
    for entry in entries:
        text = str(entry)
        if not text.startswith(incomplete) or entry.name.startswith("."):
            continue
        if entry.is_dir():
            found.append(text + os.sep)
        elif entry.suffix in _FABRIC_FILES:
            found.append(text)
    return found


def complete_routing(incomplete: str) -> list[str]:
    """Routing engines."""
    from fauxrdma.topology.routing_choice import ENGINE_NAMES

    return _starting(incomplete, ENGINE_NAMES)


def complete_placement(incomplete: str) -> list[str]:
    """Placements by name."""
    from fauxrdma.topology.placement.dealing import PLACEMENTS

    return _starting(incomplete, PLACEMENTS)


def complete_transport(incomplete: str) -> list[str]:
    """Transports."""
    from fauxrdma.fabric.transport import TRANSPORTS

    return _starting(incomplete, TRANSPORTS)


def complete_algorithm(incomplete: str) -> list[str]:
    """Algorithms of collectives, and what chooses one."""
    from fauxrdma.collectives.algorithms import ALGORITHMS

    return _starting(incomplete, ["auto", *dict.fromkeys(name for each in ALGORITHMS.values() for name in each)])


def _starting(incomplete: str, words: Iterable[str]) -> list[str]:
    """The words that fit the last of a comma-separated list, with what comes before it."""
    before, comma, last = incomplete.rpartition(",")
    return [before + comma + word for word in words if word.startswith(last)]
