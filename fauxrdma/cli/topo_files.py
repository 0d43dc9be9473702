"""`fauxrdma topo export` and `import`: fabrics in the formats of other tools, and back; drawings."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fauxrdma.cli.options import Format, FormatOption
from fauxrdma.errors import ConfigError

if TYPE_CHECKING:
    from fauxrdma.topology.graph import Topology

__all__ = ["Drawing", "OutputOption", "deliver", "export", "import_"]


class Drawing(StrEnum):
    """How a fabric can be drawn."""

    TERMINAL = "terminal"
    SVG = "svg"
    MERMAID = "mermaid"

    def of(self, topology: Topology) -> str:
        """The drawing, without a newline at its end."""
        from fauxrdma.topology.drawing import draw
        from fauxrdma.topology.drawing.mermaid import mermaid
        from fauxrdma.topology.drawing.svg import svg

        return {Drawing.TERMINAL: draw, Drawing.SVG: svg, Drawing.MERMAID: mermaid}[self](topology)


OutputOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write here, not to standard output.", show_default=False),
]
NodesOption = Annotated[int | None, typer.Option("--nodes", "-n", min=1, help="How many nodes.", show_default=False)]
_FORMATS = "yaml|ibnetdiscover|nccl|containerlab|graphml"


def export(
    fabric: Annotated[str, typer.Argument(help="A preset or the file of a fabric, in any format.", show_default=False)],
    to: Annotated[str, typer.Option("--to", metavar=_FORMATS, help="The format to write.", show_default=False)],
    output: OutputOption = None,
    nodes: NodesOption = None,
    host: Annotated[
        int | None,
        typer.Option(
            "--host", min=0, help="With --to nccl: only this host, as NCCL_TOPO_FILE wants it.", show_default=False
        ),
    ] = None,
    format_: FormatOption = Format.TABLE,
) -> None:
    """Write a fabric in the format of another tool. Reading the file back gives the same fabric.

    \b
    Examples:
      fauxrdma topo export seed-rail8 --to ibnetdiscover -o fabric.ibnet
      fauxrdma topo export fat-tree --nodes 16 --to graphml -o fabric.graphml
      fauxrdma topo export seed-rail8 --to nccl --host 0 -o topo.xml
      fauxrdma topo export fat-tree --to yaml
    """
    from fauxrdma.topology.formats.registry import write_fabric
    from fauxrdma.topology.loading import load_topology

    topology = load_topology(fabric, nodes=nodes)
    if host is None:
        text = write_fabric(topology, to)
    else:
        from fauxrdma.topology.formats.nccl_xml import write_nccl

        if to != "nccl":
            raise ConfigError(f"--host goes with --to nccl, not --to {to}: other formats hold whole fabrics")
        if host >= topology.hosts:
            raise ConfigError(f"--host {host}: {topology.name} has hosts 0 to {topology.hosts - 1}")
        text = write_nccl(topology, host)
    deliver(text, output, format_, {"fabric": topology.name, "format": to}, [])


def import_(
    file: Annotated[str, typer.Argument(help="A file in any of the formats.", show_default=False)],
    from_: Annotated[
        str | None,
        typer.Option(
            "--from", metavar=_FORMATS, help="Its format. Default: what its content says.", show_default=False
        ),
    ] = None,
    to: Annotated[str, typer.Option("--to", metavar=_FORMATS, help="The format to write.")] = "yaml",
    output: OutputOption = None,
    nodes: NodesOption = None,
    format_: FormatOption = Format.TABLE,
) -> None:
    """Read the file of another tool and write it as a fabric file. What was assumed is said on standard error.

    \b
    Examples:
      fauxrdma topo import ibnetdiscover.txt -o cluster.yaml
      fauxrdma topo import nccl-topo.xml --nodes 4 -o cluster.yaml
      fauxrdma topo import lab.clab.yml --from containerlab --to graphml -o cluster.graphml
    """
    from fauxrdma.topology.formats.registry import FORMATS, foreign_format, read_fabric, write_fabric

    found = read_fabric(file, nodes, from_)
    text = write_fabric(found.topology, to)
    if to == "yaml":
        text = "".join(f"# {' '.join(remark.split())}\n" for remark in found.remarks) + text
    guessed = from_ or (foreign_format(file) or FORMATS["yaml"]).name
    deliver(text, output, format_, {"fabric": found.topology.name, "read": guessed, "format": to}, found.remarks)


def deliver(text: str, output: Path | None, format_: Format, what: dict[str, str], remarks: list[str]) -> None:
    """Write `text` to a file or to standard output, `remarks` to standard error; with JSON, say `what` it is."""
    from fauxrdma.cli.output import print_json

    for remark in remarks:
        print(f"fauxrdma: note: {' '.join(remark.split())}", file=sys.stderr)
    if output is not None:
        try:
            output.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--output {output}: cannot write there: {error.strerror}") from None
    if format_ is Format.JSON:
        print_json({**what, "file": None if output is None else str(output), "text": None if output else text,
                    "remarks": remarks})  # fmt: skip
    elif output is None:
        sys.stdout.write(text)
    else:
        print(f"{output}: {what['fabric']} as {what['format']}")
