"""The options of a preset: ``key=value`` after its name, each a dataclass field that knows how to read its text."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import Any

from fauxrdma.errors import ConfigError
from fauxrdma.topology.routing_choice import ENGINE_NAMES, ROOTED_ENGINES, parse_routing
from fauxrdma.units import Rate, parse_length_m, parse_rate

__all__ = [
    "did_you_mean",
    "length",
    "on_off",
    "one_of",
    "one_word",
    "option",
    "parse_options",
    "rate_or_on_off",
    "ratio",
    "routing",
    "shown",
    "whole",
]

Parser = Callable[[str], Any]


def option(default: object, what: str, parse: Parser) -> Any:
    """A field of a preset: its default, what it is (one line for people), and what reads its text. The parser raises
    ConfigError with the rest of the sentence "'key' must be ..."."""
    return dataclasses.field(default=default, metadata={"what": what, "parse": parse})


def parse_options(form: type[Any], texts: Mapping[str, str]) -> dict[str, Any]:
    """Values for the fields of `form` that `texts` names; other keys are left alone. Raises ConfigError."""
    values = {}
    for field in dataclasses.fields(form):
        if field.name in texts:
            text = texts[field.name]
            try:
                values[field.name] = field.metadata["parse"](text)
            except ConfigError as error:
                raise ConfigError(f"{field.name!r} must be {error}, not {text!r}") from None
    return values


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """`: did you mean X? Known: ...`, or only what is known when nothing is close."""
    names = list(known)
    close = difflib.get_close_matches(given, names, n=1)
    return f": did you mean {close[0]!r}? Known: {', '.join(names)}" if close else f": known are {', '.join(names)}"


def whole(low: int, high: int, *, even: bool = False) -> Parser:
    """Whole numbers from `low` to `high`."""

    def parse(text: str) -> int:
        value = int(text) if text.isdecimal() and text.isascii() else low - 1
        if not low <= value <= high or (even and value % 2):
            raise ConfigError(f"{'an even' if even else 'a whole'} number from {low} to {high}")
        return value

    return parse


def one_of(*numbers: int) -> Parser:
    """One of a few whole numbers."""

    def parse(text: str) -> int:
        if text not in map(str, numbers):
            raise ConfigError(f"one of {', '.join(map(str, numbers))}")
        return int(text)

    return parse


def one_word(*words: str) -> Parser:
    """One of a few words."""

    def parse(text: str) -> str:
        if text not in words:
            raise ConfigError(f"one of {', '.join(words)}{_close(text, words)}")
        return text

    return parse


def routing(usual: str) -> Parser:
    """A routing engine, perhaps with roots (`parse_routing`), or the word `usual`."""
    word = one_word(usual, *ENGINE_NAMES)

    def parse(text: str) -> str:
        if ":" not in text:
            return str(word(text))
        try:
            parse_routing(text)
        except ConfigError:
            raise ConfigError(f"an engine, or {' or '.join(ROOTED_ENGINES)} with :roots=SWITCH+SWITCH...") from None
        return text

    return parse


def on_off(text: str) -> bool:
    """``on`` or ``off``."""
    if text not in ("on", "off"):
        raise ConfigError(f"on or off{_close(text, ('on', 'off'))}")
    return text == "on"


def rate_or_on_off(text: str) -> bool | Rate:
    """``on``, ``off`` or a rate with its unit."""
    if text in ("on", "off"):
        return text == "on"
    try:
        return parse_rate(text)
    except ConfigError:
        hint = _close(text, ("on", "off"))
        raise ConfigError(f"on, off or a rate with its unit such as 450GBps{hint}") from None


def length(text: str) -> float:
    """A length with its unit, in metres."""
    try:
        return parse_length_m(text)
    except ConfigError:
        raise ConfigError("a length with its unit such as 3m or 50cm") from None


def ratio(text: str) -> Fraction:
    """How many times more than one: ``2``, ``1.5`` or ``3:2``; not below 1."""
    over, _, under = text.partition(":")
    try:
        value = Fraction(over) / Fraction(under or 1)
    except (ValueError, ZeroDivisionError):
        value = Fraction(0)
    if not 1 <= value <= 100:
        raise ConfigError("a ratio from 1 to 100 such as 2, 1.5 or 3:2")
    return value


def shown(value: object) -> str:
    """A value as one would write it after the ``=``, near enough for a person."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}m"
    return str(value).replace(" ", "")


def _close(given: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(given, list(known), n=1)
    return f" (did you mean {close[0]}?)" if close else ""
