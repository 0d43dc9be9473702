"""A program run over a running lab and what came of it, as one result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fauxrdma.lab.launcher import RankLine, run_job
from fauxrdma.lab.local import LocalLab
from fauxrdma.report.building import RunInputs, build_run
from fauxrdma.report.results import RunResult

__all__ = ["run_and_report"]


def run_and_report(
    lab: LocalLab,
    command: Sequence[str],
    *,
    fabric: str = "",
    name: str = "",
    algorithm: str = "",
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    on_line: Callable[[RankLine], None] | None = None,
    on_notice: Callable[[str], None] | None = None,
    on_tick: Callable[[], None] | None = None,
    on_collect: Callable[[], None] | None = None,
) -> RunResult:
    """Run `command` once per rank of `lab`, wait for all, and say what the fabric carried meanwhile.

    `fabric` is what the user called the fabric (default: what the lab was made of), `name` what the run is called,
    `algorithm` what collectives were told to use. `on_collect` is called when the ranks have ended; the rest is as in
    `run_job`, which also says what is raised.
    """
    job = run_job(
        lab, command, environment=environment, folder=folder, on_line=on_line, on_notice=on_notice, on_tick=on_tick
    )
    if on_collect is not None:
        on_collect()
    inputs = RunInputs(
        fabric=fabric or lab.fabric,
        topology=lab.topology,
        nodes=lab.nodes,
        gpus=lab.gpus,
        placement=lab.placement,
        algorithm=algorithm,
        name=name or fabric or lab.fabric,
        seed=lab.seed,
        command=list(command),
        values=job.values,
        wall_s=job.wall_s,
    )
    return build_run(inputs, lab.report(), job.stats_dir)
