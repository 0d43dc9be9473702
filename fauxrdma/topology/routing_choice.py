"""What computes the routes of a fabric, as a user writes it: ``dfsssp``, or ``updn:roots=spine1,spine2``.

**Roots** are the switches at the top of the tree, for the engines that rank switches (OpenSM's ``--root_guid_file``).
Names may have wildcards (``spine*``); ``+`` separates them as ``,`` does, for presets, where a comma ends the option.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from fauxrdma.errors import ConfigError

__all__ = [
    "ENGINE_NAMES",
    "INFINIBAND",
    "IWARP",
    "ROCEV1",
    "ROCEV2",
    "ROOTED_ENGINES",
    "ROUTING_ENGINES",
    "RoutingChoice",
    "parse_routing",
]

INFINIBAND = "infiniband"
ROCEV2 = "rocev2"
ROCEV1 = "rocev1"
IWARP = "iwarp"
ROUTING_ENGINES = {
    INFINIBAND: ("minhop", "updn", "ftree", "dfsssp"),
    ROCEV2: ("ecmp", "spray", "adaptive"),
    ROCEV1: ("ecmp", "spray", "adaptive"),
    IWARP: ("ecmp", "adaptive"),
}
"""What may compute the routes of a fabric, by its transport. TCP takes segments that overtake each other for a loss,
so nobody sprays it."""

ENGINE_NAMES = tuple(dict.fromkeys(engine for engines in ROUTING_ENGINES.values() for engine in engines))
ROOTED_ENGINES = ("updn", "ftree")
"""The engines that may be told which switches are roots."""


@dataclass(frozen=True, slots=True)
class RoutingChoice:
    """An engine, and the names of its roots as they were written; none: the engine finds them."""

    engine: str
    roots: tuple[str, ...] = ()

    def roots_among(self, switches: Iterable[str]) -> list[str]:
        """Those of `switches` that are roots, in their order."""
        return [name for name in switches if any(fnmatchcase(name, root) for root in self.roots)]

    def check_roots(self, switches: Iterable[str]) -> None:
        """Raises ConfigError for a root that is none of `switches`."""
        names = list(switches)
        for root in self.roots:
            if not any(fnmatchcase(name, root) for name in names):
                close = difflib.get_close_matches(root, names, n=1)
                hint = f" (did you mean {close[0]}?)" if close else f": the switches are {_some(names)}"
                raise ConfigError(f"roots={root} of {self.engine}: there is no such switch{hint}")


def parse_routing(text: str) -> RoutingChoice:
    """The choice that `text` makes. Raises ConfigError for an unknown engine or option."""
    engine, colon, option = text.partition(":")
    if engine not in ENGINE_NAMES:
        close = difflib.get_close_matches(engine, ENGINE_NAMES, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise ConfigError(f"unknown routing engine {engine!r}: it is one of {', '.join(ENGINE_NAMES)}{hint}")
    if not colon:
        return RoutingChoice(engine)
    if engine not in ROOTED_ENGINES:
        raise ConfigError(f"routing {text!r}: {engine} has no options, only {' and '.join(ROOTED_ENGINES)} take roots")
    key, _, names = option.partition("=")
    roots = tuple(name.strip() for name in re.split("[,+]", names) if name.strip())
    if key != "roots" or not roots:
        raise ConfigError(
            f"routing {text!r}: write {engine}:roots=SWITCH,SWITCH,... as in {engine}:roots=spine1,spine2"
        )
    return RoutingChoice(engine, roots)


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
