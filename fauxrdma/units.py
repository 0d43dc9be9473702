"""Quantities with their units: rates, lengths, times, sizes.

Bits and bytes are never confused: `Gb/s` (also written `Gbps`) and `GB/s` (also `GBps`) are eight apart, and a bare
number is refused. Decimal prefixes are powers of 1000, binary ones (KiB, MiB) powers of 1024.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from fauxrdma.errors import ConfigError

__all__ = [
    "LENGTH_PATTERN",
    "RATE_PATTERN",
    "SHARE_PATTERN",
    "SIZE_PATTERN",
    "TIME_PATTERN",
    "Rate",
    "format_bytes",
    "format_ns",
    "parse_byte_count",
    "parse_length_m",
    "parse_rate",
    "parse_share",
    "parse_size",
    "parse_time_ns",
]

_DECIMAL = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
RATE_PATTERN = r"^\s*([0-9]+(?:\.[0-9]+)?)\s*([kKMGT]?)(b|B)(?:ps|/s)\s*$"
LENGTH_PATTERN = r"^\s*([0-9]+(?:\.[0-9]+)?)\s*(cm|m|km)\s*$"
TIME_PATTERN = r"^\s*([0-9]+(?:\.[0-9]+)?)\s*(ns|us|ms|s)\s*$"
SHARE_PATTERN = r"^\s*([0-9]+(?:\.[0-9]+)?)\s*%\s*$"
SIZE_PATTERN = r"^\s*([0-9]+(?:\.[0-9]+)?)\s*(B|kB|KB|MB|GB|TB|KiB|MiB|GiB|TiB)\s*$"
_RATE, _LENGTH, _TIME, _SIZE = map(re.compile, (RATE_PATTERN, LENGTH_PATTERN, TIME_PATTERN, SIZE_PATTERN))
_MAX_RATE = 10**15
"""Bits per second: a thousand times any cable, and small enough for every integer that is derived from it."""
_MAX_LENGTH_M = 40_000_000
"""Once around the Earth."""
_MAX_TIME_NS = 10**13
_MAX_SIZE_B = 10**15
_TIME_NS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
_LENGTH_M = {"cm": 0.01, "m": 1.0, "km": 1000.0}
_SIZE_B = {
    "B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip


@dataclass(frozen=True, slots=True, order=True)
class Rate:
    """A data rate, kept as whole bits per second so that equal rates compare equal."""

    bits_per_s: int

    @classmethod
    def gbps(cls, gigabits: float) -> Rate:
        """A rate given in gigabits per second (Gb/s)."""
        return cls(round(gigabits * 1e9))

    @property
    def bytes_per_ns(self) -> float:
        """The same rate in bytes per nanosecond, which is GB/s."""
        return self.bits_per_s / 8e9

    @property
    def in_gbps(self) -> float:
        """The same rate in Gb/s."""
        return self.bits_per_s / 1e9

    def transfer_ns(self, nbytes: int) -> int:
        """Nanoseconds to serialise `nbytes` at this rate, rounded up."""
        return -(-nbytes * 8 * 10**9 // self.bits_per_s)

    def __str__(self) -> str:
        return f"{self.in_gbps:g} Gb/s"


def parse_rate(text: object) -> Rate:
    """Read a rate such as `200Gbps`, `200 Gb/s` or `25GB/s`. Raises ConfigError for a bare number or unknown unit."""
    match = _RATE.match(text) if isinstance(text, str) else None
    if match is None:
        raise ConfigError(
            f"{text!r} is not a rate: write the unit, as 200Gbps (gigabits) or 25GBps (gigabytes per second)"
        )
    number, prefix, unit = match.groups()
    bits = float(number) * _DECIMAL[prefix] * (8 if unit == "B" else 1)
    if bits < 1:
        raise ConfigError(f"{text!r} is not a usable rate: it must be more than zero")
    _at_most(bits, _MAX_RATE, text, "rate", "1000Tbps")
    return Rate(round(bits))


def parse_length_m(text: object) -> float:
    """Read a cable length such as `3m` or `50cm`, in metres. Raises ConfigError for a bare number."""
    match = _LENGTH.match(text) if isinstance(text, str) else None
    if match is None:
        raise ConfigError(f"{text!r} is not a length: write the unit, as 3m, 50cm or 2km")
    metres = float(match.group(1)) * _LENGTH_M[match.group(2)]
    _at_most(metres, _MAX_LENGTH_M, text, "length", "40000km")
    return metres


def parse_time_ns(text: object) -> int:
    """Read a time such as `130ns` or `1.5us`, in whole nanoseconds. Raises ConfigError for a bare number."""
    match = _TIME.match(text) if isinstance(text, str) else None
    if match is None:
        raise ConfigError(f"{text!r} is not a time: write the unit, as 130ns, 1.5us, 2ms or 1s")
    ns = float(match.group(1)) * _TIME_NS[match.group(2)]
    _at_most(ns, _MAX_TIME_NS, text, "time", "10000s")
    return round(ns)


def parse_share(text: object) -> float:
    """Read a share such as `0.5%`, as a part of one. Raises ConfigError for a bare number and over 100 %."""
    match = re.match(SHARE_PATTERN, text) if isinstance(text, str) else None
    if match is None:
        raise ConfigError(f"{text!r} is not a share: write it in percent, as 0.5%")
    share = float(match.group(1)) / 100
    if share > 1:
        raise ConfigError(f"{text!r} is more than all: at most 100%")
    return share


def parse_size(text: object) -> int:
    """Read a size such as `4096B`, `16MiB` or `1GB`, in bytes. Raises ConfigError for a bare number."""
    match = _SIZE.match(text) if isinstance(text, str) else None
    if match is None:
        raise ConfigError(f"{text!r} is not a size: write the unit, as 4096B, 64KiB, 16MiB or 1GB")
    nbytes = float(match.group(1)) * _SIZE_B[match.group(2)]
    _at_most(nbytes, _MAX_SIZE_B, text, "size", "1000TB")
    return round(nbytes)


def parse_byte_count(text: str) -> int:
    """Read a message size the way nccl-tests and perftest write it: `8`, `64K`, `128M`, `1G`, powers of 1024; or with a
    unit, as `parse_size`. Raises ConfigError for anything else."""
    match = re.match(r"^\s*([0-9]+)\s*([kKmMgG]?)\s*$", text)
    if match is None:
        return parse_size(text)
    number, prefix = match.groups()
    nbytes = int(number) << 10 * " KMG".index(prefix.upper() or " ")
    _at_most(nbytes, _MAX_SIZE_B, text, "size", "1000TB")
    return nbytes


def _at_most(value: float, limit: float, text: object, what: str, shown: str) -> None:
    if value > limit:
        raise ConfigError(f"{str(text)[:40]!r} is not a usable {what}: it must be at most {shown}")


def format_ns(ns: float) -> str:
    """A time for a person: `950 ns`, `12.3 us`, `4.56 ms`, `1.20 s`."""
    for limit, divisor, unit in ((1e3, 1, "ns"), (1e6, 1e3, "us"), (1e9, 1e6, "ms")):
        if abs(ns) < limit:
            value = ns / divisor
            return f"{value:.0f} ns" if unit == "ns" else f"{value:.3g} {unit}"
    return f"{ns / 1e9:.3g} s"


def format_bytes(nbytes: float) -> str:
    """A size for a person, in binary prefixes: `64 B`, `16.0 KiB`, `1.50 MiB`."""
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" or abs(value) >= 100 else f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} TiB"
