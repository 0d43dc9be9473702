"""The logs of a lab: one file for each daemon and each rank, read as lines with their source, once or as they come."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["LogLine", "follow_logs", "rank_log", "read_logs"]

_NAME = re.compile(
    r"^(?:(?P<manager>subnet-manager)|(?P<supervisor>supervisor)|hca-n(?P<hca>\d+)|rank(?P<rank>\d+)-n(?P<node>\d+))\.log$"
)
_POLL_S = 0.2
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line. `source` is ``sm``, ``lab``, ``n0 hca`` or ``n0 r1``."""

    source: str
    node: int | None
    text: str


def rank_log(folder: Path, rank: int, node: int) -> Path:
    """Where the output of a rank goes."""
    return folder / "logs" / f"rank{rank}-n{node}.log"


def read_logs(folder: Path, node: int | None = None) -> Iterator[LogLine]:
    """All lines of a lab, or of one node, source by source."""
    for path, source, of_node in _sources(folder, node):
        for text in path.read_text(errors="replace").splitlines():
            yield LogLine(source, of_node, text)


def follow_logs(folder: Path, node: int | None = None) -> Iterator[LogLine]:
    """All lines, then those that are added, until the lab is gone. Waits between looks."""
    seen: dict[Path, int] = {}
    rest: dict[Path, bytes] = {}
    while True:
        for path, source, of_node in _sources(folder, node):
            try:
                with path.open("rb") as file:
                    file.seek(seen.get(path, 0))
                    data = rest.get(path, b"") + file.read(_CHUNK)
                    seen[path] = file.tell()
            except FileNotFoundError:
                continue
            *lines, rest[path] = data.split(b"\n")
            for line in lines:
                yield LogLine(source, of_node, line.decode(errors="replace"))
        if not folder.exists():
            return
        time.sleep(_POLL_S)


def _sources(folder: Path, node: int | None) -> list[tuple[Path, str, int | None]]:
    found: list[tuple[tuple[int, int, int], Path, str, int | None]] = []
    for path in (folder / "logs").glob("*.log"):
        match = _NAME.match(path.name)
        if match is None:
            continue
        if match["manager"] or match["supervisor"]:
            order, source, of_node = (
                (0 if match["supervisor"] else 1, 0, 0),
                "lab" if match["supervisor"] else "sm",
                None,
            )
        elif match["hca"]:
            of_node = int(match["hca"])
            order, source = (2, of_node, 0), f"n{of_node} hca"
        else:
            of_node = int(match["node"])
            order, source = (2, of_node, 1 + int(match["rank"])), f"n{of_node} r{match['rank']}"
        if node is None or node == of_node:
            found.append((order, path, source, of_node))
    return [(path, source, of_node) for _, path, source, of_node in sorted(found, key=lambda each: each[0])]
