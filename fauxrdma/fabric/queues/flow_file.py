"""Flows from a file, CSV or YAML: `src`, `dst` and `bytes` of each, and if not 0 `start` and `priority`.

::

    src,dst,bytes,start,priority          flows:
    n0.hca1,n2.hca1,4M,,                    - {src: n0.hca1, dst: n2.hca1, bytes: 4M}
    n1.hca1,n2.hca1,512K,20us,3             - {src: n1.hca1, dst: n2.hca1, bytes: 512K, start: 20us, priority: 3}

Ends are named as routes' ends are (`fauxrdma.fabric.route_trace.parse_end`).
"""

from __future__ import annotations

import csv
import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fauxrdma.errors import ConfigError
from fauxrdma.fabric.queues.play import Flow
from fauxrdma.fabric.route_trace import parse_end
from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.topology.yaml_document import YamlDocument
from fauxrdma.units import parse_byte_count, parse_time_ns

__all__ = ["FileFlow", "flows_of", "nodes_named", "read_flow_file"]

_NEEDED = ("src", "dst", "bytes")
_KEYS = (*_NEEDED, "start", "priority")
_MOST_FLOWS = 10_000
_EXPECTS = "flows need flows, a list of {src: n0.hca1, dst: n1.hca1, bytes: 1M}"

Complain = Callable[[str | None, str], ConfigError]
"""Makes the error for a key of a flow (None: the flow itself) that is wrong as the message says."""


@dataclass(frozen=True, slots=True)
class FileFlow:
    """One flow as the file has it. `complain` puts the place in the file before a message."""

    source: str
    target: str
    nbytes: int
    start_ns: int
    priority: int | None
    complain: Complain


def read_flow_file(path: str) -> list[FileFlow]:
    """The flows of a file, by its suffix CSV or else YAML. Raises ConfigError, `file:line:column: message`, for the
    first mistake, and for a file without flows or with too many."""
    flows = _csv(path) if path.lower().endswith(".csv") else _yaml(path)
    if not flows:
        raise ConfigError(f"{path}: there is no flow in it: {_EXPECTS}")
    if len(flows) > _MOST_FLOWS:
        raise ConfigError(f"{path}: {len(flows)} flows are more than the {_MOST_FLOWS} that can be played")
    return flows


def nodes_named(flows: list[FileFlow]) -> int:
    """How many nodes the names of the ends ask for: n7.hca1 for eight."""
    numbers = [re.match(r"n(\d+)\.", name) for flow in flows for name in (flow.source, flow.target)]
    return max((int(found.group(1)) + 1 for found in numbers if found), default=1)


def flows_of(manager: SubnetManager, flows: list[FileFlow]) -> list[Flow]:
    """The flows of a file on a fabric. Raises ConfigError for an end that the fabric does not have."""
    from fauxrdma.fabric.host_path import memory_number

    made = []
    for number, flow in enumerate(flows):
        ends = []
        for key, name in (("src", flow.source), ("dst", flow.target)):
            try:
                hca, memory = parse_end(manager, name)
            except ConfigError as error:
                raise flow.complain(key, str(error)) from None
            ends.append((manager.lid(hca.name), memory_number(memory)))
        (source, of), (target, into) = ends
        made.append(Flow(source, target, flow.nbytes, float(flow.start_ns), flow.priority, number, of, into))
    return made


def _csv(path: str) -> list[FileFlow]:
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not a text file in UTF-8: save it as UTF-8") from None
    rows = [(number, line) for number, line in enumerate(lines, start=1) if line.strip() and line.lstrip()[0] != "#"]
    if not rows:
        return []
    heading, *rest = [(number, next(csv.reader([line]))) for number, line in rows]
    columns = [cell.strip() for cell in heading[1]]
    _check_keys(columns, lambda key, message: ConfigError(f"{path}:{heading[0]}:1: {message}"))
    flows = []
    for number, cells in rest:

        def complain(key: str | None, message: str, number: int = number, cells: list[str] = cells) -> ConfigError:
            before = cells[: columns.index(key)] if key in columns else []
            return ConfigError(f"{path}:{number}:{sum(len(cell) + 1 for cell in before) + 1}: {message}")

        if len(cells) > len(columns):
            raise complain(None, f"{len(cells)} cells, the first line names {len(columns)}")
        given = {key: cell.strip() for key, cell in zip(columns, cells, strict=False) if cell.strip()}
        _check_keys(given, complain)
        flows.append(_flow(given, complain))
    return flows


def _yaml(path: str) -> list[FileFlow]:
    document = YamlDocument(path, expects=_EXPECTS)
    for key in document.data:
        if key != "flows":
            raise ConfigError(document.problem((key,), f"unknown key {key!r}: {_EXPECTS}", key=True).at(path))
    given = document.data.get("flows")
    if not isinstance(given, list):
        raise ConfigError(document.problem(("flows",), f"this is no list: {_EXPECTS}").at(path))
    flows = []
    for at, entry in enumerate(given):

        def complain(key: str | None, message: str, at: int = at) -> ConfigError:
            loc = ("flows", at) if key is None else ("flows", at, key)
            return ConfigError(document.problem(loc, message).at(path))

        if not isinstance(entry, dict):
            raise complain(None, f"a flow is a mapping: {_EXPECTS}")
        _check_keys(entry, complain)
        flows.append(_flow(entry, complain))
    return flows


def _check_keys(given: Any, complain: Complain) -> None:
    for key in given:
        if key not in _KEYS:
            close = difflib.get_close_matches(str(key), _KEYS, n=1)
            meant = f" (did you mean {close[0]}?)" if close else ""
            raise complain(str(key), f"a flow has no {key!r}{meant}: it has {', '.join(_KEYS)}")
    for key in _NEEDED:
        if key not in given:
            raise complain(None, f"{key!r} is missing")


def _flow(given: Mapping[str, Any], complain: Complain) -> FileFlow:
    def read(key: str, how: Callable[[str], int]) -> int:
        try:
            return how(str(given[key]))
        except ConfigError as error:
            raise complain(key, str(error)) from None

    nbytes = read("bytes", parse_byte_count)
    if nbytes < 1:
        raise complain("bytes", "a flow has at least one byte")
    start = read("start", lambda text: 0 if text == "0" else parse_time_ns(text)) if "start" in given else 0
    priority = read("priority", _priority) if "priority" in given else None
    return FileFlow(str(given["src"]), str(given["dst"]), nbytes, start, priority, complain)


def _priority(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(f"{text!r} is no priority: they are 0 to 7 on Ethernet, lanes 0 to 14 on InfiniBand")
    return int(text)
