"""From a fabric's report and the ranks' records to a RunResult."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fauxrdma.collectives.algorithms import ALGORITHMS
from fauxrdma.report.prediction import all_reduce_ns
from fauxrdma.report.rank_statistics import match_calls, read_rank_records, summarise, timing
from fauxrdma.report.results import Debt, FaultOutcome, LinkErrorCount, LinkLoad, RankSeat, Route, RunResult
from fauxrdma.topology.graph import Topology
from fauxrdma.topology.placement import Placement, choose_placement, rails_of_places
from fauxrdma.topology.placement.choosing import BLOCK
from fauxrdma.wire.fabric_messages import FabricReport, PairReport

__all__ = ["DEBT_LIMIT_PERCENT", "RunInputs", "build_run", "link_loads"]

DEBT_LIMIT_PERCENT = 5.0
"""p99 of the fidelity debt above which a report warns that the host was too slow."""

_MAX_SAMPLES = 10_000


@dataclass(frozen=True, slots=True)
class RunInputs:
    """What is known about a run apart from what was measured in it. `fabric` is the text the user typed; without a
    `placement` ranks sit in blocks, without a `name` the run is called as its fabric."""

    fabric: str
    topology: Topology
    nodes: int
    gpus: int
    seed: int
    command: list[str]
    values: dict[str, str] = field(default_factory=dict)
    wall_s: float = 0.0
    placement: Placement | None = None
    algorithm: str = ""
    name: str = ""

    def placed(self) -> Placement:
        """Where the ranks sat."""
        return self.placement or choose_placement(BLOCK, self.topology, self.gpus, on_nodes=range(self.nodes))


def build_run(inputs: RunInputs, report: FabricReport, stats_dir: Path) -> RunResult:
    """The result of a job that ended well."""
    placement = inputs.placed()
    records = read_rank_records(stats_dir)
    calls = match_calls(records)
    collectives = summarise(calls, placement.world_size)
    main = next((c for c in collectives if c.op == "all_reduce" and c.nbytes), None)
    samples = [call.duration_ns for call in calls if (call.op, call.nbytes) == (main.op, main.nbytes)] if main else []
    modelled_ns = None
    if main is not None and report.clock != "none":
        modelled_ns = all_reduce_ns(inputs.topology, placement.places, main.nbytes, main.algorithm)
    debt = None
    if report.clock == "paced" and report.debt_samples:
        debt = Debt(
            p50_percent=report.debt_p50_percent, p99_percent=report.debt_p99_percent, samples=report.debt_samples
        )
    run = RunResult(
        name=inputs.name or inputs.fabric,
        fabric=inputs.fabric,
        topology=inputs.topology.name,
        description=inputs.topology.description,
        nodes=inputs.nodes,
        gpus=inputs.gpus,
        transport=inputs.topology.transport,
        algorithm=inputs.algorithm,
        placement=placement.name,
        places=_seats(inputs.topology, placement),
        spine_bytes=_spine_bytes(inputs.topology, report),
        command=list(inputs.command),
        clock=report.clock,
        dilation=report.dilation,
        seed=inputs.seed,
        routing=report.routing,
        routing_messages=list(report.routing_messages),
        values=dict(inputs.values),
        timing=timing(calls, _steps(inputs.values), main),
        collectives=collectives,
        main_all_reduce=main,
        modelled_all_reduce_ns=modelled_ns,
        main_all_reduce_ns=samples[:_MAX_SAMPLES],
        route=_route(report.pairs),
        links=link_loads(report),
        debt=debt,
        retransmits=report.retransmits,
        faults=_faults(report),
        link_errors=[
            LinkErrorCount(
                link=one.link,
                symbol_errors=one.symbol_errors,
                link_error_recoveries=one.link_error_recoveries,
                frames_lost=one.frames_lost,
            )
            for one in report.link_errors
        ],
        elapsed_ns=report.elapsed_ns,
        wall_s=inputs.wall_s if report.clock != "virtual" else None,
        notes=[],
    )
    run.notes.extend(_notes(run, len(records), sum(record.dropped for record in records)))
    return run


def _seats(topology: Topology, placement: Placement) -> list[RankSeat]:
    rails = rails_of_places(topology, placement.places)
    return [
        RankSeat(rank=rank, node=place.node, gpu=place.gpu, hca=place.hca, rail=rail)
        for rank, (place, rail) in enumerate(zip(placement.places, rails, strict=True))
    ]


def _faults(report: FabricReport) -> list[FaultOutcome]:
    return [
        FaultOutcome(
            number=fault.number,
            kind=fault.kind,
            text=fault.text,
            state=fault.state,
            began_ns=fault.began_ns if fault.began_ns >= 0 else None,
            ended_ns=fault.ended_ns if fault.ended_ns >= 0 else None,
        )
        for fault in report.faults
    ]


def _spine_bytes(topology: Topology, report: FabricReport) -> int:
    tiers = {switch.name: switch.tier or 0 for switch in topology.switches()}
    return sum(link.nbytes for link in report.links if tiers.get(link.src) == 0 and link.dst in tiers)


def _steps(values: dict[str, str]) -> int | None:
    text = values.get("steps", "")
    return int(text) if text.isdecimal() and int(text) > 0 else None


def _route(pairs: Sequence[PairReport]) -> Route | None:
    used = [pair for pair in pairs if pair.nbytes > 0]
    total = sum(pair.nbytes for pair in used)
    if not total:
        return None
    return Route(
        switches_mean=sum(pair.switches * pair.nbytes for pair in used) / total,
        switches_max=max(pair.switches for pair in used),
        latency_mean_ns=sum(pair.latency_ns * pair.nbytes for pair in used) / total,
        pairs=len(used),
    )


def link_loads(report: FabricReport) -> list[LinkLoad]:
    """The links that carried something, the busiest first."""
    used = [link for link in report.links if link.nbytes > 0]
    # Bytes over rate is the time the link needed: it ranks links of unequal rate where nothing was shaped.
    used.sort(key=lambda link: (-link.utilisation, -link.nbytes / link.rate_bps, link.name))
    return [
        LinkLoad(
            name=link.name,
            src=link.src,
            dst=link.dst,
            kind=link.kind,
            rate_bps=link.rate_bps,
            nbytes=link.nbytes,
            utilisation=link.utilisation,
        )
        for link in used
    ]


def _notes(run: RunResult, records: int, dropped: int) -> list[str]:
    notes = []
    if run.debt is not None and run.debt.p99_percent > DEBT_LIMIT_PERCENT:
        notes.append(_debt_note(run.debt, run.dilation))
    if run.clock == "none":
        notes.append("nothing was shaped (--clock none): times are wall time of this host, not of the fabric")
    if not records:
        notes.append(
            "no rank recorded a collective: does the script use the backend in the environment variable DIST_BACKEND?"
        )
    elif records < run.world_size:
        notes.append(f"only {records} of {run.world_size} ranks left a record of their collectives")
    used = run.main_all_reduce.algorithm if run.main_all_reduce is not None else ""
    if run.algorithm in ALGORITHMS["all_reduce"] and used and used != run.algorithm:
        notes.append(f"{run.algorithm} was asked for, but the main all-reduce used {used}")
    if dropped:
        notes.append(f"{dropped} operations past the recording limit are in no statistic")
    if run.timing.steps is None and records:
        notes.append("the script printed no steps=N as its last name=value line, so there is no time per step")
    begun = [fault for fault in run.faults if fault.began_ns is not None]
    if begun:
        more = f" and {len(begun) - 3} more" if len(begun) > 3 else ""
        notes.append(f"{len(begun)} faults befell the fabric: {'; '.join(f.text for f in begun[:3])}{more}")
    late = len(run.faults) - len(begun)
    if late:
        notes.append(f"{late} declared faults had not begun when the run ended")
    if run.retransmits:
        notes.append(f"{run.retransmits} frames were sent again")
    return notes


def _debt_note(debt: Debt, dilation: float) -> str:
    fix = f"Raise --dilation above {dilation:g}, use fewer ranks, or end other work on this machine."
    if debt.p50_percent > DEBT_LIMIT_PERCENT:
        return (
            f"THE HOST WAS TOO SLOW to be trusted: half of the operations took {debt.p50_percent:.0f} % or more longer "
            f"than modelled, 1 % of them {debt.p99_percent:.0f} % or more (limit {DEBT_LIMIT_PERCENT:g} %). {fix}"
        )
    return (
        f"the host was TOO SLOW FOR THE TAILS: 1 % of the operations took {debt.p99_percent:.0f} % or more longer than "
        f"modelled (limit {DEBT_LIMIT_PERCENT:g} %), though half of them at most {debt.p50_percent:.1f} %. {fix}"
    )
