"""The form of a fabric file: which keys there are, what they hold, and messages for what does not fit.

Only what can be said of one value by itself is checked here; what concerns several (ports, references) is in
`fauxrdma.topology.custom`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from fauxrdma.errors import ConfigError
from fauxrdma.topology.building import DEFAULT_MTU, DEFAULT_SWITCH_LATENCY_NS
from fauxrdma.topology.graph import CUT_THROUGH
from fauxrdma.topology.host_shape import PCIE_GEN4_X16
from fauxrdma.topology.yaml_document import Loc, Problem, YamlDocument
from fauxrdma.units import Rate, parse_length_m, parse_rate, parse_size, parse_time_ns

__all__ = ["CableForm", "FabricForm", "HostsForm", "SwitchForm", "did_you_mean", "parse_form"]

T = TypeVar("T")

MTUS = (256, 512, 1024, 2048, 4096)


def did_you_mean(given: object, known: Iterable[str]) -> str:
    """` (did you mean X?)` when something known is close to what was given, else nothing."""
    close = _close(given, known)
    return f" (did you mean {close[0]}?)" if close else ""


def _close(given: object, known: Iterable[str]) -> list[str]:
    return difflib.get_close_matches(str(given), list(known), n=1)


def _with_unit(parse: Callable[[object], T], suggest: Callable[[str, str], str]) -> BeforeValidator:
    """A validator for a quantity that adds a guess at what was meant: `suggest(number, rest of the text)`."""

    def check(value: object) -> T:
        try:
            return parse(value)
        except ConfigError as error:
            match = re.match(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*(.*?)\s*$", str(value))
            hint = ""
            if match is not None and not isinstance(value, bool):
                guess = suggest(*match.groups())
                try:
                    parse(guess)
                except ConfigError:
                    pass
                else:
                    hint = f" (did you mean {guess}?)"
            raise ValueError(f"{error}{hint}") from None

    return BeforeValidator(check)


def _rate_guess(number: str, rest: str) -> str:
    prefix = next((p for p in "TGMk" if rest.lower().startswith(p.lower())), "G")
    return f"{number}{prefix}{'Bps' if 'B' in rest else 'bps'}"


def _length_guess(number: str, rest: str) -> str:
    return f"{number}{next((unit for unit in ('cm', 'km') if rest.lower().startswith(unit[0])), 'm')}"


def _time_guess(number: str, rest: str) -> str:
    return f"{number}{next((unit for unit in ('us', 'ms', 's') if rest.lower().startswith(unit[0])), 'ns')}"


def _size_guess(number: str, rest: str) -> str:
    prefix = rest[:1].upper()
    return f"{number}{prefix + 'iB' if prefix in 'KMG' and prefix else 'B'}"


def _is_mtu(value: object) -> int:
    size = parse_size(value)
    if size not in MTUS:
        raise ConfigError(f"an MTU of {size} bytes does not exist: it is one of {', '.join(f'{m}B' for m in MTUS)}")
    return size


_RateField = Annotated[Rate, _with_unit(parse_rate, _rate_guess)]
_LengthField = Annotated[float, _with_unit(parse_length_m, _length_guess)]
_TimeField = Annotated[int, _with_unit(parse_time_ns, _time_guess)]
_MtuField = Annotated[int, _with_unit(_is_mtu, _size_guess)]


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, arbitrary_types_allowed=True)


class HostsForm(_Form):
    """`hosts`: how many there are and what is inside each."""

    count: int = Field(ge=1, le=4096)
    gpus: int = Field(default=8, ge=1, le=64)
    hcas: int | None = Field(default=None, ge=1, le=64)
    gpus_per_pcie_switch: int = Field(default=2, ge=1, le=64)
    pcie_rate: _RateField = PCIE_GEN4_X16


class SwitchForm(_Form):
    """One entry of `switches`."""

    ports: int = Field(ge=2, le=4096)
    tier: Literal["leaf", "spine", "core"] = "leaf"


class CableForm(_Form):
    """One entry of `cables`: between `from` and `to`, `count` times in parallel."""

    source: str = Field(alias="from")
    target: str = Field(alias="to")
    rate: _RateField
    length: _LengthField
    count: int = Field(default=1, ge=1, le=4096)


class FabricForm(_Form):
    """The whole file."""

    name: str = Field(min_length=1)
    description: str = ""
    mtu: _MtuField = DEFAULT_MTU
    switching: Literal["cut-through", "store-and-forward"] = CUT_THROUGH  # type: ignore[assignment]
    switch_latency: _TimeField = DEFAULT_SWITCH_LATENCY_NS
    hosts: HostsForm
    switches: dict[str, SwitchForm] = Field(min_length=1)
    cables: list[CableForm] = Field(min_length=1)


def parse_form(document: YamlDocument) -> FabricForm | list[Problem]:
    """The file's content, or everything that is wrong with its form, in order of position."""
    try:
        return FabricForm.model_validate(document.data)
    except ValidationError as error:
        details = error.errors(include_url=False)
        # A misspelt key is both unknown and missing; the first says it all.
        meant = {
            (*detail["loc"][:-1], guess)
            for detail in details
            if detail["type"] == "extra_forbidden"
            for guess in _close(detail["loc"][-1], _keys(detail["loc"][:-1]))
        }
        found = {
            _problem(document, detail)
            for detail in details
            if detail["type"] != "missing" or tuple(detail["loc"]) not in meant
        }
        return sorted(found)


_KINDS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "string_type": "text",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "list_type": "a list",
}


def _problem(document: YamlDocument, detail: Any) -> Problem:
    loc: Loc = detail["loc"]
    kind: str = detail["type"]
    value = detail["input"]
    name = loc[-1] if loc else "the file"
    if kind == "missing":
        return document.problem(loc[:-1], f"{name!r} is missing here")
    if kind == "extra_forbidden":
        known = _keys(loc[:-1])
        hint = did_you_mean(name, known) or f" (known here: {', '.join(known)})"
        return document.problem(loc, f"unknown key {name!r}{hint}", key=True)
    if loc and (kind == "invalid_key" or loc[-1] == "[key]"):
        keys = loc[:-1] if loc[-1] == "[key]" else loc
        return document.problem(keys, f"{keys[-1]!r} is not a name: names are text", key=True)
    # What is empty has no position of its own: show the key.
    return document.problem(loc, _complaint(kind, name, value, detail.get("ctx", {})), key=value is None)


def _complaint(kind: str, name: object, value: object, context: dict[str, Any]) -> str:
    if kind == "value_error":
        return f"{name!r}: {context['error']}"
    if kind in _KINDS:
        shown = "empty" if value is None else f"{str(value)[:60]!r}"
        return f"{name!r} must be {_KINDS[kind]}, not {shown}"
    if kind == "greater_than_equal":
        return f"{name!r} must be at least {context['ge']}, not {value}"
    if kind == "less_than_equal":
        return f"{name!r} must be at most {context['le']}, not {value}"
    if kind == "literal_error":
        known = [word.strip("'") for word in re.split(r", | or ", context["expected"])]
        return f"{name!r} must be {' or '.join(known)}, not {value!r}{did_you_mean(value, known)}"
    if kind in ("too_short", "string_too_short"):
        return f"{name!r} must not be empty"
    return f"{name!r}: {kind.replace('_', ' ')}, {str(value)[:60]!r} does not fit"


def _keys(loc: Loc) -> list[str]:
    """The keys that the form has at a place in the file."""
    form: type[_Form] = FabricForm
    if loc and loc[0] == "hosts":
        form = HostsForm
    elif loc and loc[0] == "switches":
        form = SwitchForm
    elif loc and loc[0] == "cables":
        form = CableForm
    return [field.alias or name for name, field in form.model_fields.items()]
