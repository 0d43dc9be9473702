"""From what pydantic finds wrong with a fabric file to messages for the person who wrote it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any, TypeVar, get_args

from pydantic import ValidationError

from fauxrdma.topology.schema import Form
from fauxrdma.topology.yaml_document import YamlDocument
from fauxrdma.topology.yaml_scan import Loc, Problem

__all__ = ["did_you_mean", "parse_form"]

F = TypeVar("F", bound=Form)

_OTHER_WORDS = {
    "hcas": "gpus_per_hca and storage_hcas",
    "nics": "gpus_per_hca and storage_hcas",
    "nodes": "hosts",
    "servers": "hosts",
    "links": "cables",
    "edges": "cables",
    "connections": "cables",
    "num": "count",
    "number": "count",
    "speed": "rate",
    "bandwidth": "rate",
    "radix": "ports",
    "level": "tier",
    "layer": "tier",
    "source": "from",
    "src": "from",
    "a": "from",
    "target": "to",
    "dst": "to",
    "dest": "to",
    "b": "to",
    "distance": "length",
    "latency": "switch_latency",
    "title": "name",
    "comment": "description",
    # of labs
    "hosts": "nodes",
    "topology": "fabric",
    "network": "fabric",
    "preset": "fabric",
    "gpus_per_node": "gpus",
    "nproc": "gpus",
    "nproc_per_node": "gpus",
    "ranks": "gpus",
    "script": "command",
    "cmd": "command",
    "run": "command",
    "args": "command",
    "environment": "env",
    "limits": "resources",
    "engine": "driver",
    "threshold": "thresholds",
    "faults": "events",
    "hca": "profile",
}
"""What others call the keys; spelling alone would not find them."""


def did_you_mean(given: object, known: Iterable[str]) -> str:
    """` (did you mean X?)` when something known is close to what was given, else nothing."""
    close = _close(given, known)
    return f" (did you mean {close[0]}?)" if close else ""


def _close(given: object, known: Iterable[str]) -> list[str]:
    return difflib.get_close_matches(str(given), list(known), n=1)


def parse_form(document: YamlDocument, form: type[F]) -> F | list[Problem]:
    """The file's content as a `form`, or everything that is wrong with its form, in order of position."""
    try:
        return form.model_validate(document.data)
    except ValidationError as error:
        details = error.errors(include_url=False)
        # A misspelt key is both unknown and missing; the first says it all.
        meant = {
            (*detail["loc"][:-1], guess)
            for detail in details
            if detail["type"] == "extra_forbidden"
            for guess in _guesses(detail["loc"][-1], _keys(form, detail["loc"][:-1]))
        }
        found = {
            _problem(document, form, detail)
            for detail in details
            if detail["type"] != "missing" or tuple(detail["loc"]) not in meant
        }
        return sorted(found)


_ENTRIES: dict[int | str, str] = {
    "switches": "{ports: 40}",
    "cables": "{from: leaf1, to: spine1, rate: 200Gbps, length: 3m}",
    "events": "{at: 5ms, fault: link-down, link: n0.hca1}",
}

_KINDS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "list_type": "a list",
}


def _problem(document: YamlDocument, form: type[Form], detail: Any) -> Problem:
    loc: Loc = detail["loc"]
    kind: str = detail["type"]
    value = detail["input"]
    name = (f"entry {loc[-1] + 1}" if isinstance(loc[-1], int) else loc[-1]) if loc else "the file"
    if kind == "missing":
        return document.problem(loc[:-1], f"{name!r} is missing here: add {name}: {_example(form, loc)}")
    if kind == "extra_forbidden":
        known = _keys(form, loc[:-1])
        guess = _guesses(name, known)
        hint = f" (did you mean {guess[0]}?)" if guess else f" (known here: {', '.join(known)})"
        return document.problem(loc, f"unknown key {str(name)[:60]!r}{hint}", key=True)
    if loc and (kind == "invalid_key" or loc[-1] == "[key]"):
        keys = loc[:-1] if loc[-1] == "[key]" else loc
        shown = str(keys[-1])[:60]
        last: object = keys[-1]
        hint = "" if isinstance(last, (dict, tuple, list)) else f' (did you mean "{shown}"?)'
        return document.problem(keys, f"{shown!r} is not a name: names are text{hint}", key=True)
    # What is empty has no position of its own: show the key.
    message = _complaint(kind, name, value, detail.get("ctx", {}), _example(form, loc))
    return document.problem(loc, message, key=value is None)


def _complaint(kind: str, name: object, value: object, context: dict[str, Any], example: str) -> str:
    if kind == "value_error":
        return f"{name!r}: {context['error']}"
    shown = str(value)[:60]
    if value is None:
        return f"{name!r} must be {_KINDS.get(kind, 'given')}, not empty: write {name}: {example}"
    if kind in _KINDS:
        return f"{name!r} must be {_KINDS[kind]}, not {shown!r}{_conversion(kind, value, example)}"
    if kind == "greater_than_equal":
        return f"{name!r} must be at least {context['ge']}, not {shown}"
    if kind == "greater_than":
        return f"{name!r} must be more than {context['gt']:g}, not {shown}"
    if kind == "less_than_equal":
        return f"{name!r} must be at most {context['le']}, not {shown}"
    if kind == "literal_error":
        known = [word.strip("'") for word in re.split(r", | or ", context["expected"])]
        return f"{name!r} must be {' or '.join(known)}, not {shown!r}{did_you_mean(value, known)}"
    if kind in ("too_short", "string_too_short"):
        return f"{name!r} must not be empty: write {name}: {example}"
    return f"{name!r}: {kind.replace('_', ' ')}, {shown!r} does not fit"


def _conversion(kind: str, value: object, example: str) -> str:
    """What to write instead of a value of the wrong type."""
    if kind == "string_type" and not isinstance(value, (dict, list)):
        return f' (did you mean "{str(value)[:60]}"?)'
    if kind.startswith("int") and isinstance(value, str) and re.fullmatch(r"\s*\d{1,9}\s*", value):
        return f" in quotes (did you mean {value.strip()}?)"
    if kind.startswith("int") and isinstance(value, float) and value == value and abs(value) < 1e9:
        return f" (did you mean {round(value)}?)"
    return f": write it as {example}"


def _guesses(given: object, known: list[str]) -> list[str]:
    other = _OTHER_WORDS.get(str(given).lower(), "")
    return [other] if other.split(" and ")[0] in known else _close(given, known)


def _form_at(top: type[Form], loc: Loc) -> type[Form]:
    """The form that describes the mapping at a place in the file."""
    form = top
    for part in loc:
        field = next((field for name, field in form.model_fields.items() if part == (field.alias or name)), None)
        form = (_inner_form(field.annotation) if field is not None else None) or form
    return form


def _inner_form(annotation: Any) -> type[Form] | None:
    """The form in ``Form | None``, ``list[Form]`` or ``dict[str, Form]``."""
    if isinstance(annotation, type) and issubclass(annotation, Form):
        return annotation
    return next((found for inner in get_args(annotation) if (found := _inner_form(inner)) is not None), None)


def _keys(top: type[Form], loc: Loc) -> list[str]:
    """The keys that the form has at a place in the file."""
    return [field.alias or name for name, field in _form_at(top, loc).model_fields.items()]


def _example(top: type[Form], loc: Loc) -> str:
    """What one could write at a place in the file."""
    if len(loc) == 2 and loc[0] in _ENTRIES:
        return _ENTRIES[loc[0]]
    for name, field_info in _form_at(top, loc[:-1]).model_fields.items():
        if loc and loc[-1] == (field_info.alias or name):
            if field_info.examples:
                return str(field_info.examples[0])
            return str(field_info.default).lower()
    return "..."
