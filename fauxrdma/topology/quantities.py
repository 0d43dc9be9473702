"""Quantities as pydantic fields: text with a unit in the file, a number in the form, and a guess at what was meant.
And texts that have a form of their own: the routing engine, the cost of computing.

The JSON schema of each is a string with the pattern that `fauxrdma.units` reads, so editors refuse bare numbers too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, WithJsonSchema

from fauxrdma.errors import ConfigError
from fauxrdma.topology.computing import parse_compute
from fauxrdma.topology.routing_choice import ENGINE_NAMES, ROOTED_ENGINES, parse_routing
from fauxrdma.units import (
    LENGTH_PATTERN,
    RATE_PATTERN,
    SHARE_PATTERN,
    SIZE_PATTERN,
    TIME_PATTERN,
    Rate,
    parse_length_m,
    parse_rate,
    parse_share,
    parse_size,
    parse_time_ns,
)

__all__ = [
    "MTUS",
    "ComputeField",
    "LengthField",
    "MtuField",
    "RateField",
    "RoutingField",
    "ShareField",
    "SizeField",
    "TimeField",
]

T = TypeVar("T")

MTUS = (256, 512, 1024, 2048, 4096)
"""Payload bytes of a full packet that InfiniBand knows (IBTA vol. 1, 9.2.8; enum ibv_mtu)."""

_GENERATIONS = {"sdr": 10, "ddr": 20, "qdr": 40, "fdr": 56, "edr": 100, "hdr": 200, "ndr": 400, "xdr": 800}
"""Gb/s of a 4x port."""
_NUMBER = re.compile(r"^\s*([-+]?)([0-9]+(?:[.,][0-9]+)?)\s*(.*?)\s*$")


def _with_unit(parse: Callable[[object], T], suggest: Callable[[str, str], str]) -> BeforeValidator:
    """A validator for a quantity that adds a guess at what was meant: `suggest(number, rest of the text)`."""

    def check(value: object) -> T:
        try:
            return parse(value)
        except ConfigError as error:
            raise ValueError(_explained(str(error), value, parse, suggest)) from None

    return BeforeValidator(check)


def _explained(error: str, value: object, parse: Callable[[object], Any], suggest: Callable[[str, str], str]) -> str:
    if value is None:
        return "it is empty: write a number and its unit"
    if isinstance(value, bool):
        return error
    text = str(value)[:60]
    generation = _GENERATIONS.get(text.strip().lower())
    match = _NUMBER.match(text)
    if generation is not None:
        guess = f"{generation}Gbps"
    elif match is not None:
        sign, number, rest = match.groups()
        if sign == "-":
            return f"{text!r} is negative, and nothing here is less than zero (did you mean {number}{rest}?)"
        guess = suggest(number.replace(",", "."), rest)
    else:
        return error
    try:
        parse(guess)
    except ConfigError:
        return error
    return f"{error} (did you mean {guess}?)"


def _rate_guess(number: str, rest: str) -> str:
    prefix = next((p for p in "TGMk" if rest.lower().startswith(p.lower())), "G")
    return f"{number}{prefix}{'Bps' if 'B' in rest else 'bps'}"


def _length_guess(number: str, rest: str) -> str:
    return f"{number}{next((unit for unit in ('cm', 'km') if rest.lower().startswith(unit[0])), 'm')}"


def _time_guess(number: str, rest: str) -> str:
    # Both letters that people write for micro: the sign (U+00B5) and the Greek letter (U+03BC).
    if rest.startswith(("\u00b5", "\u03bc")):
        return f"{number}us"
    return f"{number}{next((unit for unit in ('us', 'ms', 's') if rest.lower().startswith(unit[0])), 'ns')}"


def _size_guess(number: str, rest: str) -> str:
    prefix = rest[:1].upper()
    return f"{number}{prefix + 'iB' if prefix in 'KMG' and prefix else 'B'}"


def _share_guess(number: str, rest: str) -> str:
    return f"{number}%" if rest or float(number) >= 1 else f"{float(number) * 100:g}%"


def _is_mtu(value: object) -> int:
    size = parse_size(value)
    if size not in MTUS:
        near = min(MTUS, key=lambda mtu: abs(mtu - size))
        raise ConfigError(
            f"an MTU of {size} bytes does not exist: it is one of {', '.join(f'{m}B' for m in MTUS)} "
            f"(did you mean {near}B?)"
        )
    return size


def _text(pattern: str, *examples: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": pattern, "examples": list(examples)})


RateField = Annotated[Rate, _with_unit(parse_rate, _rate_guess), _text(RATE_PATTERN, "200Gbps", "25GBps")]
LengthField = Annotated[float, _with_unit(parse_length_m, _length_guess), _text(LENGTH_PATTERN, "3m", "50cm", "2km")]
"""In metres."""
TimeField = Annotated[int, _with_unit(parse_time_ns, _time_guess), _text(TIME_PATTERN, "130ns", "1.5us")]
"""In nanoseconds."""
SizeField = Annotated[int, _with_unit(parse_size, _size_guess), _text(SIZE_PATTERN, "2GiB", "512MiB")]
"""In bytes."""
ShareField = Annotated[float, _with_unit(parse_share, _share_guess), _text(SHARE_PATTERN, "0.5%", "100%")]
"""A part of one."""
MtuField = Annotated[
    int,
    _with_unit(_is_mtu, _size_guess),
    _text(r"^\s*((256|512|1024|2048|4096)\s*B|[124]\s*KiB)\s*$", *(f"{mtu}B" for mtu in MTUS)),
]
"""In bytes."""


def _is_routing(value: object) -> object:
    if isinstance(value, str):
        try:
            parse_routing(value)
        except ConfigError as error:
            raise ValueError(str(error)) from None
    return value  # what is no text is refused as such


RoutingField = Annotated[
    str,
    BeforeValidator(_is_routing),
    _text(f"^({'|'.join(ENGINE_NAMES)})$|^({'|'.join(ROOTED_ENGINES)}):roots=.+$", "ftree", "updn:roots=spine1,spine2"),
]
"""As `parse_routing` reads it."""


def _is_compute(value: object) -> object:
    if isinstance(value, str):
        try:
            parse_compute(value)
        except ConfigError as error:
            raise ValueError(str(error)) from None
    return value  # what is no text is refused as such


ComputeField = Annotated[
    str, BeforeValidator(_is_compute), _text(r"^\s*\S+(\s+\S+)*\s*$", "20us", "cpu*0.002", "20us 3=1ms 5-7=none")
]
"""As `parse_compute` reads it."""
