"""docs/pyverbs.md lists the names of pyverbs as they are tried."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| `([\w.]+)` \| (.*?) ?\| (.*?) ?\|$", re.MULTILINE)


def tried(kind: str) -> set[str]:
    """The names in the dictionaries OFFERED or NOT_OFFERED of tests/compat, read from their text."""
    found: set[str] = set()
    for path in (ROOT / "tests" / "compat").glob("exercises_of_*.py"):
        for block in re.findall(rf"^{kind} \|= {{\n(.*?)^}}", path.read_text(), re.MULTILINE | re.DOTALL):
            found |= set(re.findall(r'^    "([\w.()]+)":', block, re.MULTILINE))
            for module, names in re.findall(r'f"(\w+)\.\{name\}": \w+ for name in \((.*?)\)', block):
                found |= {f"{module}.{name}" for name in re.findall(r'"(\w+)"', names)}
    return found


def test_the_names_are_those_that_are_tried() -> None:
    page = (ROOT / "docs" / "pyverbs.md").read_text()
    there: set[str] = set()
    refused: set[str] = set()
    for module, offered, not_offered in ROW.findall(page[page.index("## Names") :]):
        there |= {f"{module}.{name}" for name in re.findall(r"`([^`]+)`", offered)}
        refused |= {f"{module}.{name}" for name in re.findall(r"`([^`]+)`", not_offered)}
    assert there == tried("OFFERED")
    assert refused == tried("NOT_OFFERED")
