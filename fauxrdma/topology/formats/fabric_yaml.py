"""The project's own fabric file: a preset or an imported fabric written out as hosts, switches and cables.

Cables stand in their order, those that count up together on one line, with ports where they are not the next free ones.
What comes out is read back before it is handed over: a file that would load to another graph is never written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from fauxrdma.errors import ConfigError
from fauxrdma.topology.custom import load_fabric_text
from fauxrdma.topology.formats.records import Record, take_apart
from fauxrdma.topology.formats.source import ReadFabric, Source
from fauxrdma.topology.graph import TIER_NAMES, NodeKind, Topology
from fauxrdma.topology.schema import FabricForm, HostsForm
from fauxrdma.units import Rate, parse_rate

__all__ = ["read_fabric_yaml", "write_fabric_yaml"]

_COUNTED = re.compile(r"^(.*?)(0|[1-9]\d{0,5})$")
_QUANTITIES = {"mtu": "{}B", "switch_latency_ns": "{}ns"}
_SHORTER = {"switch_latency_ns": "switch_latency", "hosts": ""}


def write_fabric_yaml(topology: Topology) -> str:
    """The file. Raises ConfigError, saying what, where a fabric file has no words for the fabric."""
    text = "\n".join([*_head(topology), *_hosts(topology), *_switches(topology), *_cables(topology), ""])
    try:
        again = load_fabric_text(topology.name, text)
    except ConfigError as error:
        raise ConfigError(f"{topology.name} cannot be said in a fabric file: {error}; graphml can hold it") from None
    if again != topology:
        what = _difference(topology.to_dict(), again.to_dict())
        raise ConfigError(f"{topology.name} cannot be said in a fabric file: {what}; graphml can hold it")
    return text


def read_fabric_yaml(source: Source, nodes: int | None = None) -> ReadFabric:
    """The fabric of such a file, cut down to `nodes` hosts if given. Raises ConfigError with line and column."""
    return ReadFabric(load_fabric_text(source.path, source.text, nodes))


def _difference(one: Any, other: Any, where: str = "") -> str:
    """Where two pieces of plain data differ first."""
    if isinstance(one, dict) and isinstance(other, dict):
        key = next(key for key, value in one.items() if key not in other or other[key] != value)
        return _difference(one[key], other.get(key), f"{key!r} of {one.get('name') or where}")
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return _difference(*next((a, b) for a, b in zip(one, other, strict=True) if a != b), where)
    return f"{where} would not be {str(one)[:60]} but {str(other)[:60]}"


def _head(topology: Topology) -> Iterator[str]:
    """The keys of the whole fabric that the form knows, where they are not what it takes for granted."""
    for key, value in topology.to_dict().items():
        name = _SHORTER.get(key, key)
        form = FabricForm.model_fields.get(name)
        if form is not None and isinstance(value, str | int):
            text = _QUANTITIES[key].format(value) if key in _QUANTITIES else value
            if form.default != text:
                yield f"{name}: {_scalar(text)}"


def _hosts(topology: Topology) -> Iterator[str]:
    yield "hosts:"
    yield f"  count: {topology.hosts}"
    for key, value in topology.shape.to_dict().items():
        name = key.removesuffix("_bps")
        text = _rate(value) if key.endswith("_bps") and value is not None else value
        if HostsForm.model_fields[name].default != text:
            yield f"  {name}: {_scalar(text)}"


def _switches(topology: Topology) -> Iterator[str]:
    yield "switches:"
    alike: list[tuple[list[str], str]] = []
    for node in topology.nodes.values():
        if node.kind is NodeKind.SWITCH and node.host is None:
            known = node.tier is not None and 0 <= node.tier < len(TIER_NAMES)
            tier = TIER_NAMES[node.tier or 0] if known else str(node.tier)
            form = f"{{ports: {node.radix}{f', tier: {tier}' if tier != TIER_NAMES[0] else ''}}}"
            if alike and alike[-1][1] == form and _run([*alike[-1][0], node.name]) is not None:
                alike[-1][0].append(node.name)
            else:
                alike.append(([node.name], form))
    for names, form in alike:
        yield f"  {_scalar(_run(names) or names[0])}: {form}"


# -- cables


@dataclass(slots=True)
class _Line:
    """Cables that one entry of the file can say: from each source to the target beside it, `count` times."""

    sources: list[str]
    targets: list[str]
    rate_bps: int
    length_m: float
    count: int = 1
    ports: tuple[int, int] | None = None

    def text(self) -> str:
        entries = {"from": _run(self.sources), "to": _run(self.targets), "rate": _rate(self.rate_bps)}
        said = [f"{key}: {_scalar(value)}" for key, value in entries.items()] + [f"length: {_length(self.length_m)}"]
        if self.count > 1:
            said.append(f"count: {self.count}")
        if self.ports is not None:
            said += [f"from_port: {self.ports[0]}", f"to_port: {self.ports[1]}"]
        return f"  - {{{', '.join(said)}}}"

    def takes(self, other: _Line) -> bool:
        """Whether `other` can be said on this line too; then it is."""
        if self.ports is not None or other.ports is not None:
            return False
        if (self.rate_bps, self.length_m, self.count) != (other.rate_bps, other.length_m, other.count):
            return False
        sources, targets = (_joined(a, b) for a, b in ((self.sources, other.sources), (self.targets, other.targets)))
        if sources is None or targets is None or (len(sources) == 1 and len(targets) == 1):
            return False
        self.sources, self.targets = sources, targets
        return True


def _joined(names: list[str], more: list[str]) -> list[str] | None:
    if names == more and len(names) == 1:
        return names
    joined = names + more
    return joined if _run(joined) is not None else None


def _cables(topology: Topology) -> Iterator[str]:
    yield "cables:"
    lines: list[_Line] = []
    for line in _parallel(take_apart(topology).cables, _NextPorts(topology)):
        # A range on one end must meet one name on the other, or a range as long: never mix the two.
        if not (lines and _fits(lines[-1], line) and lines[-1].takes(line)):
            lines.append(line)
    yield from (line.text() for line in lines)


def _fits(line: _Line, more: _Line) -> bool:
    same = line.sources[-1] == more.sources[0], line.targets[-1] == more.targets[0]
    grown = len(line.sources) > 1, len(line.targets) > 1
    return not any(one and stays for one, stays in zip(grown, same, strict=True)) and (
        grown == (False, False) or grown == (not same[0], not same[1])
    )


class _NextPorts:
    """Which port the next cable of a switch takes by itself."""

    def __init__(self, topology: Topology) -> None:
        self._taken: dict[str, set[int]] = {}
        self._is_hca = {node.name for node in topology.nodes.values() if node.kind is NodeKind.HCA}

    def are_usual(self, cable: Record) -> bool:
        """Whether both ends of `cable` are plugged in where they would be anyway; they are taken in any case."""
        usual = True
        for side in ("src", "dst"):
            name, port = cable[side], cable[f"{side}_port"]
            taken = self._taken.setdefault(name, set())
            free = 1 if name in self._is_hca else next(n for n in range(1, len(taken) + 2) if n not in taken)
            usual = usual and port == free
            taken.add(port)
        return usual


def _parallel(cables: Iterable[Record], ports: _NextPorts) -> Iterator[_Line]:
    """The cables, those that follow each other between the same two switches as one."""
    last: _Line | None = None
    for cable in cables:
        usual = ports.are_usual(cable)
        line = _Line([cable["src"]], [cable["dst"]], cable["rate_bps"], cable["length_m"])
        if not usual:
            line.ports = cable["src_port"], cable["dst_port"]
        alike = last is not None and (last.sources, last.targets, last.rate_bps, last.length_m, last.ports) == (
            line.sources, line.targets, line.rate_bps, line.length_m, None,
        )  # fmt: skip
        if last is not None and alike and usual:
            last.count += 1
            continue
        if last is not None:
            yield last
        last = line
    if last is not None:
        yield last


def _run(names: list[str]) -> str | None:
    """`leaf{1..8}` for names that count up by one; the name itself for one; None for all else."""
    if len(names) == 1:
        return names[0]
    matches = [_COUNTED.match(name) for name in (names[0], names[-1])]
    if matches[0] is None or matches[1] is None or matches[0].group(1) != matches[1].group(1):
        return None
    first, last = (int(match.group(2)) for match in matches if match is not None)
    prefix = matches[0].group(1)
    if last - first != len(names) - 1 or names != [f"{prefix}{number}" for number in range(first, last + 1)]:
        return None
    return f"{prefix}{{{first}..{last}}}"


# -- scalars


def _rate(bits_per_s: int) -> str:
    short = f"{bits_per_s / 1e9:g}Gbps"
    try:
        return short if parse_rate(short) == Rate(bits_per_s) else f"{bits_per_s}bps"
    except ConfigError:
        return f"{bits_per_s}bps"


def _length(metres: float) -> str:
    return f"{metres:.12f}".rstrip("0").rstrip(".") + "m"


def _scalar(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return str(value)
    if (
        re.fullmatch(r"[A-Za-z][A-Za-z0-9_.:/-]*|\d+(\.\d+)?[A-Za-z]+", value)
        and value.lower() not in _WORDS
        and value[-1] != ":"
    ):
        return value
    return json.dumps(value, ensure_ascii=False)


_WORDS = {"true", "false", "yes", "no", "on", "off", "null", "none", "nan", "inf"}
