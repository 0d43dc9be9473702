"""A YAML file with the position of everything in it, so that a mistake can be shown where it is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from fauxrdma.errors import ConfigError

__all__ = ["Problem", "YamlDocument"]

MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_DEPTH = 16
"""No fabric nests deeper; an alias that contains itself would."""

Loc = tuple[int | str, ...]


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """A mistake at `line` and `column` (both from 1) of a file."""

    line: int
    column: int
    message: str

    def at(self, path: str) -> str:
        """`file:line:column: message`, as compilers write it."""
        return f"{path}:{self.line}:{self.column}: {self.message}"


class YamlDocument:
    """A parsed file. `data` is plain dicts, lists and scalars; `problem` makes a Problem from a path into it."""

    def __init__(self, path: str) -> None:
        """Read and parse. Raises ConfigError: file missing or unreadable, not YAML, not a mapping."""
        self.path = path
        try:
            if Path(path).stat().st_size > MAX_FILE_BYTES:
                raise ConfigError(f"{path}: larger than {MAX_FILE_BYTES} bytes, which no fabric file is")
            text = Path(path).read_text(encoding="utf-8")
        except FileNotFoundError:
            raise ConfigError(f"{path}: no such file") from None
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{path}: not a text file in UTF-8") from None
        self._root = self._parse(text)
        self.data: dict[Any, Any] = self._plain(self._root, 0)

    def _parse(self, text: str) -> CommentedMap:
        parser = YAML(typ="rt")
        try:
            root = parser.load(text)
        except MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
            what = (error.problem or "not valid YAML").splitlines()[0].replace(" with value", ", with value")
            raise ConfigError(Problem(line, column, what).at(self.path)) from None
        except YAMLError as error:
            raise ConfigError(Problem(1, 1, str(error).splitlines()[0]).at(self.path)) from None
        if not isinstance(root, CommentedMap):
            found = "empty" if root is None else "not a mapping"
            raise ConfigError(
                Problem(1, 1, f"the file is {found}: a fabric needs name, hosts, switches, cables").at(self.path)
            )
        return root

    def _plain(self, value: Any, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise ConfigError(f"{self.path}: nested deeper than {MAX_DEPTH} levels")
        if isinstance(value, dict):
            return {key: self._plain(inner, depth + 1) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._plain(inner, depth + 1) for inner in value]
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


def _mark(node: Any, part: int | str, *, key: bool) -> tuple[int, int] | None:
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
