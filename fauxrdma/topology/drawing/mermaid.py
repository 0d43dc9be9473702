"""A fabric as a Mermaid flowchart (mermaid.js.org), which GitHub, GitLab and many wikis draw."""

from __future__ import annotations

import re

from fauxrdma.topology.drawing.picture import Picture, picture_of
from fauxrdma.topology.graph import Topology

__all__ = ["mermaid"]


def mermaid(topology: Topology) -> str:
    """The flowchart's text: a subgraph per tier, a box per switch or group, a link per bundle of cables."""
    picture = picture_of(topology)
    lines = ["---", f"title: {_title(picture.title)}", "---", "flowchart TB"]
    for number, (name, boxes) in enumerate(picture.rows):
        lines.append(f'  subgraph row{number}["{_escaped(name)}"]')
        lines += [f"    {_box(picture, index)}" for index in boxes]
        lines.append("  end")
    for bundle in picture.bundles:
        lines.append(f'  b{bundle.a} ---|"{_escaped(bundle.text())}"| b{bundle.b}')
    return "\n".join(lines)


def _box(picture: Picture, index: int) -> str:
    box = picture.boxes[index]
    text = _escaped(box.label) + (f"<br/>{len(box.members)} alike" if len(box.members) > 1 else "")
    return f'b{index}("{text}")' if box.is_hosts else f'b{index}["{text}"]'


def _escaped(text: str) -> str:
    """Text within quotes: Mermaid's entity codes for what would end them or be taken for markup."""
    return re.sub(r'["#&<>`\\\x00-\x1f]', lambda match: f"#{ord(match.group())};", text)


def _title(text: str) -> str:
    """A YAML scalar in the front matter."""
    return "'" + re.sub(r"[\x00-\x1f]", " ", text).replace("'", "''") + "'"
