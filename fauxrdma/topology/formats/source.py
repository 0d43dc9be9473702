"""The text of a file that is being read, mistakes in it by line and column, and what reading it gave."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fauxrdma.errors import ConfigError
from fauxrdma.topology.formats.records import Record, Records, put_together
from fauxrdma.topology.graph import Topology

__all__ = ["ReadFabric", "Source"]

MAX_FILE_BYTES = 64 * 1024 * 1024
"""A GraphML file of 1,024 hosts has 40 MB."""


@dataclass(slots=True)
class ReadFabric:
    """A fabric that was read. `remarks` say what was assumed or left out, one line each; a file of our own has none."""

    topology: Topology
    remarks: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Source:
    """A file's `path`, as the user wrote it, and its `text`."""

    path: str
    text: str

    @classmethod
    def of_file(cls, path: str) -> Source:
        """Read the file. Raises ConfigError: missing, unreadable, not text, larger than any fabric."""
        try:
            if Path(path).stat().st_size > MAX_FILE_BYTES:
                raise ConfigError(f"{path}: larger than {MAX_FILE_BYTES} bytes, which no fabric file is")
            return cls(path, Path(path).read_text(encoding="utf-8-sig"))
        except FileNotFoundError:
            raise ConfigError(f"{path}: no such file") from None
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
        except UnicodeDecodeError as error:
            before = error.object[: error.start]
            line = before.count(b"\n") + 1
            raise refusal_at(
                path, line, error.start - before.rfind(b"\n"), "not a text file in UTF-8: save it as UTF-8"
            ) from None
        except ValueError as error:  # a null byte in the name
            raise ConfigError(f"{path!r}: cannot be read: {error}") from None

    def refusal(self, line: int, column: int, message: str) -> ConfigError:
        """The error to raise for a mistake at `line` and `column`, both from 1."""
        return refusal_at(self.path, line, column, message)

    def parsed_note(self, text: str, line: int, column: int) -> Record:
        """The JSON object in a note that starts at `line` and `column`. Raises ConfigError if it is none."""
        try:
            found: Any = json.loads(text)
        except json.JSONDecodeError as error:
            down = text.count("\n", 0, error.pos)
            column = error.colno if down else column + error.colno - 1
            raise self.refusal(line + down, column, f"in a fauxrdma note, JSON was expected: {error.msg}") from None
        except (RecursionError, ValueError) as error:
            raise self.refusal(line, column, f"in a fauxrdma note, JSON was expected: {error}") from None
        if not isinstance(found, dict):
            raise self.refusal(line, column, "a fauxrdma note holds a JSON object, {...}")
        return found

    def topology(self, records: Records) -> Topology:
        """The topology of `records` that were read from this file. Raises ConfigError if they do not make one."""
        try:
            return put_together(records)
        except ConfigError as error:
            raise ConfigError(f"{self.path}: {error}") from None
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise ConfigError(
                f"{self.path}: what its fauxrdma notes say does not make a fabric ({type(error).__name__}: {error}): "
                "export it again, or take all notes out to have it read as a file of others"
            ) from None


def refusal_at(path: str, line: int, column: int, message: str) -> ConfigError:
    """`path:line:column: message`, as compilers write it."""
    return ConfigError(f"{path}:{line}:{column}: {message}")
