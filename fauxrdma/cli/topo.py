"""`fauxrdma topo`: list the presets, show a fabric, check a fabric's file."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from fauxrdma.cli.options import FabricArgument, Format, FormatOption
from fauxrdma.cli.topo_files import Drawing, OutputOption, deliver, export, import_
from fauxrdma.errors import ConfigError

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Presets and fabric files: list, show, validate, export, import, and the schema of files.",
)
app.command("export")(export)
app.command("import")(import_)

MOST_PROBLEMS = 20
"""Mistakes of one file that are shown at once."""

NodesArgument = Annotated[
    int | None,
    typer.Option("--nodes", "-n", min=1, help="Nodes. Default: 2 for a preset, all for a file.", show_default=False),
]


@app.command("list")
def list_presets(format_: FormatOption = Format.TABLE) -> None:
    """List the presets, their options with the defaults, and the rates they come in.

    \b
    Examples:
      fauxrdma topo list
      fauxrdma topo list --format json
      fauxrdma topo show fat-tree:ndr,radix=40,oversubscription=2 --nodes 8
    """
    from fauxrdma.cli.output import print_json
    from fauxrdma.topology.presets import PRESETS, SPEEDS
    from fauxrdma.topology.presets.spec import ChosenPreset, common_options, own_options, parse_preset

    presets: list[ChosenPreset] = [chosen for name in PRESETS if (chosen := parse_preset(name)) is not None]
    if format_ is Format.JSON:
        print_json(
            {
                "presets": [
                    {
                        "name": chosen.name,
                        "summary": chosen.preset.summary,
                        "max_nodes": chosen.max_nodes,
                        "rate": chosen.speed.name,
                        "options": _described(own_options(type(chosen.preset))),
                    }
                    for chosen in presets
                ],
                "common_options": _described(common_options()),
                "rates_bps": {name: speed.cable.bits_per_s for name, speed in SPEEDS.items()},
            }
        )
        return
    width = max(map(len, PRESETS))
    for chosen in presets:
        options = " ".join(f"{key}={default}" for key, default, _ in own_options(type(chosen.preset)))
        print(f"{chosen.name:<{width}}  {chosen.preset.summary} (up to {chosen.max_nodes} nodes)")
        print(f"{'':{width}}  :{chosen.speed.name} {options}")
    print("\nEvery preset also has:")
    for key, default, what in common_options():
        print(f"  {f'{key}={default}':<{width + 9}}  {what}")
    rates = ", ".join(f":{name} ({speed.cable})" for name, speed in SPEEDS.items())
    print(f"\nA rate and options may follow the name, as in fat-tree:ndr,radix=40,nvlink=on. Rates: {rates}.")


def _described(options: list[tuple[str, str, str]]) -> list[dict[str, str]]:
    return [{"name": key, "default": default, "meaning": what} for key, default, what in options]


@app.command("show")
def show(
    fabric: FabricArgument,
    nodes: NodesArgument = None,
    svg: Annotated[
        Path | None, typer.Option("--svg", metavar="FILE", help="Draw every device into this file.", show_default=False)
    ] = None,
    as_: Annotated[
        Drawing | None,
        typer.Option("--as", help="Only a drawing: in the terminal, as SVG, as Mermaid text.", show_default=False),
    ] = None,
    output: OutputOption = None,
    format_: FormatOption = Format.TABLE,
) -> None:
    """Show a fabric: sizes, rates, latencies, and what is plugged in where.

    \b
    Examples:
      fauxrdma topo show seed-rail8
      fauxrdma topo show fat-tree:ndr --nodes 16 --svg fat-tree.svg
      fauxrdma topo show superpod --nodes 128 --as svg -o superpod.svg
      fauxrdma topo show seed-rail8 --as mermaid
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
    if as_ is not None:
        deliver(as_.of(topology) + "\n", output, format_, {"fabric": topology.name, "format": as_.value}, [])
    elif output is not None:
        raise ConfigError(f"--output {output} goes with --as: svg, mermaid or terminal")
    elif format_ is Format.JSON:
        print_json(topology.to_dict())
    else:
        print(f"{topology.name}: {topology.description}")
        print(f"{topology.switching} switches of {format_ns(topology.switch_latency_ns)}, MTU {topology.mtu}")
        print("\n".join(summarise(topology).lines()[1:]))
        print(f"\n{draw(topology)}")


@app.command("validate")
def validate(fabric: FabricArgument, nodes: NodesArgument = None, format_: FormatOption = Format.TABLE) -> int:
    """Check a fabric and report its cables, the ports of its switches, reachability and oversubscription.

    Every mistake of a file is shown with its line and column, and the exit code is 2.

    \b
    Examples:
      fauxrdma topo validate my-fabric.yaml
      fauxrdma topo validate fat-tree --nodes 72
      fauxrdma topo validate my-fabric.yaml --format json
      fauxrdma topo validate superpod,nvlink=off --nodes 127
    """
    from fauxrdma.cli.output import print_error, print_json
    from fauxrdma.topology.formats.registry import foreign_format
    from fauxrdma.topology.loading import is_fabric_file, load_topology
    from fauxrdma.topology.summary import summarise
    from fauxrdma.topology.switch_ports import cable_kinds, cable_lines, switch_lines, switch_ports

    warnings: list[str] = []
    if is_fabric_file(fabric) and foreign_format(fabric) is None:
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
        tiers = [
            {"tier": tier.name, "oversubscription": tier.oversubscription, "verdict": tier.verdict}
            for tier in summary.tiers
        ]
        report = {
            "islands": summary.islands,
            "tiers": tiers,
            "switch_ports": [switch.to_dict() for switch in switch_ports(topology)],
            "cable_kinds": [kind.to_dict() for kind in cable_kinds(topology)],
        }
        print_json({"fabric": fabric, "valid": True, **sizes, **report, "warnings": warnings})
    else:
        first, *others = summary.lines()
        print(f"valid: {first}, {summary.cables} cable{'' if summary.cables == 1 else 's'}")
        print("\n".join(others))
        pairs = "every HCA reaches every other" + (" of its island" if summary.islands > 1 else "")
        print(f"reachability: {pairs}")
        print("ports:")
        print("\n".join(f"  {line}" for line in switch_lines(topology)))
        print("cables by kind:")
        print("\n".join(f"  {line}" for line in cable_lines(topology)))
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
