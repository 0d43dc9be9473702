"""One run of the collective bench: fabric, ranks, rows as they come, result."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from fauxrdma import __version__
from fauxrdma.cli.job import CheckedJob, JobSpec, check_job, counted, describe_pace
from fauxrdma.collectives.algorithms import ALGORITHMS
from fauxrdma.communicator.settings import CollectiveSettings
from fauxrdma.communicator.settings.algorithm_rules import ALGO_VARIABLE, parse_own_algo
from fauxrdma.errors import ConfigError
from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.lab.launcher import RankLine, run_job
from fauxrdma.lab.local import LocalLab
from fauxrdma.perf.coll.accuracy import verifiable
from fauxrdma.perf.coll.operations import Case
from fauxrdma.perf.coll.prediction import Predictor
from fauxrdma.perf.coll.rank_program import ROW_MARK
from fauxrdma.perf.coll.results import BenchResult, Half, MeasuredRow, Row, Seat
from fauxrdma.perf.coll.sweep import Sweep
from fauxrdma.topology.loading import over_transport
from fauxrdma.units import format_bytes
from fauxrdma.wire.fabric_messages import FabricReport

__all__ = ["CollJob", "check_coll", "run_coll"]

_DEBT_LIMIT_PERCENT = 5.0


@dataclass(frozen=True, slots=True)
class CollJob:
    """A bench that can be run."""

    job: CheckedJob
    sweep: Sweep
    settings: CollectiveSettings

    @property
    def world_size(self) -> int:
        """Ranks."""
        return self.job.placement.world_size


def check_coll(spec: JobSpec, sweep_of: Callable[[int], Sweep]) -> CollJob:
    """Find what is wrong before any process is started; `sweep_of` makes the sweep for a number of ranks. Raises
    ConfigError."""
    job = check_job(replace(spec, command=["-m", "fauxrdma.perf.coll.rank_program"]))
    world_size = job.placement.world_size
    sweep = sweep_of(world_size)
    if spec.algorithm is not None:
        operation = sweep.operation
        if operation not in ALGORITHMS:
            raise ConfigError(
                f"--algorithm {spec.algorithm}: {operation} has no algorithms to choose from; leave it out"
            )
        if operation not in parse_own_algo(spec.algorithm, ALGORITHMS).by_operation:
            names = ", ".join(["auto", "file:PATH", *ALGORITHMS[operation]])
            raise ConfigError(f"--algorithm {spec.algorithm}: {operation} has no such; choose {names}")
    if sweep.operation == "sendrecv" and world_size < 2:
        raise ConfigError("sendrecv needs two ranks or more: raise --nodes or --gpus")
    environment = dict(os.environ)
    if spec.algorithm is not None:
        environment[ALGO_VARIABLE] = spec.algorithm
    settings = CollectiveSettings.from_env(ALGORITHMS, environment)
    if sweep.operation in ALGORITHMS:
        settings.algorithms.algorithm(sweep.operation)  # raises where NCCL_ALGO leaves none
    if sweep.verify and not any(verifiable(case.element, case.reduction) for (case, *_) in sweep.groups(world_size)):
        raise ConfigError("--verify is for sums and averages of half, bfloat16 and float: choose one with -d and -o")
    _check_memory(sweep, world_size)
    return CollJob(job, sweep, settings)


def _check_memory(sweep: Sweep, world_size: int) -> None:
    """Refuse buffers that this machine cannot hold, before it begins to swap."""
    largest = max(sweep.sizes)
    own = largest // world_size
    send = own if sweep.operation in ("all_gather", "gather") else largest
    receive = own if sweep.operation in ("reduce_scatter", "scatter") else largest
    needed = (send + receive) * world_size
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        raise ConfigError(
            f"-e {largest}: the buffers of {world_size} ranks take {format_bytes(needed)}, and this machine has "
            f"{format_bytes(there)}: lower -e, or use fewer ranks"
        )


def run_coll(
    coll: CollJob, on_row: Callable[[Row], None], on_stage: Callable[[str], None], on_line: Callable[[RankLine], None]
) -> BenchResult:
    """Start the fabric, run the bench, tear everything down. `on_row` gets each row when it is measured, `on_line` what
    ranks print besides. Raises what LocalLab and run_job raise."""
    spec, sweep, placement = coll.job.spec, coll.sweep, coll.job.placement
    predictor = Predictor(SubnetManager(coll.job.topology, spec.seed), placement.places, coll.settings)
    on_stage("predicting")
    cases = _by_row(coll)
    for case in cases.values():  # before anything runs, so that it does not disturb what does
        predictor.predicted_ns(case, predictor.algorithm(case))
    on_stage(f"starting 1 subnet manager and {counted(spec.nodes, 'HCA daemon')}")
    rows: list[Row] = []

    def take(line: RankLine) -> None:
        if line.rank or line.stream != "stdout" or not line.text.startswith(ROW_MARK):
            on_line(line)
            return
        measured = MeasuredRow.model_validate_json(line.text.removeprefix(ROW_MARK))
        case = cases[measured.type, measured.redop, measured.root, measured.count]
        measured.algorithm = predictor.name_of(case, measured.algorithm)
        predicted_ns = predictor.predicted_ns(case, measured.algorithm)
        rows.append(_with_prediction(measured, predicted_ns, shaped=spec.clock != "none"))
        on_row(rows[-1])

    lab = LocalLab(
        over_transport(spec.fabric, spec.transport),
        spec.nodes,
        spec.gpus,
        clock=spec.clock,
        dilation=spec.dilation,
        seed=spec.seed,
        profile=spec.profile,
        log_dir=spec.log_dir,
        master_port=spec.master_port,
        routing=spec.routing,
        placement=spec.placement,
        on_nodes=spec.on_nodes,
        events=spec.events,
    )
    with lab:
        pace = describe_pace(lab)
        on_stage(f"running {counted(lab.world_size, 'rank')}, {pace}")
        run_job(
            lab,
            [*spec.command, sweep.model_dump_json()],
            environment={ALGO_VARIABLE: spec.algorithm} if spec.algorithm is not None else None,
            on_line=take,
            on_notice=on_stage,
        )
        report = lab.report()
    return _result(coll, rows, report)


def _by_row(coll: CollJob) -> dict[tuple[str, str, int, int], Case]:
    return {
        (case.element.name, case.reduction or "none", case.root, case.count): case
        for cases in coll.sweep.groups(coll.world_size)
        for case in cases
    }


def _with_prediction(measured: MeasuredRow, predicted_ns: int | None, *, shaped: bool) -> Row:
    predicted_us = None if predicted_ns is None else predicted_ns / 1e3
    ratio = measured.out_of_place.time_us / predicted_us if shaped and predicted_us else None
    return Row(**dict(measured), predicted_us=predicted_us, ratio=ratio)


def _result(coll: CollJob, rows: list[Row], report: FabricReport) -> BenchResult:
    spec, topology = coll.job.spec, coll.job.topology
    halves: list[Half] = [half for row in rows for half in (row.out_of_place, row.in_place)]
    failed = sum(bool(half.wrong) for half in halves) + sum(
        row.verify is not None and row.verify.failed for row in rows
    )
    shaped = report.clock != "none" and report.debt_samples > 0
    return BenchResult(
        fauxrdma_version=__version__,
        operation=coll.sweep.operation,
        fabric=spec.fabric,
        transport=topology.transport,
        clock=report.clock,
        time="wall time" if report.clock == "none" else "fabric time",
        dilation=report.dilation,
        seed=spec.seed,
        placement=coll.job.placement.name,
        places=[
            Seat(rank=rank, node=place.node, gpu=place.gpu, hca=place.hca)
            for rank, place in enumerate(coll.job.placement.places)
        ],
        sweep=coll.sweep,
        rows=rows,
        out_of_bounds=failed,
        average_busbw_gb_per_s=sum(half.busbw_gb_per_s for half in halves) / max(1, len(halves)),
        debt_p50_percent=report.debt_p50_percent if shaped else None,
        debt_p99_percent=report.debt_p99_percent if shaped else None,
        notes=list(_notes(coll, report)),
    )


def _notes(coll: CollJob, report: FabricReport) -> Iterator[str]:
    if report.clock == "none":
        yield "nothing was shaped (--clock none): times are wall time of this host, predictions are fabric time"
    elif report.debt_p50_percent > _DEBT_LIMIT_PERCENT:
        yield (
            f"THE HOST WAS TOO SLOW to be trusted: half of the messages took {report.debt_p50_percent:.0f} % or more "
            f"longer than modelled; raise --dilation above {report.dilation:g}, or use fewer ranks"
        )
    if coll.sweep.what.rooted and not coll.sweep.blocking and report.clock != "none":
        yield "calls back to back overlap where ranks need not wait for each other; -z 1 times one call, as predicted"
    if report.retransmits:
        yield f"{report.retransmits} frames were sent again"
