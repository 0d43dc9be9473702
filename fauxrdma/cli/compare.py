"""`fauxrdma compare`: a job over fabrics, transports, placements and algorithms, in one table, a JSON file and an HTML
report."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fauxrdma.cli.completion import complete_algorithm, complete_fabric, complete_placement, complete_transport
from fauxrdma.cli.options import (
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
    ProfileOption,
    RoutingOption,
    SeedOption,
    StrictOption,
    ThresholdOption,
)
from fauxrdma.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from fauxrdma.report.results import Comparison

__all__ = ["compare"]


def compare(
    context: typer.Context,
    fabrics: Annotated[
        list[str],
        typer.Argument(
            metavar="FABRIC",
            help="Presets (see `fauxrdma topo list`) or YAML files; after -- the script each rank runs.",
            show_default=False,
            autocompletion=complete_fabric,
        ),
    ],
    nodes: NodesOption = 2,
    gpus: GpusOption = 1,
    placement: Annotated[
        str,
        typer.Option(
            "--placement",
            metavar="HOW,...",
            help="Which rank sits where: block, cyclic, rail-aligned, random[:SEED], or files with a line "
            "`node gpu [hca]` for each rank.",
            autocompletion=complete_placement,
        ),
    ] = "block",
    on_nodes: OnNodesOption = None,
    transport: Annotated[
        str | None,
        typer.Option(
            "--transport",
            metavar="NAME,...",
            help="infiniband, rocev2, rocev1, iwarp, or several of them.  [default: the fabric's]",
            autocompletion=complete_transport,
            show_default=False,
        ),
    ] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(
            "--algorithm",
            metavar="NAME,...",
            help="What collectives use (FAUXRDMA_ALGO): ring, hierarchical, auto, ...  [default: the ranks' choice]",
            autocompletion=complete_algorithm,
            show_default=False,
        ),
    ] = None,
    script: Annotated[
        list[str] | None,
        typer.Option(
            "--script",
            metavar="'SCRIPT ARGS'",
            help="A script beside that after --; may be repeated.",
            show_default=False,
        ),
    ] = None,
    clock: ClockOption = Clock.PACED,
    dilation: DilationOption = "auto",
    seed: SeedOption = 0,
    events: EventsOption = None,
    routing: RoutingOption = None,
    profile: ProfileOption = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Directory for comparison.json and report.html.")
    ] = Path("fauxrdma-out"),
    threshold: ThresholdOption = None,
    strict: StrictOption = False,
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

    With several placements, transports, algorithms or scripts, every one is run with every other, and the table has a
    row for each combination. What cannot be is refused before anything starts.

    \b
    Examples:
      fauxrdma compare seed-rail8 fat-tree --nodes 2 --gpus 2 -- examples/train_digits.py
      fauxrdma compare fat-tree fat-tree:ndr my-fabric.yaml --nodes 4 -- train.py --epochs 2
      fauxrdma compare seed-rail8 seed-two-switch --format json -- examples/train_digits.py | jq .verdict
      fauxrdma compare seed-rail8 --gpus 2 --placement block,cyclic,rail-aligned -- train.py
      fauxrdma compare seed-rail8 fat-tree --gpus 2 --transport infiniband,rocev2 --algorithm ring,hierarchical \\
        --script "train.py --batch 32" --script "train.py --batch 256"
    """
    from fauxrdma.cli.combinations import Axes, check_all, combine, split_list
    from fauxrdma.cli.job import JobSpec, run_on_fabric
    from fauxrdma.cli.output import console
    from fauxrdma.cli.progress import make_progress
    from fauxrdma.cli.threshold_exit import fail_unless_met
    from fauxrdma.report.files import check_writable, compare_runs, write_report
    from fauxrdma.report.thresholds import judge, parse_threshold
    from fauxrdma.topology.placement.choosing import parse_nodes

    thresholds = [parse_threshold(text) for text in threshold or []]
    commands = [context.obj] if context.obj else []
    commands += [_words(text) for text in script or []]
    base = JobSpec(
        commands[0] if commands else [],
        fabrics[0],
        nodes,
        gpus,
        clock.value,
        dilation,
        seed,
        profile=profile,
        log_dir=log_dir,
        master_port=master_port,
        routing=routing,
        events=events,
        on_nodes=parse_nodes(on_nodes) if on_nodes is not None else None,
    )
    axes = Axes(
        commands or [[]],
        fabrics,
        split_list("--transport", transport) or [None],
        split_list("--placement", placement),
        split_list("--algorithm", algorithm) or [None],
    )
    jobs = check_all(combine(base, axes))
    check_writable(output)
    with make_progress([job.spec.called for job in jobs], verbose) as progress:
        runs = [run_on_fabric(job.spec, progress) for job in jobs]
    runs = [run.model_copy(update={"thresholds": judge(run, thresholds)}) for run in runs]
    comparison = compare_runs(runs)
    json_path, html_path = write_report(comparison, {job.spec.called: job.topology for job in jobs}, output)
    if format_ is Format.JSON:
        print(comparison.model_dump_json(indent=2))
        fail_unless_met(runs, strict=strict)
        return
    print_comparison(comparison, console())
    print(f"report: {html_path}   data: {json_path}")
    fail_unless_met(runs, strict=strict)


def print_comparison(comparison: Comparison, out: Console) -> None:
    """The table, the notes and the verdict."""
    from rich.text import Text

    from fauxrdma.report.dimensions import is_product
    from fauxrdma.report.notes import common_notes
    from fauxrdma.report.product_table import product_table
    from fauxrdma.report.table import comparison_table

    runs = comparison.runs
    out.print()
    out.print(product_table(runs) if is_product(runs) else comparison_table(runs))
    for who, note in common_notes(runs):
        out.print(Text.assemble(("note ", "bold red"), f"{who}: {note}"))
    if comparison.verdict:
        out.print(Text(f"\n{comparison.verdict}\n", style="bold"))


def _words(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"--script {text!r}: {error}") from None
    if not words:
        raise ConfigError("--script is empty: write it as --script 'train.py --epochs 2'")
    return words
