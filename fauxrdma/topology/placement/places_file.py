"""Places from a file: one line per rank, in rank order, ``node gpu [hca]``.

::

    # rank 0 comes first; a rank without an HCA uses the one of its GPU
    0 0
    n1 gpu0 hca1
    1.7

Numbers may stand alone or with the names that drawings use; ``#`` begins a comment.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

from fauxrdma.errors import ConfigError
from fauxrdma.topology.graph import Topology
from fauxrdma.topology.rank_places import RankPlace
from fauxrdma.topology.yaml_scan import Problem

__all__ = ["places_text", "read_places", "read_places_text"]

MAX_FILE_BYTES = 1 << 20
_WORD = re.compile(r"[^\s.,]+")
_KINDS = ("n", "gpu", "hca")
_WHAT = ("node", "GPU", "HCA")


@dataclass(frozen=True, slots=True)
class _Word:
    text: str
    column: int


class _Mistake(Exception):
    def __init__(self, column: int, message: str) -> None:
        super().__init__(message)
        self.column = column


def read_places(path: str, topology: Topology) -> tuple[RankPlace, ...]:
    """The places in a file. Raises ConfigError for a file that cannot be read, and with ``file:line:column:`` for the
    first mistake in it (and how many more there are)."""
    try:
        if Path(path).stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(f"{path}: larger than {MAX_FILE_BYTES} bytes: a file of places has one short line a rank")
        text = Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not a text file in UTF-8: save it as UTF-8") from None
    except ValueError as error:  # a null byte in the name
        raise ConfigError(f"{path!r}: cannot be read: {error}") from None
    return read_places_text(path, text, topology)


def read_places_text(path: str, text: str, topology: Topology) -> tuple[RankPlace, ...]:
    """The places in `text`, which is what the file `path` holds. Raises as `read_places`."""
    places: list[RankPlace] = []
    taken: dict[tuple[int, int], int] = {}
    problems: list[Problem] = []
    for number, line in enumerate(text.split("\n"), start=1):
        words = [_Word(found.group(), found.start() + 1) for found in _WORD.finditer(line.partition("#")[0])]
        if not words:
            continue
        try:
            place = _place(topology, words)
            earlier = taken.setdefault((place.node, place.gpu), number)
            if earlier != number:
                raise _Mistake(words[0].column, _taken(topology, place, earlier, set(taken)))
            places.append(place)
        except _Mistake as mistake:
            problems.append(Problem(number, mistake.column, str(mistake)))
    if not problems and not places:
        problems.append(Problem(1, 1, "no rank has a place: write one line `node gpu [hca]` for each, as `0 0`"))
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise ConfigError(problems[0].at(path) + more)
    return tuple(places)


def places_text(places: tuple[RankPlace, ...]) -> str:
    """A file of places from which `read_places` reads `places`."""
    rows = [f"{place.node:>4} {place.gpu:>3} {place.hca:>3}  # rank {rank}" for rank, place in enumerate(places)]
    return "\n".join(["#  node gpu hca", *rows]) + "\n"


def _place(topology: Topology, words: list[_Word]) -> RankPlace:
    if len(words) == 1:
        raise _Mistake(words[0].column, f"{words[0].text!r} is not enough: a line is `node gpu [hca]`, as `0 0`")
    if len(words) > 3:
        raise _Mistake(
            words[3].column,
            f"{words[3].text!r} is one too many: a line is `node gpu [hca]`, one rank each; # begins a comment",
        )
    numbers = [_number(word, kind) for word, kind in zip(words, range(3), strict=False)]
    node, gpu = numbers[:2]
    _within(words[0], node, 0, topology.hosts - 1, "node", f"; for it, build the fabric with --nodes {node + 1}")
    _within(words[1], gpu, 0, topology.gpus_per_host - 1, "GPU", "")
    if len(numbers) == 2:
        return RankPlace(node, gpu, topology.shape.hca_of_gpu(gpu))
    own = topology.shape.hca_of_gpu(gpu)
    _within(words[2], numbers[2], 1, topology.hcas_per_host, "HCA", f" (GPU {gpu} has hca{own})")
    return RankPlace(node, gpu, numbers[2])


def _number(word: _Word, kind: int) -> int:
    """The number in ``3`` or ``gpu3``."""
    match = re.fullmatch(r"([a-zA-Z]*)(\d{1,6})", word.text, re.ASCII)
    prefix = match.group(1).lower() if match is not None else word.text
    if match is not None and prefix in ("", _KINDS[kind]):
        return int(match.group(2))
    example = f"{_KINDS[kind]}{match.group(2) if match is not None else 1}"
    if match is not None and prefix in _KINDS:
        hint = f": here stands the {_WHAT[kind]} (a line is `node gpu [hca]`); did you mean {example}?"
    else:
        close = difflib.get_close_matches(prefix, ("node", "host", *_KINDS), n=1)
        meant = f" (did you mean {example}?)" if match is not None or close else ""
        hint = f": it is a number, as {example[len(_KINDS[kind]) :]}{meant}"
    raise _Mistake(word.column, f"{word.text[:40]!r} is no {_WHAT[kind]}{hint}")


def _within(word: _Word, number: int, low: int, high: int, what: str, advice: str) -> None:
    if not low <= number <= high:
        nearest = max(low, min(high, number))
        raise _Mistake(
            word.column,
            f"there is no {what} {number}: they are {low} to {high}{advice or f' (did you mean {nearest}?)'}",
        )


def _taken(topology: Topology, place: RankPlace, line: int, taken: set[tuple[int, int]]) -> str:
    free = [gpu for gpu in range(topology.gpus_per_host) if (place.node, gpu) not in taken]
    advice = f"GPU {free[0]} of node {place.node} is free" if free else f"all GPUs of node {place.node} are taken"
    return f"GPU {place.gpu} of node {place.node} has the rank of line {line} already, and a GPU has one rank: {advice}"
