"""From what a user types (``rail-aligned``, ``random:7``, ``file:my.places``; ``0,3-5``) to a placement."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from fauxrdma.errors import ConfigError
from fauxrdma.topology.graph import Topology
from fauxrdma.topology.placement.dealing import PLACEMENTS, deal
from fauxrdma.topology.placement.placement import Placement
from fauxrdma.topology.placement.places_file import read_places
from fauxrdma.topology.presets.options import did_you_mean

__all__ = ["BLOCK", "choose_placement", "is_places_file", "parse_nodes"]

BLOCK = "block"
"""The placement unless another is asked for."""
_FILE = "file:"


def choose_placement(
    spec: str, topology: Topology, gpus: int, *, on_nodes: Sequence[int] | None = None, seed: int = 0
) -> Placement:
    """The placement that `spec` names, on `gpus` GPUs of each of `on_nodes` (default: of all nodes, in order).

    `spec` is one of `PLACEMENTS`, ``random:SEED`` (instead of `seed`), or ``file:PATH`` or just the path: a file says
    nodes and GPUs itself. Raises ConfigError: an unknown name (with a suggestion), a mistake in a file
    (``file:line:column: ...``), nodes or GPUs that are not there, nodes given for a file.
    """
    path = is_places_file(spec)
    if path is not None:
        if on_nodes is not None:
            raise ConfigError(f"{path} says on which nodes the ranks are: leave --on-nodes away")
        return Placement(spec, read_places(path, topology))
    how, colon, number = spec.partition(":")
    if colon and how == "random":
        if not (number.isascii() and number.isdecimal()):
            raise ConfigError(f"{spec!r}: the seed must be a whole number, as in random:7")
        seed = int(number)
    elif colon or how not in PLACEMENTS:
        raise ConfigError(f"unknown placement {spec!r}{did_you_mean(how, (*PLACEMENTS, 'random:SEED', 'file:PATH'))}")
    nodes = range(topology.hosts) if on_nodes is None else on_nodes
    return Placement(spec, deal(topology, how, nodes, gpus, seed))


def is_places_file(spec: str) -> str | None:
    """The path, if `spec` names a file of places, which need not exist; else None."""
    if spec.startswith(_FILE):
        return spec.removeprefix(_FILE)
    named = spec.partition(":")[0] in PLACEMENTS
    return spec if not named and (os.sep in spec or "." in spec or os.path.isfile(spec)) else None


def parse_nodes(text: str) -> list[int]:
    """``0,3,5-7`` as ``[0, 3, 5, 6, 7]``, in the order given. Raises ConfigError for anything else."""
    nodes: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*n?(\d{1,6})(?:-n?(\d{1,6}))?\s*", part, re.ASCII)
        if match is None:
            raise ConfigError(f"--on-nodes {text!r}: {part.strip()!r} is no node; write numbers and ranges, as 0,3,5-7")
        first = int(match.group(1))
        last = int(match.group(2) or first)
        if last < first:
            raise ConfigError(
                f"--on-nodes {text!r}: {part.strip()!r} counts down: write {last}-{first} or single nodes"
            )
        nodes += range(first, last + 1)
    return nodes
