"""One job on one fabric, from the checks before to the result: what `run` and `compare` share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fauxrdma.cli.progress import Progress
from fauxrdma.errors import ConfigError
from fauxrdma.fabric.dilation import choose_dilation
from fauxrdma.ib.profiles import DEFAULT_PROFILE, parse_profile
from fauxrdma.lab.launcher import resolve_command, run_job
from fauxrdma.lab.local import LocalLab
from fauxrdma.report.building import RunInputs, build_run
from fauxrdma.report.results import RunResult
from fauxrdma.runtime.host_probe import host_bytes_per_s
from fauxrdma.topology.graph import Topology
from fauxrdma.topology.loading import is_fabric_file, load_topology
from fauxrdma.topology.placement import Placement, choose_placement
from fauxrdma.topology.placement.choosing import BLOCK

__all__ = ["JobSpec", "check_job", "common_dilation", "run_on_fabric"]


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What to run and how; the same for every fabric it is run on."""

    command: list[str]
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

    def placed_on(self, topology: Topology) -> Placement:
        """Where the ranks sit on a fabric. Raises ConfigError."""
        return choose_placement(self.placement, topology, self.gpus, on_nodes=self.on_nodes, seed=self.seed)


def check_job(spec: JobSpec, fabrics: Sequence[str]) -> dict[str, Topology]:
    """Find what is wrong with the input before any process is started. Returns the fabrics' topologies."""
    resolve_command(spec.command)
    if spec.dilation != "auto":
        try:
            float(spec.dilation)
        except ValueError:
            raise ConfigError(f"--dilation must be auto or a number, got {spec.dilation!r}") from None
    hca_rate = parse_profile(spec.profile or DEFAULT_PROFILE).port_rate
    topologies = {}
    for fabric in fabrics:
        topology = load_topology(fabric, spec.nodes, spec.gpus, hca_rate).with_routing(spec.routing)
        topology.active_gpus = spec.placed_on(topology).active_gpus
        topologies[fabric] = topology
    return topologies


def common_dilation(spec: JobSpec, topologies: Sequence[Topology]) -> str:
    """The dilation for all of `topologies`. Computation is scaled by k too: only runs with equal k can be compared."""
    if spec.clock != "paced" or spec.dilation != "auto":
        return spec.dilation
    speed = host_bytes_per_s()
    gpus = {id(topology): spec.placed_on(topology).gpus_to_pace(topology) for topology in topologies}
    return f"{max(choose_dilation(made, spec.nodes, gpus[id(made)], speed) for made in topologies):g}"


def run_on_fabric(spec: JobSpec, fabric: str, progress: Progress) -> RunResult:
    """Start the fabric, run the job on it, tear everything down. Raises what LocalLab and run_job raise."""
    progress.stage(fabric, f"starting 1 subnet manager and {_count(spec.nodes, 'HCA daemon')}")
    lab = LocalLab(
        fabric,
        spec.nodes,
        spec.gpus,
        clock=spec.clock,
        dilation=spec.dilation,
        seed=spec.seed,
        profile=spec.profile,
        log_dir=spec.log_dir / _as_file_name(fabric) if spec.log_dir is not None else None,
        listen=spec.listen,
        master_port=spec.master_port,
        routing=spec.routing,
        placement=spec.placement,
        on_nodes=spec.on_nodes,
    )
    with lab:
        pace = f"{lab.dilation:g} times slower than modelled" if spec.clock == "paced" else "unshaped"
        progress.stage(
            fabric, f"running {_count(lab.world_size, 'rank')} on {_count(len(lab.placement.nodes), 'node')}, {pace}"
        )
        job = run_job(
            lab,
            spec.command,
            on_line=progress.line,
            on_notice=progress.notice,
            on_tick=progress.tick,
        )
        progress.stage(fabric, "collecting counters and tearing down")
        report = lab.report()
        inputs = RunInputs(
            fabric=fabric,
            topology=lab.topology,
            nodes=spec.nodes,
            gpus=spec.gpus,
            placement=lab.placement,
            seed=spec.seed,
            command=list(spec.command),
            values=job.values,
            wall_s=job.wall_s,
        )
        result = build_run(inputs, report, job.stats_dir)
    progress.done(fabric, result)
    return result


def _as_file_name(fabric: str) -> str:
    """A name for what belongs to one fabric: a file's without its folder, a preset's with its options."""
    return Path(fabric).name if is_fabric_file(fabric) else fabric.replace("/", "_")


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" + ("" if number == 1 else "s")
