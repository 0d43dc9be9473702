"""Plain data as YAML that people read: block style, one document after the other."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import LiteralScalarString

__all__ = ["yaml_text"]


def yaml_text(documents: Sequence[dict[str, Any]], comment: str) -> str:
    """The documents below a comment. Text of several lines is written as such."""
    yaml = YAML()
    yaml.default_flow_style = False
    yaml.width = 120
    yaml.indent(mapping=2, sequence=4, offset=2)
    out = io.StringIO()
    out.write(f"# {comment}\n")
    for at, document in enumerate(documents):
        out.write("---\n" if at else "")
        yaml.dump(_readable(document), out)
    return out.getvalue()


def _readable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _readable(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_readable(inner) for inner in value]
    return LiteralScalarString(value) if isinstance(value, str) and "\n" in value else value
