"""What the ranks recorded about their collectives, brought together: durations, bandwidth, time per step."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fauxrdma.collectives.bus_bandwidth import bus_factor
from fauxrdma.report.results import Collective, Distribution, Timing

__all__ = [
    "Call",
    "RankOperation",
    "RankRecord",
    "match_calls",
    "read_rank_records",
    "summarise",
    "timing",
]


@dataclass(frozen=True, slots=True)
class RankOperation:
    """One collective as one rank saw it; times in ns of the run's clock."""

    op: str
    nbytes: int
    start_ns: int
    end_ns: int
    algorithm: str


@dataclass(frozen=True, slots=True)
class RankRecord:
    """All that rank{R}.json holds. `dropped` counts operations past the recording limit."""

    rank: int
    world_size: int
    operations: list[RankOperation]
    dropped: int


@dataclass(frozen=True, slots=True)
class Call:
    """One collective over all ranks. It can only begin when the last rank enters and is done when the last returns, so
    waiting for a rank that still computes does not count as communication."""

    op: str
    nbytes: int
    algorithm: str
    start_ns: int
    end_ns: int

    @property
    def duration_ns(self) -> int:
        """Time from the last entry to the last return."""
        return self.end_ns - self.start_ns


def read_rank_records(directory: Path) -> list[RankRecord]:
    """The records in `directory`, by rank. Files that cannot be read are left out: a rank may have been ended while
    it wrote, and the caller compares the count with the world size."""
    records = []
    for path in directory.glob("rank*.json"):
        try:
            raw = json.loads(path.read_text())
            operations = [
                RankOperation(o["op"], o["nbytes"], o["start_ns"], o["end_ns"], o.get("algorithm", ""))
                for o in raw["operations"]
            ]
            records.append(RankRecord(raw["rank"], raw["world_size"], operations, raw.get("dropped", 0)))
        except (ValueError, KeyError, TypeError):
            continue
    return sorted(records, key=lambda record: record.rank)


def match_calls(records: Sequence[RankRecord]) -> list[Call]:
    """The collectives in the order they were called, matched over the ranks by position.

    Where the ranks' sequences differ (several process groups) there is nothing to match by: each rank's operation then
    stands for itself, entry to return.
    """
    if not records:
        return []
    shortest = min(len(record.operations) for record in records)
    rows = [record.operations[:shortest] for record in records]
    kinds = [[(o.op, o.nbytes) for o in row] for row in rows]
    if all(kind == kinds[0] for kind in kinds):
        return [
            Call(
                column[0].op,
                column[0].nbytes,
                column[0].algorithm,
                max(o.start_ns for o in column),
                max(o.end_ns for o in column),
            )
            for column in zip(*rows, strict=True)
        ]
    alone = [Call(o.op, o.nbytes, o.algorithm, o.start_ns, o.end_ns) for record in records for o in record.operations]
    return sorted(alone, key=lambda call: call.start_ns)


def _distribution(durations_ns: Sequence[int]) -> Distribution:
    values = np.asarray(durations_ns, dtype=np.float64)
    return Distribution(
        count=len(values),
        mean_ns=float(values.mean()),
        p50_ns=float(np.percentile(values, 50)),
        p99_ns=float(np.percentile(values, 99)),
        min_ns=float(values.min()),
        max_ns=float(values.max()),
    )


def summarise(calls: Sequence[Call], world_size: int) -> list[Collective]:
    """One entry per kind and size, the one that moved most bytes first.

    `nbytes` of reduce_scatter and all_gather counts the whole buffer, as in nccl-tests.
    """
    groups: dict[tuple[str, int], list[Call]] = {}
    for call in calls:
        groups.setdefault((call.op, call.nbytes), []).append(call)
    found = []
    for (op, nbytes), members in groups.items():
        duration = _distribution([call.duration_ns for call in members])
        factor = bus_factor(op, world_size)
        bandwidth = None
        if factor is not None and nbytes and duration.mean_ns > 0:
            bandwidth = factor * nbytes / duration.mean_ns  # bytes per ns are GB/s
        algorithms = "+".join(sorted({call.algorithm for call in members if call.algorithm}))
        found.append(
            Collective(op=op, nbytes=nbytes, algorithm=algorithms, duration=duration, bus_bandwidth_gb_per_s=bandwidth)
        )
    return sorted(found, key=lambda c: (c.nbytes * c.duration.count, c.duration.count), reverse=True)


def timing(calls: Sequence[Call], steps: int | None, main: Collective | None) -> Timing:
    """Time per step, and the part of it that is communication.

    When every step calls the main all-reduce equally often, a step lasts from its first one to the next step's first
    one, which leaves out start-up and evaluation; otherwise the span from the first collective to the last is divided.
    """
    if not steps or not calls:
        return Timing(steps=steps, step_ns=None, communication_ns=None)
    communication_ns = sum(call.duration_ns for call in calls) / steps
    span_ns = max(call.end_ns for call in calls) - min(call.start_ns for call in calls)
    step_ns = span_ns / steps
    if main is not None and steps > 1:
        beats = [call.start_ns for call in calls if (call.op, call.nbytes) == (main.op, main.nbytes)]
        per_step, remainder = divmod(len(beats), steps)
        if per_step and not remainder:
            step_ns = (beats[(steps - 1) * per_step] - beats[0]) / (steps - 1)
    return Timing(steps=steps, step_ns=step_ns, communication_ns=communication_ns)
