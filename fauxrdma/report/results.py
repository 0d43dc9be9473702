"""What a run of a job over a fabric is reduced to. These models are the JSON file; docs/results.md explains each field.

Suffixes are units: ``_ns`` nanoseconds of the run's clock (fabric time when it is paced or virtual, wall time when it
is none), ``_bps`` bits per second, ``_gb_per_s`` 10^9 bytes per second, ``_percent`` percent, ``_s`` seconds of wall
time.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "SCHEMA_VERSION",
    "Collective",
    "Comparison",
    "Debt",
    "Distribution",
    "LinkLoad",
    "RankSeat",
    "Route",
    "RunResult",
    "ThresholdOutcome",
    "Timing",
]

SCHEMA_VERSION = 1
"""Raised when a field changes its meaning or goes away; new fields do not raise it."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Distribution(_Model):
    """Durations of many like operations."""

    count: int = Field(description="how many")
    mean_ns: float
    p50_ns: float
    p99_ns: float
    min_ns: float
    max_ns: float


class Collective(_Model):
    """All collectives of one kind and size. A duration lasts from the last rank's entry to the last rank's return."""

    op: str = Field(description="all_reduce, broadcast, ...")
    nbytes: int = Field(description="size of the buffer each rank passed, in bytes")
    algorithm: str = Field(description="ring, ...; several joined by +")
    duration: Distribution
    bus_bandwidth_gb_per_s: float | None = Field(description="nccl-tests' busbw of the mean; null where undefined")


class Timing(_Model):
    """Where the time of a training step went. Null where the script printed no steps=N."""

    steps: int | None
    step_ns: float | None = Field(description="mean time per step, computation included")
    communication_ns: float | None = Field(description="sum of all collectives' durations, divided by the steps")


class LinkLoad(_Model):
    """One direction of one cable or PCIe lane bundle that carried something."""

    name: str
    src: str
    dst: str
    kind: str = Field(description="cable or pcie")
    rate_bps: int
    nbytes: int = Field(description="payload bytes carried")
    utilisation: float = Field(
        description="0..1, mean over the time in which the link carried anything; 0 when unshaped"
    )


class Route(_Model):
    """How far the payload travelled, over all pairs of HCAs that exchanged any, weighted by their bytes."""

    switches_mean: float
    switches_max: int
    latency_mean_ns: float = Field(description="one-way latency of the path for a small message")
    pairs: int


class RankSeat(_Model):
    """Where one rank sat. The rail counts from 0; on a fabric without rails it is the HCA's index from 0."""

    rank: int
    node: int
    gpu: int
    hca: int
    rail: int


class Debt(_Model):
    """Fidelity debt: (real - modelled) time over modelled time. Large debt means the host was too slow."""

    p50_percent: float
    p99_percent: float
    samples: int


class FaultOutcome(_Model):
    """A fault of the fabric, declared or injected, as it went."""

    number: int
    kind: str = Field(description="link-down, packet-loss, ...")
    text: str = Field(description="all it was told")
    state: str = Field(description="waiting, active or over, at the end of the run")
    began_ns: int | None = Field(description="of the run's clock, since the fabric's start; null: it did not")
    ended_ns: int | None


class LinkErrorCount(_Model):
    """What a link with a fault did to packets."""

    link: str
    symbol_errors: int = Field(description="packets that it damaged")
    link_error_recoveries: int = Field(description="how often it was trained again")
    frames_lost: int


class ThresholdOutcome(_Model):
    """What became of one --threshold."""

    text: str = Field(description="as given")
    met: bool
    measured: float | None = Field(description="in GB/s, ns, %, bytes or as printed; null without a figure")
    limit: float | None = Field(description="in the same unit")
    why: str = Field(description="both in words, or why there is no figure")


class RunResult(_Model):
    """One job on one fabric."""

    name: str = Field("", description="what tells the run from the others it is compared with")
    fabric: str = Field(description="as given on the command line")
    topology: str
    description: str
    nodes: int
    gpus: int = Field(description="per node; the job's ranks are nodes x gpus unless a placement says otherwise")
    transport: str = Field("infiniband", description="infiniband, rocev2, rocev1 or iwarp")
    algorithm: str = Field("", description="what the ranks were asked to use (FAUXRDMA_ALGO); empty: their choice")
    placement: str = Field("block", description="as given on the command line")
    places: list[RankSeat] = Field(default_factory=list, description="the seat of each rank, in rank order")
    spine_bytes: int = Field(0, description="payload that left a leaf for another switch: what crosses spines")
    command: list[str]
    clock: str = Field(description="paced, virtual or none")
    dilation: float = Field(description="one ns of fabric time took this many ns of wall time")
    seed: int
    routing: str = Field("", description="the routing engine really used")
    routing_messages: list[str] = Field(
        default_factory=list, description="why another engine than the wanted one was used, and credit loops"
    )
    values: dict[str, str] = Field(description="the name=value pairs rank 0 printed last")
    timing: Timing
    collectives: list[Collective] = Field(description="by total bytes, largest first")
    main_all_reduce: Collective | None = Field(description="the all_reduce that moved most bytes")
    modelled_all_reduce_ns: float | None = Field(
        description="the main all-reduce as the model alone has it; null when nothing is shaped or it is unknown"
    )
    main_all_reduce_ns: list[int] = Field(description="every duration of it, in order (at most 10000)")
    route: Route | None
    links: list[LinkLoad] = Field(description="busiest first")
    debt: Debt | None = Field(description="null unless the clock is paced")
    retransmits: int
    faults: list[FaultOutcome] = Field(default_factory=list, description="in the order in which they were declared")
    link_errors: list[LinkErrorCount] = Field(default_factory=list, description="of links that lost or damaged packets")
    elapsed_ns: int = Field(description="of the run's clock, from the fabric's start to the report")
    wall_s: float | None = Field(
        description="wall time of the job, from the launch of the ranks to the end of the last; null in virtual time, "
        "where runs of the same seed give the same file"
    )
    notes: list[str] = Field(description="what a reader must know before trusting the numbers")
    thresholds: list[ThresholdOutcome] = Field(default_factory=list, description="what --threshold asked for")

    @property
    def time_name(self) -> str:
        """What this run's nanoseconds are."""
        return "fabric time" if self.clock != "none" else "wall time"

    @property
    def world_size(self) -> int:
        """Ranks of the job."""
        return len(self.places) or self.nodes * self.gpus


class Comparison(_Model):
    """One job on one or more fabrics: the content of the JSON file."""

    schema_version: int = SCHEMA_VERSION
    fauxrdma_version: str
    created: str = Field(description="ISO 8601, UTC; empty when all runs were in virtual time")
    verdict: str
    differing_values: list[str] = Field(description="names of results that are not the same in all runs")
    runs: list[RunResult]
