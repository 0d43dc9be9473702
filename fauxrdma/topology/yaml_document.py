"""A YAML file with the position of everything in it, so that a mistake can be shown where it is.

`fauxrdma.topology.yaml_scan` refuses what would upset the parser; here are reading, parsing and positions.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from fauxrdma.errors import ConfigError
from fauxrdma.topology.yaml_scan import MAX_DEPTH, Loc, Problem, YamlRefused, first_oddity, syntax_problem

__all__ = ["YamlDocument"]

MAX_FILE_BYTES = 1024 * 1024
MAX_VALUES = 200_000
"""What a file of that size can hold; with aliases of aliases, a small one could hold more than any memory."""

_UTF16 = (b"\xff\xfe", b"\xfe\xff")


class YamlDocument:
    """A parsed file. `text` is what it holds, `data` the same as plain dicts, lists and scalars; `problem` makes a
    Problem from a path into it."""

    def __init__(
        self, path: str, text: str | None = None, expects: str = "a fabric needs name, hosts, switches, cables"
    ) -> None:
        """Read and parse; with `text`, that is what the file holds. `expects` says what would be in it. Raises
        ConfigError: file missing or unreadable, not YAML, not a mapping."""
        self.path = path
        self._values = 0
        self.text = self._read() if text is None else text
        try:
            self._root = _parse(self.text, expects)
            self.data: dict[Any, Any] = self._plain(self._root, 0, (0, 0))
        except YamlRefused as refused:
            raise ConfigError(refused.problem.at(path)) from None

    def _read(self) -> str:
        try:
            if Path(self.path).stat().st_size > MAX_FILE_BYTES:
                raise ConfigError(
                    f"{self.path}: larger than {MAX_FILE_BYTES} bytes, which no fabric file is: write patterns, as "
                    "n*.hca{1..8}, where cables repeat"
                )
            content = Path(self.path).read_bytes()
        except FileNotFoundError:
            raise ConfigError(f"{self.path}: no such file") from None
        except OSError as error:
            raise ConfigError(f"{self.path}: cannot be read: {error.strerror}") from None
        except ValueError as error:  # a null byte in the name
            raise ConfigError(f"{self.path!r}: cannot be read: {error}") from None
        try:
            return content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            before = content[: error.start].decode("utf-8").splitlines(keepends=True) or [""]
            if before[-1].endswith(("\n", "\r")):
                before.append("")
            form = "UTF-16" if content.startswith(_UTF16) else f"byte 0x{content[error.start]:02x}"
            problem = Problem(
                len(before), len(before[-1]) + 1, f"not a text file in UTF-8 ({form} here): save it as UTF-8"
            )
            raise ConfigError(problem.at(self.path)) from None

    def _plain(self, value: Any, depth: int, position: tuple[int, int]) -> Any:
        """`value` without ruamel's classes. Aliases are written out, so depth and size are counted here too."""
        self._values += 1
        if depth > MAX_DEPTH or self._values > MAX_VALUES:
            what = f"nested deeper than {MAX_DEPTH} levels" if depth > MAX_DEPTH else f"more than {MAX_VALUES} values"
            raise YamlRefused(Problem(position[0] + 1, position[1] + 1, f"{what}, which no fabric file has"))
        if isinstance(value, dict):
            position = _own_mark(value) or position
            return {
                key: self._plain(inner, depth + 1, _mark(value, key, key=False) or position)
                for key, inner in value.items()
            }
        if isinstance(value, list):
            position = _own_mark(value) or position
            return [
                self._plain(inner, depth + 1, _mark(value, at, key=False) or position) for at, inner in enumerate(value)
            ]
        return value

    def problem(self, loc: Loc, message: str, *, key: bool = False) -> Problem:
        """The mistake `message` at the value that `loc` leads to, or with `key` at the key of that value.

        A path that leads nowhere (a key that is missing) counts as far as it goes.
        """
        node: Any = self._root
        line, column = node.lc.line, node.lc.col
        for step, part in enumerate(loc):
            mark = _mark(node, part, key=key and step == len(loc) - 1)
            if mark is None:
                break
            line, column = mark
            node = node[part]
        return Problem(line + 1, column + 1, message)


def _parse(text: str, expects: str) -> CommentedMap:
    """The file's mapping. Raises YamlRefused for all else."""
    oddity = first_oddity(text)
    if oddity is not None:
        raise YamlRefused(oddity)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # ruamel warns of what is refused anyway
            root = YAML(typ="rt").load(text)
    except MarkedYAMLError as error:
        raise YamlRefused(syntax_problem(error)) from None
    except (YAMLError, ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError) as error:
        # Whatever the constructor of a value raised that the scan let pass; it has no position.
        raise YamlRefused(Problem(1, 1, f"not valid YAML: {' '.join(str(error).split())[:200]}")) from None
    if not isinstance(root, CommentedMap):
        found = "empty" if root is None else "not a mapping"
        raise YamlRefused(Problem(1, 1, f"the file is {found}: {expects}"))
    return root


def _own_mark(node: Any) -> tuple[int, int] | None:
    mark = getattr(node, "lc", None)
    return None if mark is None or mark.line is None else (int(mark.line), int(mark.col))


def _mark(node: Any, part: Any, *, key: bool) -> tuple[int, int] | None:
    """Line and column (from 0) of the key or the value under `part`, if `node` has it and knows where."""
    try:
        if isinstance(node, CommentedMap) and part in node:
            mark = node.lc.key(part) if key else node.lc.value(part)
        elif isinstance(node, CommentedSeq) and isinstance(part, int) and 0 <= part < len(node):
            mark = node.lc.item(part)
        else:
            return None
        return int(mark[0]), int(mark[1])
    except (KeyError, TypeError, AttributeError):  # came in through a merge key, which keeps no position
        return None
