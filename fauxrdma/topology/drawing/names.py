"""Names told together."""

from __future__ import annotations

import re

__all__ = ["runs"]


def runs(names: list[str]) -> str:
    """Names that count up, told as ranges: `leaf1 leaf2 leaf3 leaf7` becomes `leaf1-leaf3,leaf7`."""
    out: list[list[str]] = []
    previous: tuple[str, int] | None = None
    for name in names:
        match = re.match(r"^(.*?)(\d+)$", name)
        current = (match.group(1), int(match.group(2))) if match is not None else None
        if previous is not None and current == (previous[0], previous[1] + 1):
            out[-1][1:] = [name]
        else:
            out.append([name])
        previous = current
    return ",".join("-".join(part) for part in out)
