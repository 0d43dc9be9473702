"""NCCL_IB_HCA: which HCAs a job may use, and which rail each is on.

``[^][=]NAME[:PORT[:RAIL[:PLANE]]],...`` as NCCL 2.30 documents it: names are prefixes, with ``=`` whole names; ``^``
makes it a list of those not to use; an empty or missing port means any.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from fauxrdma.errors import ConfigError

__all__ = ["IB_HCA_VARIABLE", "HcaFilter", "parse_hca_filter"]

IB_HCA_VARIABLE = "NCCL_IB_HCA"
FORM = "[^][=]NAME[:PORT[:RAIL[:PLANE]]],... such as hca1,hca2 or =hca1:1 or ^hca9 or =hca1::0,hca2::1"
_PORT = 1
"""Every emulated HCA has one port."""


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    port: int | None
    rail: int | None
    plane: int | None

    def fits(self, device: str, exact: bool) -> bool:
        names = {device, _as_mellanox(device)}
        found = self.name in names if exact else any(name.startswith(self.name) for name in names)
        return found and self.port in (None, _PORT)


def _as_mellanox(device: str) -> str:
    """``mlx5_0`` for ``hca1``: what the HCAs of most clusters are called, from 0."""
    number = device.removeprefix("hca")
    return f"mlx5_{int(number) - 1}" if number.isdecimal() else device


@dataclass(frozen=True, slots=True)
class HcaFilter:
    """A parsed NCCL_IB_HCA; without entries it lets everything pass."""

    text: str = ""
    exclude: bool = False
    exact: bool = False
    entries: tuple[_Entry, ...] = ()

    def allows(self, device: str) -> bool:
        """Whether HCA `device` (``hca1``) may be used."""
        if not self.entries:
            return True
        return self._entry(device) is None if self.exclude else self._entry(device) is not None

    def rail(self, device: str) -> int | None:
        """The rail that the list gives `device`, if any."""
        entry = None if self.exclude else self._entry(device)
        return None if entry is None else entry.rail

    def choose(self, device: str, devices: Iterable[str]) -> str:
        """The HCA to use instead of `device`: itself if allowed, else one of the allowed `devices`: they are shared
        out in blocks, so that ranks spread over them.

        Raises ConfigError when none is left.
        """
        if self.allows(device):
            return device
        there = list(devices)
        allowed = [name for name in there if self.allows(name)]
        if not allowed:
            raise ConfigError(
                f"{IB_HCA_VARIABLE}={self.text!r} leaves no HCA to use: this node has {', '.join(there)} "
                f"(also known as {_as_mellanox(there[0])} and so on)"
            )
        return allowed[there.index(device) * len(allowed) // len(there) if device in there else 0]

    def _entry(self, device: str) -> _Entry | None:
        return next((entry for entry in self.entries if entry.fits(device, self.exact)), None)


def parse_hca_filter(text: str) -> HcaFilter:
    """The filter that `text` describes; an empty one lets everything pass. Raises ConfigError for a list of another
    form."""
    rest = text.strip()
    exclude, rest = rest.startswith("^"), rest.removeprefix("^")
    exact, rest = rest.startswith("="), rest.removeprefix("=")
    if not rest:
        if text.strip():
            raise ConfigError(f"{IB_HCA_VARIABLE}={text!r} names no HCA: it is {FORM}")
        return HcaFilter()
    return HcaFilter(text, exclude, exact, tuple(_entry(word.strip(), text) for word in rest.split(",")))


def _entry(word: str, text: str) -> _Entry:
    name, *numbers = word.split(":")
    if not name or len(numbers) > 3 or any(number and not re.fullmatch(r"-1|\d+", number) for number in numbers):
        raise ConfigError(f"{IB_HCA_VARIABLE}={text!r}: {word!r} is not NAME[:PORT[:RAIL[:PLANE]]]; the list is {FORM}")
    port, rail, plane = [*(int(number) if number and number != "-1" else None for number in numbers), *[None] * 3][:3]
    if port not in (None, _PORT):
        raise ConfigError(f"{IB_HCA_VARIABLE}={text!r}: {word!r} asks for port {port}; emulated HCAs have port {_PORT}")
    return _Entry(name, port, rail, plane)
