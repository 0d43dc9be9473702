"""One job on one fabric, from the checks before to the result: what `run` and `compare` share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fauxrdma.cli.algorithm_check import check_algorithm
from fauxrdma.cli.progress import Progress
from fauxrdma.communicator.settings.algorithm_rules import ALGO_VARIABLE
from fauxrdma.errors import ConfigError
from fauxrdma.fabric.dilation import choose_dilation
from fauxrdma.ib.profiles import DEFAULT_PROFILE, parse_profile
from fauxrdma.lab.job import run_and_report
from fauxrdma.lab.launcher import resolve_command
from fauxrdma.lab.local import LocalLab
from fauxrdma.report.results import RunResult
from fauxrdma.runtime.host_probe import host_bytes_per_s
from fauxrdma.topology.computing import check_ranks
from fauxrdma.topology.events_file import load_events
from fauxrdma.topology.graph import Topology
from fauxrdma.topology.loading import is_fabric_file, load_topology, over_transport
from fauxrdma.topology.placement import Placement, choose_placement
from fauxrdma.topology.placement.choosing import BLOCK

__all__ = [
    "NAME_SEPARATOR",
    "CheckedJob",
    "JobSpec",
    "check_job",
    "common_dilation",
    "counted",
    "describe_pace",
    "run_on_fabric",
    "run_on_lab",
]

NAME_SEPARATOR = " / "
"""Between the parts of a run's name."""


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What to run, where and how. `fabric` is as the user typed it; `name` is what the run is called beside others
    (default: the fabric). `environment` is added to that of the ranks, which start in `folder` (default: here)."""

    command: list[str]
    fabric: str
    nodes: int
    gpus: int
    clock: str
    dilation: str
    seed: int
    profile: str | None = None
    log_dir: Path | None = None
    listen: str = "127.0.0.1:0"
    master_port: int = 0
    routing: str | None = None
    placement: str = BLOCK
    on_nodes: list[int] | None = None
    transport: str | None = None
    algorithm: str | None = None
    events: Path | None = None
    name: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    folder: Path | None = None
    trace: Path | None = None
    compute: str | None = None

    @property
    def called(self) -> str:
        """The name, or what stands for it."""
        return self.name or self.fabric


@dataclass(frozen=True, slots=True)
class CheckedJob:
    """A job that can be run, the fabric it is run on and where its ranks sit."""

    spec: JobSpec
    topology: Topology
    placement: Placement


def check_job(spec: JobSpec) -> CheckedJob:
    """Find what is wrong with the input before any process is started. Raises ConfigError."""
    resolve_command(spec.command, spec.folder)
    if spec.dilation != "auto":
        try:
            float(spec.dilation)
        except ValueError:
            raise ConfigError(f"--dilation must be auto or a number, got {spec.dilation!r}") from None
    hca_rate = parse_profile(spec.profile or DEFAULT_PROFILE).port_rate
    fabric = over_transport(spec.fabric, spec.transport)
    topology = load_topology(fabric, spec.nodes, spec.gpus, hca_rate).with_routing(spec.routing)
    placement = choose_placement(spec.placement, topology, spec.gpus, on_nodes=spec.on_nodes, seed=spec.seed)
    topology.active_gpus = placement.active_gpus
    check_ranks(spec.compute, placement.world_size)
    if spec.events is not None:
        load_events(str(spec.events), topology)
    if spec.algorithm is not None:
        check_algorithm(spec.algorithm, topology, placement)
    return CheckedJob(spec, topology, placement)


def common_dilation(jobs: Sequence[CheckedJob]) -> str:
    """The dilation for all of `jobs`. Computation is scaled by k too: only runs with equal k can be compared."""
    spec = jobs[0].spec
    if spec.clock != "paced" or spec.dilation != "auto":
        return spec.dilation
    speed = host_bytes_per_s()
    needed = [
        choose_dilation(job.topology, len(job.placement.nodes), job.placement.gpus_to_pace(job.topology), speed)
        for job in jobs
    ]
    return f"{max(needed):g}"


def run_on_fabric(spec: JobSpec, progress: Progress) -> RunResult:
    """Start the fabric, run the job on it, tear everything down. Raises what LocalLab and run_job raise."""
    name = spec.called
    progress.stage(name, f"starting 1 subnet manager and {counted(spec.nodes, 'HCA daemon')}")
    lab = LocalLab(
        over_transport(spec.fabric, spec.transport),
        spec.nodes,
        spec.gpus,
        clock=spec.clock,
        dilation=spec.dilation,
        seed=spec.seed,
        profile=spec.profile,
        log_dir=spec.log_dir / _as_file_name(name) if spec.log_dir is not None else None,
        listen=spec.listen,
        master_port=spec.master_port,
        routing=spec.routing,
        placement=spec.placement,
        on_nodes=spec.on_nodes,
        trace=spec.trace,
        compute=spec.compute,
        events=spec.events,
    )
    with lab:
        result = run_on_lab(lab, spec, progress)
    progress.done(name, result)
    return result


def run_on_lab(lab: LocalLab, spec: JobSpec, progress: Progress) -> RunResult:
    """Run the job on a fabric that is up; what it did. Raises what run_job raises."""
    name = spec.called
    used = counted(len(lab.placement.nodes), "node")
    progress.stage(name, f"running {counted(lab.world_size, 'rank')} on {used}, {describe_pace(lab)}")
    return run_and_report(
        lab,
        spec.command,
        fabric=spec.fabric,
        name=name,
        algorithm=spec.algorithm or "",
        environment={**spec.environment, **({ALGO_VARIABLE: spec.algorithm} if spec.algorithm is not None else {})},
        folder=spec.folder,
        on_line=progress.line,
        on_notice=progress.notice,
        on_tick=progress.tick,
        on_collect=lambda: progress.stage(name, "collecting counters and tearing down"),
    )


def describe_pace(lab: LocalLab) -> str:
    """How fabric time goes on, for a line that says what is run."""
    paces = {"paced": f"{lab.dilation:g} times slower than modelled", "virtual": "in virtual time"}
    return paces.get(lab.clock, "unshaped")


def _as_file_name(name: str) -> str:
    """A name for what belongs to one run: a file's without its folder, a preset's with its options."""
    parts = name.split(NAME_SEPARATOR)
    first = Path(parts[0]).name if is_fabric_file(parts[0]) else parts[0]
    return "+".join([first, *parts[1:]]).replace("/", "_")


def counted(number: int, thing: str) -> str:
    """``1 rank``, ``2 ranks``."""
    return f"{number} {thing}" + ("" if number == 1 else "s")
