"""The text that ibnetdiscover (infiniband-diags) prints, which ibsim reads as well, as sections with port lines.

::

    vendid=0x2c9
    devid=0xd2f0
    sysimgguid=0xfa0c000053000013
    switchguid=0xfa0c000053000013(fa0c000053000013)
    Switch  40 "S-fa0c000053000013"         # "leaf1" base port 0 lid 19 lmc 0
    [1]     "S-fa0c00005300001b"[1]         # "spine1" lid 27 4xHDR
    [11]    "H-fa0c000048000001"[1](fa0c000048000001)       # "n0 hca1" lid 1 4xHDR

    caguid=0xfa0c000048000001
    Ca      1 "H-fa0c000048000001"          # "n0 hca1"
    [1](fa0c000048000001)   "S-fa0c000053000013"[11]        # lid 1 lmc 0 "leaf1" lid 19 4xHDR
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from fauxrdma.topology.formats.notes import MARK
from fauxrdma.topology.formats.records import Record
from fauxrdma.topology.formats.source import Source
from fauxrdma.units import Rate

__all__ = ["PortLine", "Section", "parse_text", "rate_of_token", "token_of_rate"]

_LANE_GBPS = {
    "SDR": 2.5, "DDR": 5, "QDR": 10, "FDR10": 10, "FDR": 14, "EDR": 25, "HDR": 50, "NDR": 100, "XDR": 200,
}  # fmt: skip
"""Rate of one lane as InfiniBand names speeds: 4xHDR is 200 Gb/s."""
_WIDTHS = (4, 1, 2, 8, 12)

_HEADER = re.compile(r'^(Switch|Ca|Hca|Rt)\s+(\d{1,4})\s+"([^"]*)"\s*(?:#\s*(.*?)\s*)?$')
_PORT = re.compile(
    r'^\[(\d{1,4})\](?:\[ext [^]]*\])?(?:\([0-9a-fA-Fx]*\))?\s*"([^"]*)"\s*\[(\d{1,4})\](?:\[ext [^]]*\])?'
    r"(?:\([0-9a-fA-Fx]*\))?\s*(?:#\s*(.*?)\s*)?$"
)
_VALUE = re.compile(r"^(\w+)=\S+$")
_GROUPING = re.compile(r"^(?:Non-Chassis Nodes|Chassis\b.*|DR path\b.*|(?:Spine|Line) (?:board )?.*)$", re.IGNORECASE)
_NAME = re.compile(r'^"(.*)"')
_TOKEN = re.compile(r"\b(1|2|4|8|12)x([A-Z]+(?:10)?)\b")
_BLANKS = " \t"


@dataclass(slots=True)
class PortLine:
    """`port` of the section's node is cabled to `peer_port` of the node with the id `peer`."""

    port: int
    peer: str
    peer_port: int
    rate: Rate | None
    line: int
    column: int
    note: Record = field(default_factory=dict)


@dataclass(slots=True)
class Section:
    """A node: `kind` is Switch, Ca or Rt, `name` its node description."""

    kind: str
    ports: int
    id: str
    name: str
    line: int
    note: Record = field(default_factory=dict)
    lines: list[PortLine] = field(default_factory=list)


def parse_text(source: Source) -> tuple[list[Section], list[tuple[Record, int, int]]]:
    """The sections, and the notes before the first one. Raises ConfigError with line and column."""
    sections: dict[str, Section] = {}
    notes: list[tuple[Record, int, int]] = []
    section: Section | None = None
    last: Section | PortLine | None = None
    for number, raw in enumerate(source.text.split("\n"), start=1):
        text = raw.strip()
        column = len(raw) - len(raw.lstrip()) + 1
        if text.startswith("#"):
            comment = text[1:].lstrip(_BLANKS)
            if comment.startswith(MARK):
                at = column + text.index(MARK) + len(MARK)
                found = source.parsed_note(comment[len(MARK) :], number, at)
                if last is None:
                    notes.append((found, number, at))
                else:
                    last.note.update(found)
        elif match := _HEADER.match(text):
            section = _section(match, number)
            if section.id in sections:
                first = sections[section.id].line
                raise source.refusal(number, column, f'"{section.id}" was described before, in line {first}')
            sections[section.id] = last = section
        elif text.startswith("["):
            port = _port_line(source, text, number, column)
            if section is None:
                raise source.refusal(number, column, "a port comes before the first Switch or Ca line")
            section.lines.append(port)
            last = port
        elif text and not _VALUE.match(text) and not _GROUPING.match(text):
            raise source.refusal(
                number,
                column,
                f'expected `Switch 40 "S-..."`, `Ca 1 "H-..."`, `[1] "S-..."[2]` or a comment, not {text[:60]!r}',
            )
    if not sections:
        raise source.refusal(1, 1, "there is no Switch and no Ca in it: this is not what ibnetdiscover prints")
    return list(sections.values()), notes


def _section(match: re.Match[str], line: int) -> Section:
    kind, ports, node_id, comment = match.groups()
    name = _NAME.match(comment or "")
    return Section("Ca" if kind == "Hca" else kind, int(ports), node_id, name.group(1) if name else node_id, line)


def _port_line(source: Source, text: str, line: int, column: int) -> PortLine:
    match = _PORT.match(text)
    if match is None:
        raise source.refusal(line, column, f'a port is written `[1] "S-..."[2]`, not {text[:60]!r}')
    port, peer, peer_port, comment = match.groups()
    tokens = _TOKEN.findall(comment or "")
    rate = rate_of_token(*tokens[-1]) if tokens and tokens[-1][1] in _LANE_GBPS else None
    return PortLine(int(port), peer, int(peer_port), rate, line, column)


def rate_of_token(width: str, speed: str) -> Rate:
    """The rate of `4xHDR` given as ("4", "HDR"): lanes times the rate of one."""
    return Rate.gbps(int(width) * _LANE_GBPS[speed])


def token_of_rate(rate: Rate) -> tuple[str, Rate]:
    """How ibnetdiscover names a rate, and the rate that this is: the fitting token, else the fastest that is not above
    it, else 1xSDR."""
    return _TOKENS[max((known for known in _TOKENS if known <= rate), default=min(_TOKENS))]


_TOKENS = {
    rate: (f"{width}x{speed}", rate)
    for width in reversed(_WIDTHS)
    for speed in reversed(_LANE_GBPS)
    for rate in (rate_of_token(str(width), speed),)
}
