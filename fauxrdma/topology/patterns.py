"""Names by pattern in a fabric file: `leaf{1..8}`, `n*.hca{1..8}`, `spine*`.

- `{1..8}` counts, `{1..7..2}` counts in steps, `{1,4,6}` and `{a,b}` list; leading zeros are kept in names of switches
  (`leaf{01..16}`), as in the shell.
- `*` is every one there is: every host, every HCA, every switch whose name fits.

The two ends of a cable meet like this: where both hold a range, the *last* range of each goes **in step** (the first
value with the first, the second with the second, ...). Everything else is **each with each**.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

__all__ = ["End", "PatternError", "expand_name", "hca_end", "is_hca_pattern", "pairs", "switch_end"]

MAX_RANGE = 4096
"""Values of one range; no fabric counts further."""

_PART = r"(\d{1,6}|\*|\{[^{}]*\})"
_HCA = re.compile(rf"^n{_PART}\.hca{_PART}$")
_RANGE = re.compile(r"\{([^{}]*)\}")
_COUNT = re.compile(r"^(\d{1,6})\.\.(\d{1,6})(?:\.\.(\d{1,6}))?$")
_LIST = re.compile(r"^(\d{1,6}|[A-Za-z0-9_-]{1,40}(,[A-Za-z0-9_-]{1,40})+)$")
_SLIP = re.compile(r"[{\[(]\s*(\d+)\s*(?:-|:|\.{1,3}|–|to|,\s*\.+,?)\s*(\d+)\s*[}\])]")


class PatternError(ValueError):
    """A range that cannot be read; the message says how one is written."""


@dataclass(frozen=True, slots=True)
class End:
    """The nodes at one end of a cable. `steps` holds, for each value of the range that goes in step, the names that
    have it; without a range there is one step with all the names."""

    steps: tuple[tuple[str, ...], ...]
    in_step: bool

    @property
    def names(self) -> Iterator[str]:
        """All names, in order."""
        return (name for step in self.steps for name in step)


def is_hca_pattern(text: str) -> bool:
    """Whether `text` names HCAs (`n0.hca1`, `n*.hca{1..8}`) and not switches."""
    return _HCA.match(text) is not None


def slip_in_range(text: str) -> str | None:
    """`text` with ranges written right, where it holds something that looks like one (`[1-8]`, `{1-8}`, `{1:8}`)."""
    fixed = _SLIP.sub(r"{\1..\2}", text)
    return fixed if fixed != text else None


def values(inside: str) -> list[str]:
    """What a range `{inside}` counts or lists. Raises PatternError."""
    if _LIST.match(inside):
        found = inside.split(",")
        if len(set(found)) < len(found):
            raise PatternError(f"{{{inside}}} names something twice")
        return found
    match = _COUNT.match(inside)
    if match is None:
        slip = slip_in_range(f"{{{inside}}}")
        hint = f" (did you mean {slip}?)" if slip else ""
        raise PatternError(f"{{{inside}}} is not a range: write {{1..8}}, {{1..7..2}} or {{1,4,6}}{hint}")
    first, last, step = int(match[1]), int(match[2]), int(match[3] or 1)
    if first > last:
        raise PatternError(f"{{{inside}}} counts backwards: write {{{match[2]}..{match[1]}}}")
    if step == 0:
        raise PatternError(f"{{{inside}}} never ends: its step must be at least 1")
    if (last - first) // step >= MAX_RANGE:
        raise PatternError(f"{{{inside}}} has more than {MAX_RANGE} values, which no fabric has")
    width = len(match[1]) if match[1].startswith("0") else 0
    return [str(value).zfill(width) for value in range(first, last + 1, step)]


def expand_name(text: str) -> list[str]:
    """Every name that `leaf{1..8}` or `pod{1..2}-leaf{1..4}` stands for. Raises PatternError for a bad range, and for
    more names than a fabric has."""
    return list(switch_end(text, ()).names)


def hca_end(text: str, hosts: Sequence[int], hcas: int) -> End:
    """The HCAs that `n*.hca{1..8}` names: `*` is each of `hosts`, or HCA 1 to `hcas`. Raises PatternError for a bad
    range; what does not exist is the caller's affair."""
    match = _HCA.match(text)
    if match is None:
        raise PatternError(f"{text!r} is not a pattern of HCAs")
    host_values, hca_values = (
        _numbers(part, every) for part, every in zip(match.groups(), (hosts, range(1, hcas + 1)), strict=True)
    )
    if match[2].startswith("{"):
        return End(tuple(tuple(f"n{host}.hca{hca}" for host in host_values) for hca in hca_values), True)
    by_host = tuple(tuple(f"n{host}.hca{hca}" for hca in hca_values) for host in host_values)
    if match[1].startswith("{"):
        return End(by_host, True)
    return End((tuple(name for step in by_host for name in step),), False)


def switch_end(text: str, known: Iterable[str]) -> End:
    """The switches that `leaf{1..8}`, `spine*` or `leaf1` names; `*` chooses among `known`. Raises PatternError."""
    pieces = _RANGE.split(text)  # text, range, text, range, ..., text
    ranges = [values(inside) for inside in pieces[1::2]]
    if any(character in piece for piece in pieces[::2] for character in "{}"):
        raise PatternError(f"{text!r} has a brace without its partner: a range is written {{1..8}}")
    total = 1
    for found in ranges:
        total *= len(found)
    if total > MAX_RANGE:
        raise PatternError(f"{text!r} stands for {total} names, more than the {MAX_RANGE} that a fabric may have")
    if not ranges:
        return End((tuple(_matching(text, known)),), False)
    steps = []
    for last in ranges[-1]:
        written = (_filled(pieces, (*outer, last)) for outer in product(*ranges[:-1]))
        steps.append(tuple(name for each in written for name in _matching(each, known)))
    return End(tuple(steps), True)


def pairs(source: End, target: End, *, mesh: bool) -> Iterator[tuple[str, str]]:
    """Which name of one end is cabled to which of the other. With `mesh`, ranges do not go in step. Raises PatternError
    when two ranges that go in step differ in length."""
    if source.in_step and target.in_step and not mesh:
        if len(source.steps) != len(target.steps):
            raise PatternError(
                f"ranges on both ends go in step, but one has {len(source.steps)} values and the other "
                f"{len(target.steps)}: make them equally long, or add 'join: mesh' for each with each"
            )
        for ours, theirs in zip(source.steps, target.steps, strict=True):
            yield from product(ours, theirs)
        return
    yield from product(source.names, list(target.names))


def _numbers(part: str, every: Sequence[int]) -> Sequence[int]:
    if part == "*":
        return every
    found = values(part[1:-1]) if part.startswith("{") else [part]
    wrong = next((value for value in found if not value.isdecimal()), None)
    if wrong is not None:
        raise PatternError(f"{part} holds {wrong!r}: hosts and HCAs are numbered, as in {{1,4,6}}")
    return [int(value) for value in found]


def _filled(pieces: Sequence[str], chosen: Sequence[str]) -> str:
    return "".join(piece if at % 2 == 0 else chosen[at // 2] for at, piece in enumerate(pieces))


def _matching(text: str, known: Iterable[str]) -> list[str]:
    if "*" not in text:
        return [text]
    wanted = re.compile(".*".join(re.escape(piece) for piece in text.split("*")))
    return [name for name in known if wanted.fullmatch(name)]
