"""`fauxrdma run`: a job on one fabric, its output passed through."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fauxrdma.cli.completion import complete_fabric
from fauxrdma.cli.options import (
    AlgorithmOption,
    Clock,
    ClockOption,
    DilationOption,
    EventsOption,
    Format,
    FormatOption,
    GpusOption,
    LogDirOption,
    MasterPortOption,
    NodesOption,
    OnNodesOption,
    PlacementOption,
    ProfileOption,
    RoutingOption,
    SeedOption,
    StrictOption,
    ThresholdOption,
    TransportOption,
)

__all__ = ["run"]


def run(
    context: typer.Context,
    fabric: Annotated[
        str,
        typer.Argument(
            metavar="FABRIC",
            help="A preset (see `fauxrdma topo list`) or a YAML file; after -- the script each rank runs.",
            show_default=False,
            autocompletion=complete_fabric,
        ),
    ],
    nodes: NodesOption = 2,
    gpus: GpusOption = 1,
    placement: PlacementOption = "block",
    on_nodes: OnNodesOption = None,
    transport: TransportOption = None,
    algorithm: AlgorithmOption = None,
    clock: ClockOption = Clock.PACED,
    dilation: DilationOption = "auto",
    seed: SeedOption = 0,
    events: EventsOption = None,
    routing: RoutingOption = None,
    profile: ProfileOption = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Write comparison.json and report.html into this directory.", show_default=False
        ),
    ] = None,
    prefix: Annotated[
        bool, typer.Option("--prefix/--no-prefix", help="Start every line with its node and rank, as [n0 r1].")
    ] = True,
    threshold: ThresholdOption = None,
    strict: StrictOption = False,
    log_dir: LogDirOption = None,
    compute: Annotated[
        str | None,
        typer.Option(
            "--compute",
            metavar="'[RANKS=]COST...'",
            help="With --clock virtual: what a rank's own computing costs: a time for each call (20us), a multiple of "
            "the CPU time it used (cpu*0.002), none; '20us 3=1ms' for ranks.  [default: the fabric's, or none]",
            show_default=False,
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            metavar="FILE",
            help="With --clock virtual: write what was posted, sent, arrived and completed when, as lines of JSON.",
            show_default=False,
        ),
    ] = None,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where the subnet manager listens; port 0 is any.")
    ] = "127.0.0.1:0",
    master_port: MasterPortOption = 0,
    format_: FormatOption = Format.TABLE,
) -> None:
    """Run a script on one fabric, one rank per GPU, and show what the fabric did.

    The ranks' output is passed through as it comes. When a rank fails, the others are ended, and the last lines of the
    one that failed first are repeated; everything that was started is gone when the command returns.

    \b
    Examples:
      fauxrdma run fat-tree --nodes 2 --gpus 2 -- examples/train_digits.py
      fauxrdma run seed-rail8 --clock none -- train.py --epochs 1
      fauxrdma run my-fabric.yaml --nodes 4 --output out -- -m my_package.train
      fauxrdma run seed-rail8 --nodes 4 --gpus 2 --placement rail-aligned --on-nodes 0,2-3 -- train.py
      fauxrdma run fat-tree --clock virtual --seed 1 --trace events.jsonl -- train.py
      fauxrdma run fat-tree --threshold 'all_reduce.busbw >= 0.1 * line_rate' -- examples/train_digits.py
    """
    from fauxrdma.cli.job import JobSpec, check_job, run_on_fabric
    from fauxrdma.cli.pass_through import PassThrough
    from fauxrdma.cli.run_output import print_result
    from fauxrdma.report.files import check_writable
    from fauxrdma.report.thresholds import judge, parse_threshold
    from fauxrdma.topology.placement.choosing import parse_nodes

    thresholds = [parse_threshold(text) for text in threshold or []]
    spec = JobSpec(
        context.obj or [],
        fabric,
        nodes,
        gpus,
        clock.value,
        dilation,
        seed,
        profile=profile,
        log_dir=log_dir,
        listen=listen,
        master_port=master_port,
        routing=routing,
        events=events,
        placement=placement,
        on_nodes=parse_nodes(on_nodes) if on_nodes is not None else None,
        transport=transport,
        algorithm=algorithm,
        trace=trace,
        compute=compute,
    )
    topology = check_job(spec).topology
    if output is not None:
        check_writable(output)
    result = run_on_fabric(spec, PassThrough(prefix, everything_to_stderr=format_ is Format.JSON))
    result = result.model_copy(update={"thresholds": judge(result, thresholds)})
    print_result(result, topology, output, format_, strict=strict)
