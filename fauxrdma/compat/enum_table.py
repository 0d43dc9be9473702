"""Enum classes from a table in text: a line for each, `name: MEMBER=1 MEMBER=0x2 ...`, continued lines indented."""

from __future__ import annotations

import re
from enum import KEEP, IntEnum, IntFlag
from typing import Any

__all__ = ["enum_classes"]

_MASKS = re.compile(r"(flags\d?|mask|caps|cap_bits|fields|op_size|_type_bits)$")
"""Of which bits are combined: their classes are IntFlag. What is in no enum in C stands under the name `-`."""


def enum_classes(table: str) -> tuple[dict[str, int], dict[str, Any]]:
    """(Every member by its name, every class by its name)."""
    members: dict[str, int] = {}
    classes: dict[str, Any] = {}
    for name, text in re.findall(r"^(\S+):((?:.|\n )+)", table, re.MULTILINE):
        values = {key: int(value, 0) for key, value in (item.split("=") for item in text.split())}
        if name == "-":
            members.update(values)
            continue
        classes[name] = IntFlag(name, values, boundary=KEEP) if _MASKS.search(name) else IntEnum(name, values)
        members.update(classes[name].__members__)
    return members, classes
