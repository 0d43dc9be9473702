"""`fauxrdma compare`: the same job on several fabrics, in one table, a JSON file and an HTML report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fauxrdma.cli.options import (
    Clock,
    ClockOption,
    DilationOption,
    Format,
    FormatOption,
    GpusOption,
    LogDirOption,
    MasterPortOption,
    NodesOption,
    ProfileOption,
    RoutingOption,
    SeedOption,
)

__all__ = ["compare"]


def compare(
    context: typer.Context,
    fabrics: Annotated[
        list[str],
        typer.Argument(
            metavar="FABRIC",
            help="Presets (see `fauxrdma topo list`) or YAML files; after -- the script each rank runs.",
            show_default=False,
        ),
    ],
    nodes: NodesOption = 2,
    gpus: GpusOption = 1,
    clock: ClockOption = Clock.PACED,
    dilation: DilationOption = "auto",
    seed: SeedOption = 0,
    routing: RoutingOption = None,
    profile: ProfileOption = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Directory for comparison.json and report.html.")
    ] = Path("fauxrdma-out"),
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print every line of every rank.")] = False,
    log_dir: LogDirOption = None,
    master_port: MasterPortOption = 0,
    format_: FormatOption = Format.TABLE,
) -> None:
    """Run a script on several fabrics, one after the other, and compare what they did.

    For each fabric one subnet manager and one HCA daemon per node are started, then one rank per GPU, the way torchrun
    does it. The script needs no change: it finds the backend's name, fauxrdma, in the environment variable
    DIST_BACKEND. If its rank 0 prints a last line of name=value pairs (loss=0.12 steps=55), they become rows of the
    table; steps gives the time per step.

    \b
    Examples:
      fauxrdma compare seed-rail8 fat-tree --nodes 2 --gpus 2 -- examples/train_digits.py
      fauxrdma compare fat-tree fat-tree:ndr my-fabric.yaml --nodes 4 -- train.py --epochs 2
      fauxrdma compare seed-rail8 seed-two-switch --format json -- examples/train_digits.py | jq .verdict
    """
    from rich.text import Text

    from fauxrdma.cli.job import JobSpec, check_job, common_dilation, run_on_fabric
    from fauxrdma.cli.output import console
    from fauxrdma.cli.progress import make_progress
    from fauxrdma.errors import ConfigError
    from fauxrdma.report.files import check_writable, compare_runs, write_report
    from fauxrdma.report.table import comparison_table

    repeated = sorted({fabric for fabric in fabrics if fabrics.count(fabric) > 1})
    if repeated:
        raise ConfigError(f"{repeated[0]} is given twice: a fabric is compared with others, not with itself")
    spec = JobSpec(
        context.obj or [],
        nodes,
        gpus,
        clock.value,
        dilation,
        seed,
        profile,
        log_dir,
        master_port=master_port,
        routing=routing,
    )
    topologies = check_job(spec, fabrics)
    check_writable(output)
    spec = replace(spec, dilation=common_dilation(spec, list(topologies.values())))
    with make_progress(fabrics, verbose) as progress:
        runs = [run_on_fabric(spec, fabric, progress) for fabric in fabrics]
    comparison = compare_runs(runs)
    json_path, html_path = write_report(comparison, topologies, output)
    if format_ is Format.JSON:
        print(comparison.model_dump_json(indent=2))
        return
    out = console()
    out.print()
    out.print(comparison_table(runs))
    for run in runs:
        for note in run.notes:
            out.print(Text.assemble(("note ", "bold red"), f"{run.fabric}: {note}"))
    if comparison.verdict:
        out.print(Text(f"\n{comparison.verdict}\n", style="bold"))
    print(f"report: {html_path}   data: {json_path}")
