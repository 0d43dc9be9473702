"""What a format has no words for, as JSON in its comments: ``fauxrdma: {...}``, right after what it belongs to.

A note says what its reader would not assume by itself, so files hold few of them, and taking out a cable or changing a
rate in such a file does what it looks like: notes do not repeat what the format says.
"""

from __future__ import annotations

import json

from fauxrdma.topology.formats.records import Inside, Record, Records
from fauxrdma.topology.formats.source import Source

__all__ = ["MARK", "insides_of", "is_ours", "note", "notes_of_whole"]

MARK = "fauxrdma:"


def note(record: Record) -> str:
    """The text of a note; one line of ASCII, without two dashes in a row, which XML comments may not hold."""
    return f"{MARK} {json.dumps(record, separators=(',', ':')).replace('--', chr(92) + 'u002d' + chr(92) + 'u002d')}"


def notes_of_whole(records: Records) -> list[Record]:
    """The notes at the head of a file: the fabric, and insides that do not follow from its shape."""
    found: list[Record] = [{"fabric": records.fabric}]
    for host, inside in records.insides.items():
        if inside is not None:
            found.append({"inside": host, "nodes": inside.nodes, "links": inside.links})
    return found


def is_ours(notes: list[tuple[Record, int, int]]) -> bool:
    """Whether the notes at the head of a file (each with line and column) say that we wrote it."""
    return any("fabric" in found for found, _, _ in notes)


def insides_of(source: Source, notes: list[tuple[Record, int, int]], hosts: list[int]) -> dict[int, Inside | None]:
    """The insides of these hosts, from the notes at the head of the file. Raises ConfigError for malformed ones."""
    insides: dict[int, Inside | None] = dict.fromkeys(sorted(hosts))
    for found, line, column in notes:
        if "inside" in found:
            host, nodes, links = (found.get(key) for key in ("inside", "nodes", "links"))
            if not (isinstance(host, int) and isinstance(nodes, list) and isinstance(links, list)):
                raise source.refusal(line, column, "a note with 'inside' needs a host's number, 'nodes' and 'links'")
            insides[host] = Inside(nodes, links)
    return dict(sorted(insides.items()))
