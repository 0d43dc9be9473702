"""`fauxrdma coll`: collectives measured as nccl-tests measures them, with every element checked."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

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
    OnNodesOption,
    PlacementOption,
    ProfileOption,
    RoutingOption,
    SeedOption,
    TransportOption,
)

if TYPE_CHECKING:
    from fauxrdma.cli.coll_run import CollJob
    from fauxrdma.lab.launcher import RankLine
    from fauxrdma.perf.coll.results import BenchResult, Row

__all__ = ["coll"]


def coll(
    operation: Annotated[
        str,
        typer.Argument(
            help="all_reduce, reduce, broadcast, all_gather, reduce_scatter, all_to_all, gather, scatter or sendrecv.",
            show_default=False,
        ),
    ],
    fabric: Annotated[
        str,
        typer.Argument(help="A preset (see `fauxrdma topo list`) or a YAML file.", autocompletion=complete_fabric),
    ] = "seed-rail8",
    first: Annotated[str, typer.Option("--minbytes", "-b", metavar="SIZE", help="Smallest size.")] = "32M",
    last: Annotated[str, typer.Option("--maxbytes", "-e", metavar="SIZE", help="Largest size.")] = "32M",
    step: Annotated[
        str | None,
        typer.Option(
            "--stepbytes", "-i", metavar="SIZE", help="From one size to the next.  [default: 1M]", show_default=False
        ),
    ] = None,
    factor: Annotated[
        int | None,
        typer.Option("--stepfactor", "-f", help="Multiply sizes by this instead, as -f 2.", show_default=False),
    ] = None,
    iterations: Annotated[
        int,
        typer.Option(
            "--iters",
            "-n",
            min=0,
            help="Timed calls of each size.  [default: 20, fewer of long ones]",
            show_default=False,
        ),
    ] = 0,
    warm_up: Annotated[
        int, typer.Option("--warmup_iters", "-w", min=0, help="Calls before that, of the largest and smallest size.")
    ] = 1,
    datatype: Annotated[
        str,
        typer.Option(
            "--datatype",
            "-d",
            metavar="TYPE|all",
            help="int8 to uint64, half, bfloat16, float, double, complex64, complex128 or bool.",
        ),
    ] = "float",
    op: Annotated[
        str,
        typer.Option("--op", "-o", metavar="OP|all", help="sum, prod, max, min, avg; band, bor, bxor of integers."),
    ] = "sum",
    root: Annotated[str, typer.Option("--root", "-r", metavar="RANK|all", help="Of operations that have one.")] = "0",
    check: Annotated[int, typer.Option("--check", "-c", min=0, help="Runs whose results are checked; 0: none.")] = 1,
    average: Annotated[
        int,
        typer.Option("--average", "-a", min=0, max=3, help="Over ranks: 0 rank 0's time, 1 mean, 2 least, 3 most."),
    ] = 1,
    blocking: Annotated[
        int,
        typer.Option("--blocking", "-z", min=0, max=1, help="1: a barrier before each call, which is timed by itself."),
    ] = 0,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify", help="Also sum random floats, twice, and hold them against float64 and against each other."
        ),
    ] = False,
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Emulated nodes.")] = 2,
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
    log_dir: LogDirOption = None,
    master_port: MasterPortOption = 0,
    format_: FormatOption = Format.TABLE,
) -> None:
    """Measure a collective over a fabric, as nccl-tests does, and check every element of every rank.

    A fabric is started with one rank per GPU. Table, options and rules are those of nccl-tests; times are fabric time
    (with --clock none: wall time). Beside them stands what the model of the fabric predicts for the algorithm that was
    used. Exit code 1 when an element is wrong.

    \b
    Examples:
      fauxrdma coll all_reduce -b 8 -e 128M -f 2
      fauxrdma coll all_reduce fat-tree --nodes 2 --gpus 2 -b 1K -e 16M -f 4 --algorithm auto
      fauxrdma coll all_to_all seed-rail8 --nodes 2 --gpus 4 -b 1M -e 4M -f 2 --placement cyclic
      fauxrdma coll reduce -b 64K -e 64K -d all -o all -r all --clock none
      fauxrdma coll broadcast -b 8 -e 1M -f 8 -z 1 -n 50 -w 5
      fauxrdma coll all_reduce -b 4M -e 4M -d half --verify
      fauxrdma coll all_gather -b 1M -e 1M --format json
    """
    from fauxrdma.cli.coll_run import check_coll, run_coll
    from fauxrdma.cli.job import JobSpec
    from fauxrdma.errors import CheckFailed
    from fauxrdma.perf.coll.choices import choose_operation, choose_reductions, choose_roots, choose_sizes, choose_types
    from fauxrdma.perf.coll.sweep import Sweep
    from fauxrdma.topology.placement.choosing import parse_nodes

    what = choose_operation(operation)
    sizes = choose_sizes(first, last, step, factor)
    types = choose_types(datatype)
    reductions = choose_reductions(op, types) if what.reduces else []

    def sweep_of(world_size: int) -> Sweep:
        return Sweep(
            operation=what.name,
            sizes=sizes,
            types=[one.name for one in types],
            reductions=reductions,
            roots=choose_roots(root, what, world_size),
            iterations=iterations,
            warm_up=warm_up,
            check=check,
            average=average,
            blocking=bool(blocking),
            verify=verify,
        )

    spec = JobSpec(
        [],
        fabric,
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
        placement=placement,
        on_nodes=parse_nodes(on_nodes) if on_nodes is not None else None,
        transport=transport,
        algorithm=algorithm,
    )
    bench = check_coll(spec, sweep_of)
    with _Display(bench, f"{factor}(factor)" if factor is not None else f"{step or '1M'}(bytes)", format_) as display:
        result = run_coll(bench, display.row, display.stage, display.line)
    display.result(result)
    if result.out_of_bounds:
        raise CheckFailed(
            f"{result.out_of_bounds} of {2 * len(result.rows)} measurements had wrong elements or failed --verify: see "
            "#wrong and bits"
        )


class _Display:
    """Rows on standard output as they come; on standard error what is going on, in place on a terminal."""

    def __init__(self, bench: CollJob, step: str, format_: Format) -> None:
        self._bench = bench
        self._step = step
        self._json = format_ is Format.JSON
        self._live = sys.stderr.isatty()
        self._total = sum(len(cases) for cases in bench.sweep.groups(bench.world_size))
        self._rows = 0

    def __enter__(self) -> _Display:
        if not self._json:
            from fauxrdma.perf.coll.table import column_lines, setup_line

            job = self._bench.job
            print(setup_line(self._bench.sweep, job.spec.gpus, self._step))
            print("#\n# Using devices")
            for rank, place in enumerate(job.placement.places):
                print(f"#  Rank {rank:>2} on n{place.node} device {place.gpu:>2} [hca{place.hca}] of {job.spec.fabric}")
            shaped = job.spec.clock != "none"
            print(f"#\n# Times are {'fabric time' if shaped else 'wall time of this host, nothing is shaped'}", end="")
            print("; predicted: by the model of the fabric alone, in fabric time\n#")
            print("\n".join(column_lines(self._bench.sweep.verify)), flush=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()

    def _clear(self) -> None:
        if self._live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def stage(self, text: str) -> None:
        """Something new has begun."""
        self._clear()
        fabric = self._bench.job.spec.fabric
        print(f"{fabric}: {text}", end="" if self._live else "\n", file=sys.stderr, flush=True)

    def line(self, line: RankLine) -> None:
        """A rank said something else than a row."""
        self._clear()
        print(f"{line.prefix} {line.text}", file=sys.stderr, flush=True)

    def row(self, row: Row) -> None:
        """A row was measured."""
        from fauxrdma.perf.coll.table import row_line

        self._rows += 1
        self._clear()
        if not self._json:
            print(row_line(row, self._bench.sweep.verify), flush=True)
        if self._live and self._rows < self._total:
            self.stage(f"{self._rows} of {self._total} measured")

    def result(self, result: BenchResult) -> None:
        """All is done."""
        if self._json:
            print(result.model_dump_json(indent=2))
            return
        from fauxrdma.perf.coll.table import footer_lines

        print("\n".join(footer_lines(result)))
