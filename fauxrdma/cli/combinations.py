"""Jobs that differ in fabric, transport, placement, algorithm or script: every value with every other."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fauxrdma.cli.job import NAME_SEPARATOR, CheckedJob, JobSpec, check_job, common_dilation
from fauxrdma.errors import ConfigError
from fauxrdma.lab.launcher import resolve_command

__all__ = ["Axes", "check_all", "combine", "split_list"]


@dataclass(frozen=True, slots=True)
class Axes:
    """What to combine; each has at least one value. A transport or algorithm of None is whatever the fabric or the
    ranks have."""

    commands: Sequence[list[str]]
    fabrics: Sequence[str]
    transports: Sequence[str | None]
    placements: Sequence[str]
    algorithms: Sequence[str | None]


def split_list(option: str, text: str | None) -> list[str]:
    """``a,b`` as ``["a", "b"]``. Raises ConfigError for a value that is empty or given twice."""
    if text is None:
        return []
    values = [value.strip() for value in text.split(",")]
    if not all(values):
        raise ConfigError(f"{option} {text!r} has an empty value: write it as {option} a,b")
    _check_once(values, option)
    return values


def combine(base: JobSpec, axes: Axes) -> list[JobSpec]:
    """A job for each combination, scripts first, then fabrics, named by what differs: ``seed-rail8 / cyclic``. Raises
    ConfigError for a fabric or script that is given twice."""
    scripts = [shlex.join(command) for command in axes.commands]
    for fabric in axes.fabrics:
        if axes.fabrics.count(fabric) > 1:
            raise ConfigError(f"{fabric} is given twice: a fabric is compared with others, not with itself")
    _check_once(scripts, "script")
    others = (axes.transports, axes.placements, axes.algorithms)
    several = [len(axes.commands) > 1, len(axes.fabrics) > 1, *(len(values) > 1 for values in others)]
    if not any(several):
        several[1] = True
    jobs = []
    for command, fabric, transport, placement, algorithm in itertools.product(axes.commands, axes.fabrics, *others):
        # What the eye looks for first comes first, though scripts change slowest.
        values = (fabric, transport or "", placement, algorithm or "", shlex.join(command))
        differing = (*several[1:], several[0])
        name = NAME_SEPARATOR.join(value for value, differs in zip(values, differing, strict=True) if differs)
        jobs.append(
            replace(
                base,
                command=command,
                fabric=fabric,
                transport=transport,
                placement=placement,
                algorithm=algorithm,
                name=name,
            )
        )
    return jobs


def check_all(jobs: Sequence[JobSpec]) -> list[CheckedJob]:
    """Check all of `jobs` before any is started, and give them one dilation. Raises ConfigError, naming the combination
    that cannot be, or the two that cannot be compared."""
    for job in jobs:
        resolve_command(job.command)
    checked: list[CheckedJob] = []
    refused: list[ConfigError] = []
    for job in jobs:
        try:
            checked.append(check_job(job))
        except ConfigError as error:
            refused.append(error if job.called == job.fabric else ConfigError(f"{job.called}: {error}"))
    if refused:
        more = f" (and {len(refused) - 1} more of {len(jobs)} cannot be)" if len(refused) > 1 else ""
        raise ConfigError(f"{refused[0]}{more}")
    first = checked[0]
    for other in checked:
        if other.placement.world_size != first.placement.world_size:
            raise ConfigError(
                f"{first.spec.called} has {first.placement.world_size} ranks and {other.spec.called} "
                f"{other.placement.world_size}: what is compared must have as many; see --nodes, --gpus and --on-nodes"
            )
    dilation = common_dilation(checked)
    return [replace(found, spec=replace(found.spec, dilation=dilation)) for found in checked]


def _check_once(values: Sequence[str], what: str) -> None:
    for value in values:
        if values.count(value) > 1:
            raise ConfigError(f"{what}: {value} is given twice")
