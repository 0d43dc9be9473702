"""What users choose by words, as nccl-tests' options have them. Every function raises ConfigError for what there is
not, with what there is."""

from __future__ import annotations

from fauxrdma.errors import ConfigError
from fauxrdma.perf.coll.element_types import ELEMENT_TYPES, REDUCTIONS, ElementType
from fauxrdma.perf.coll.operations import OPERATIONS, Operation
from fauxrdma.units import parse_byte_count

__all__ = ["choose_operation", "choose_reductions", "choose_roots", "choose_sizes", "choose_types"]

ALL = "all"
"""What ``-d``, ``-o`` and ``-r`` take for every value there is."""

_MOST_SIZES = 4096
_OTHER_NAMES = {"float16": "half", "float32": "float", "float64": "double", "product": "prod"}


def choose_operation(text: str) -> Operation:
    """By name; nccl-tests' spellings (alltoall, all_reduce_perf) are understood. Raises ConfigError."""
    wanted = text.lower().removesuffix("_perf").replace("-", "").replace("_", "")
    for one in OPERATIONS.values():
        if one.name.replace("_", "") == wanted:
            return one
    raise ConfigError(f"there is no operation {text!r} to measure: choose {', '.join(OPERATIONS)}")


def choose_types(text: str) -> list[ElementType]:
    """The types that ``-d`` asks for: one by name (numpy's names are understood), or all. Raises ConfigError."""
    if text == ALL:
        return list(ELEMENT_TYPES.values())
    name = _OTHER_NAMES.get(text, text)
    if name not in ELEMENT_TYPES:
        raise ConfigError(f"-d {text}: there is no such type; choose {', '.join(ELEMENT_TYPES)} or all")
    return [ELEMENT_TYPES[name]]


def choose_reductions(text: str, types: list[ElementType]) -> list[str]:
    """The reductions that ``-o`` asks for: one by name, or all. Raises ConfigError for one there is not, or that none
    of `types` has."""
    if text == ALL:
        return list(REDUCTIONS)
    name = _OTHER_NAMES.get(text, text)
    if name not in REDUCTIONS:
        raise ConfigError(f"-o {text}: there is no such reduction; choose {', '.join(REDUCTIONS)} or all")
    if not any(name in one.reductions for one in types):
        only = types[0]
        raise ConfigError(f"-o {text}: {only.name} has no {name}; it has {', '.join(only.reductions)}")
    return [name]


def choose_sizes(first: str, last: str, step: str | None, factor: int | None) -> list[int]:
    """The sizes from `first` to `last`, in bytes, multiplied by `factor` or `step` bytes apart (by default 1M). Raises
    ConfigError for a range that is none."""
    start, end = parse_byte_count(first), parse_byte_count(last)
    if end < start:
        raise ConfigError(f"-e {last} is below -b {first}: sizes go from -b up to -e; raise -e or lower -b")
    if factor is not None and step is not None:
        raise ConfigError(f"-f {factor} and -i {step} are two ways to go from size to size: give one of them")
    if factor is not None:
        if factor < 2:
            raise ConfigError(f"-f {factor} never gets from one size to the next: use -f 2, or a step in bytes with -i")
        if start < 1:
            raise ConfigError(f"-b {first} times -f {factor} stays where it is: begin with -b 8, or use a step with -i")
    increment = parse_byte_count(step if step is not None else "1M")
    if factor is None and increment < 1:
        raise ConfigError(f"-i {step} never gets from one size to the next: give a number of bytes, as -i 1M")
    sizes = []
    while start <= end:
        sizes.append(start)
        start = start * factor if factor is not None else start + increment
        if len(sizes) > _MOST_SIZES:
            raise ConfigError(f"more than {_MOST_SIZES} sizes from {first} to {last}: raise -i, or use -f 2")
    return sizes


def choose_roots(text: str, operation: Operation, world_size: int) -> list[int]:
    """The roots that ``-r`` asks for: a rank, or all. Raises ConfigError for what is no rank."""
    if not operation.rooted:
        return [-1]
    if text == ALL:
        return list(range(world_size))
    if not text.isdecimal() or int(text) >= world_size:
        raise ConfigError(f"-r {text}: the root is one of ranks 0..{world_size - 1}, or all")
    return [int(text)]
