"""What the bench says, as data: what ``--format json`` prints. docs/cli.md explains each field.

Suffixes are units: ``_us`` microseconds of the run's clock (fabric time when it is paced, wall time when it is none),
``_gb_per_s`` 10^9 bytes per second.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from fauxrdma.perf.coll.sweep import Sweep

__all__ = ["SCHEMA_VERSION", "BenchResult", "Half", "MeasuredRow", "Row", "Seat", "Verification"]

SCHEMA_VERSION = 1
"""Raised when a field changes its meaning or goes away; new fields do not raise it."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Half(_Model):
    """One of the two measurements of a row: out of place, or in place."""

    time_us: float = Field(description="of one call")
    wall_us: float = Field(description="wall time of one call on this host")
    algbw_gb_per_s: float = Field(description="size over time")
    busbw_gb_per_s: float
    wrong: int | None = Field(description="elements, over all ranks; null when not checked")
    iterations: int
    iterations_us: list[float] | None = Field(None, description="each call from last entry to last return, with -z 1")


class Verification(_Model):
    """Random floats, reduced twice, against float64. Errors are relative to the sum of the terms' magnitudes."""

    error: float = Field(description="the largest")
    bound: float = Field(description="what so many roundings may add up to")
    beyond: int = Field(description="elements, over all ranks, whose error is larger than the bound")
    same_again: bool = Field(description="both runs gave the same bits on every rank")
    same_everywhere: bool | None = Field(description="all ranks have the same bits; null where results differ by rank")

    @property
    def failed(self) -> bool:
        """Whether something is not as promised."""
        return self.beyond > 0 or not self.same_again or self.same_everywhere is False


class MeasuredRow(_Model):
    """What the ranks say about one size."""

    size: int = Field(description="bytes: the larger side")
    count: int = Field(description="elements that the call names")
    type: str
    redop: str = Field(description="none where nothing is reduced")
    root: int = Field(description="-1 where there is none")
    algorithm: str = Field(description="what the ranks used")
    out_of_place: Half
    in_place: Half
    verify: Verification | None = None


class Row(MeasuredRow):
    """One line of the table."""

    predicted_us: float | None = Field(description="one call by the model of the fabric alone, in fabric time")
    ratio: float | None = Field(description="out-of-place time over predicted; null where nothing is shaped")


class Seat(_Model):
    """Where one rank sits."""

    rank: int
    node: int
    gpu: int
    hca: int


class BenchResult(_Model):
    """One run."""

    schema_version: int = SCHEMA_VERSION
    fauxrdma_version: str
    operation: str
    fabric: str = Field(description="as given on the command line")
    transport: str
    clock: str
    time: str = Field(description="fabric time or wall time: what _us means in this run")
    dilation: float
    seed: int
    placement: str
    places: list[Seat]
    sweep: Sweep
    rows: list[Row]
    out_of_bounds: int = Field(description="measurements with a wrong element or a failed verification")
    average_busbw_gb_per_s: float
    debt_p50_percent: float | None = Field(description="(real - modelled) over modelled time; null when unshaped")
    debt_p99_percent: float | None
    notes: list[str]
