"""`fauxrdma topo`: list the presets, show a fabric, check a fabric's file."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from fauxrdma.cli.options import Format, FormatOption
from fauxrdma.errors import ConfigError

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Presets and fabric files: list, show, validate, and the schema of files.",
)

MOST_PROBLEMS = 20
"""Mistakes of one file that are shown at once."""

FabricArgument = Annotated[
    str, typer.Argument(help="A preset (see `fauxrdma topo list`) or a YAML file.", show_default=False)
]
NodesArgument = Annotated[
    int | None,
    typer.Option("--nodes", "-n", min=1, help="Nodes. Default: 2 for a preset, all for a file.", show_default=False),
]


@app.command("list")
def list_presets(format_: FormatOption = Format.TABLE) -> None:
    """List the presets and the rates they come in.

    \b
    Examples:
      fauxrdma topo list
      fauxrdma topo list --format json
    """
    from fauxrdma.cli.output import print_json
    from fauxrdma.topology.presets import PRESETS, SPEEDS

    presets = list(PRESETS.values())
    if format_ is Format.JSON:
        print_json(
            {
                "presets": [{"name": p.name, "summary": p.summary, "max_nodes": p.max_nodes} for p in presets],
                "rates_bps": {name: speed.cable.bits_per_s for name, speed in SPEEDS.items()},
            }
        )
        return
    width = max(len(preset.name) for preset in presets)
    for preset in presets:
        print(f"{preset.name:<{width}}  {preset.summary} (up to {preset.max_nodes} nodes)")
    rates = ", ".join(f":{name} ({speed.cable})" for name, speed in SPEEDS.items())
    print(f"\nA rate may follow the name, as in {presets[0].name}:ndr. Rates: {rates}; hdr if none is given.")


@app.command("show")
def show(
    fabric: FabricArgument,
    nodes: NodesArgument = None,
    svg: Annotated[
        Path | None, typer.Option("--svg", metavar="FILE", help="Draw it into this file.", show_default=False)
    ] = None,
    format_: FormatOption = Format.TABLE,
) -> None:
    """Show a fabric: sizes, rates, latencies, and what is plugged in where.

    \b
    Examples:
      fauxrdma topo show seed-rail8
      fauxrdma topo show fat-tree:ndr --nodes 16 --svg fat-tree.svg
      fauxrdma topo show my-fabric.yaml --format json
    """
    from fauxrdma.cli.output import print_json
    from fauxrdma.topology.drawing import draw
    from fauxrdma.topology.loading import load_topology
    from fauxrdma.topology.summary import summarise
    from fauxrdma.units import format_ns

    topology = load_topology(fabric, nodes=nodes)
    if svg is not None:
        from fauxrdma.report.topology_svg import topology_svg

        try:
            svg.write_text(topology_svg(topology) + "\n")
        except OSError as error:
            raise ConfigError(f"--svg {svg}: cannot write there: {error.strerror}") from None
    if format_ is Format.JSON:
        print_json(topology.to_dict())
    else:
        print(f"{topology.name}: {topology.description}")
        print(f"{topology.switching} switches of {format_ns(topology.switch_latency_ns)}, MTU {topology.mtu}")
        print("\n".join(summarise(topology).lines()[1:]))
        print(f"\n{draw(topology)}")


@app.command("validate")
def validate(fabric: FabricArgument, nodes: NodesArgument = None, format_: FormatOption = Format.TABLE) -> int:
    """Check a fabric and report its ports, reachability, oversubscription and cables.

    Every mistake of a file is shown with its line and column, and the exit code is 2.

    \b
    Examples:
      fauxrdma topo validate my-fabric.yaml
      fauxrdma topo validate fat-tree --nodes 72
      fauxrdma topo validate my-fabric.yaml --format json
    """
    from fauxrdma.cli.output import print_error, print_json
    from fauxrdma.topology.loading import is_fabric_file, load_topology
    from fauxrdma.topology.summary import summarise

    warnings: list[str] = []
    if is_fabric_file(fabric):
        from fauxrdma.topology.custom import check_fabric_file, fabric_file_warnings

        problems = check_fabric_file(fabric)
        if problems:
            for problem in problems[:MOST_PROBLEMS]:
                print_error(problem.at(fabric))
            if len(problems) > MOST_PROBLEMS:
                print_error(f"{fabric}: and {len(problems) - MOST_PROBLEMS} more")
            if format_ is Format.JSON:
                print_json({"fabric": fabric, "valid": False, "problems": [asdict(problem) for problem in problems]})
            return ConfigError.exit_code
        warnings = [problem.at(fabric) for problem in fabric_file_warnings(fabric)]
    topology = load_topology(fabric, nodes=nodes)
    topology.validate()
    summary = summarise(topology)
    if format_ is Format.JSON:
        sizes = {"hosts": summary.hosts, "hcas": summary.hcas, "switches": summary.switches, "cables": summary.cables}
        print_json({"fabric": fabric, "valid": True, **sizes, "warnings": warnings})
    else:
        print(f"valid: {summary.lines()[0]}, {summary.cables} cables")
        for warning in warnings:
            print(f"fauxrdma: warning: {warning}", file=sys.stderr)
    return 0


@app.command("schema")
def schema(format_: FormatOption = Format.JSON) -> None:
    """Print the JSON schema of fabric files, by which editors complete keys and mark mistakes; or the keys as a table.

    \b
    Examples:
      fauxrdma topo schema > fabric.schema.json
      fauxrdma topo schema --format table
    """
    from fauxrdma.cli.output import print_json
    from fauxrdma.topology.schema import json_schema, keys

    if format_ is Format.JSON:
        print_json(json_schema())
        return
    known = keys()
    width = max(len(key.path) for key in known)
    for key in known:
        print(f"{key.path:<{width}}  {key.description} ({key.default})")
