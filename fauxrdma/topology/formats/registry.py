"""The formats by name: what each is for, how to write and read it, and how to tell a file of it from its content."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass

from fauxrdma.errors import ConfigError
from fauxrdma.topology.collector import collector_off
from fauxrdma.topology.formats.records import first_hosts
from fauxrdma.topology.formats.source import ReadFabric, Source
from fauxrdma.topology.graph import Topology

__all__ = ["FORMATS", "FabricFormat", "foreign_format", "format_named", "format_of", "read_fabric", "write_fabric"]


@dataclass(frozen=True, slots=True)
class FabricFormat:
    """A file format. `write` gives the file's text, `read` the fabric of one, cut down to (or, for a format that may
    tell of a single host, made of) so many hosts."""

    name: str
    summary: str
    write: Callable[[Topology], str]
    read: Callable[[Source, int | None], ReadFabric]


# Imports are in the functions: pydantic and ruamel.yaml take longer to import than most fabrics take to read.


def _write_yaml(topology: Topology) -> str:
    from fauxrdma.topology.formats.fabric_yaml import write_fabric_yaml

    return write_fabric_yaml(topology)


def _read_yaml(source: Source, nodes: int | None) -> ReadFabric:
    from fauxrdma.topology.formats.fabric_yaml import read_fabric_yaml

    return read_fabric_yaml(source, nodes)


def _write_ibnetdiscover(topology: Topology) -> str:
    from fauxrdma.topology.formats.ibnetdiscover import write_ibnetdiscover

    return write_ibnetdiscover(topology)


def _read_ibnetdiscover(source: Source, nodes: int | None) -> ReadFabric:
    from fauxrdma.topology.formats.ibnetdiscover import read_ibnetdiscover

    return _cut(source, read_ibnetdiscover(source), nodes)


def _write_nccl(topology: Topology) -> str:
    from fauxrdma.topology.formats.nccl_xml import write_nccl

    return write_nccl(topology)


def _read_nccl(source: Source, nodes: int | None) -> ReadFabric:
    from fauxrdma.topology.formats.nccl_xml import read_nccl

    return _cut(source, read_nccl(source, nodes), nodes)


def _write_containerlab(topology: Topology) -> str:
    from fauxrdma.topology.formats.containerlab import write_containerlab

    return write_containerlab(topology)


def _read_containerlab(source: Source, nodes: int | None) -> ReadFabric:
    from fauxrdma.topology.formats.containerlab import read_containerlab

    return _cut(source, read_containerlab(source), nodes)


def _write_graphml(topology: Topology) -> str:
    from fauxrdma.topology.formats.graphml import write_graphml

    return write_graphml(topology)


def _read_graphml(source: Source, nodes: int | None) -> ReadFabric:
    from fauxrdma.topology.formats.graphml import read_graphml

    return _cut(source, read_graphml(source), nodes)


def _cut(source: Source, found: ReadFabric, nodes: int | None) -> ReadFabric:
    """The fabric with its first `nodes` hosts. Raises ConfigError if it has fewer."""
    if nodes is None:
        return found
    if nodes > found.topology.hosts:
        raise ConfigError(
            f"{source.path}: {nodes} nodes were asked for, the file describes {found.topology.hosts}: ask for at most "
            "as many"
        )
    return ReadFabric(first_hosts(found.topology, nodes), found.remarks)


FORMATS: dict[str, FabricFormat] = {
    fabric_format.name: fabric_format
    for fabric_format in (
        FabricFormat("yaml", "fauxrdma's own fabric file: hosts, switches, cables", _write_yaml, _read_yaml),
        FabricFormat(
            "ibnetdiscover", "what infiniband-diags prints and ibsim reads", _write_ibnetdiscover, _read_ibnetdiscover
        ),
        FabricFormat("nccl", "NCCL's topology XML: the inside of hosts, their NICs and rails", _write_nccl, _read_nccl),
        FabricFormat("containerlab", "a containerlab topology file", _write_containerlab, _read_containerlab),
        FabricFormat(
            "graphml", "every device and link, for networkx, igraph, Gephi, yEd", _write_graphml, _read_graphml
        ),
    )
}
"""The formats by name, in the order they are listed to people."""


def format_named(name: str) -> FabricFormat:
    """The format called `name`. Raises ConfigError with a suggestion."""
    if name not in FORMATS:
        close = difflib.get_close_matches(name, FORMATS, n=1)
        hint = f": did you mean {close[0]!r}?" if close else ":"
        raise ConfigError(f"unknown format {name!r}{hint} Known: {', '.join(FORMATS)}")
    return FORMATS[name]


def format_of(text: str) -> FabricFormat:
    """The format of a file with this content. What looks like nothing else is taken for a fabric file, whose reader
    says what is wrong with it."""
    lines = [line for line in (raw.strip() for raw in text[:200_000].splitlines()) if line]
    first = lines[0] if lines else ""
    if first.startswith("<"):
        return FORMATS["graphml" if "<graphml" in text[:20_000] else "nccl"]
    told = [line for line in lines if not line.startswith("#")]
    if any(
        line.startswith(("vendid=", "switchguid=", "caguid=", "Switch\t", "Switch ", "Ca\t", "Hca\t")) for line in told
    ):
        return FORMATS["ibnetdiscover"]
    if any(line.rstrip() == "topology:" for line in text[:200_000].splitlines()):
        return FORMATS["containerlab"]
    return FORMATS["yaml"]


def foreign_format(path: str) -> FabricFormat | None:
    """The format of a file if it is not a fabric file of our own; None for one, and for a file that cannot be read."""
    try:
        found = format_of(Source.of_file(path).text)
    except ConfigError:
        return None
    return None if found is FORMATS["yaml"] else found


def read_fabric(path: str, nodes: int | None = None, format_name: str | None = None) -> ReadFabric:
    """The fabric of a file, in the format named or the one its content suggests, with its first `nodes` hosts.

    Raises ConfigError in one line, with `file:line:column` where the mistake has a place.
    """
    source = Source.of_file(path)
    chosen = format_of(source.text) if format_name is None else format_named(format_name)
    with collector_off():
        return chosen.read(source, nodes)


def write_fabric(topology: Topology, format_name: str) -> str:
    """The text of a file in that format. Raises ConfigError for an unknown one, or what the format cannot hold."""
    chosen = format_named(format_name)
    with collector_off():
        return chosen.write(topology)
