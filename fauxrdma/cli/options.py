"""Options that several commands share, each defined once."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from fauxrdma.cli.completion import (
    complete_algorithm,
    complete_fabric,
    complete_placement,
    complete_routing,
    complete_transport,
)

__all__ = [
    "AlgorithmOption",
    "Clock",
    "ClockOption",
    "DilationOption",
    "EventsOption",
    "FabricArgument",
    "Format",
    "FormatOption",
    "GpusOption",
    "JobCommand",
    "LogDirOption",
    "MasterPortOption",
    "NodesOption",
    "OnNodesOption",
    "PlacementOption",
    "ProfileOption",
    "RoutingOption",
    "SeedOption",
    "StrictOption",
    "ThresholdOption",
    "TransportOption",
]


class Format(StrEnum):
    """How a command prints its result."""

    TABLE = "table"
    JSON = "json"


class Clock(StrEnum):
    """What governs the time operations take."""

    PACED = "paced"
    VIRTUAL = "virtual"
    NONE = "none"


class JobCommand(TyperCommand):
    """A command that takes a script after ``--`` (cut off in main) and says so in its usage line."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The pieces of the usage line."""
        return [*super().collect_usage_pieces(ctx), "-- SCRIPT [ARGS]..."]


FabricArgument = Annotated[
    str,
    typer.Argument(
        help="A preset (see `fauxrdma topo list`) or a YAML file.",
        show_default=False,
        autocompletion=complete_fabric,
    ),
]
FormatOption = Annotated[Format, typer.Option("--format", help="table for people, json for programs.")]
NodesOption = Annotated[int, typer.Option("--nodes", "-n", min=1, help="Emulated nodes.")]
GpusOption = Annotated[
    int, typer.Option("--gpus", "-g", min=1, help="GPUs of each node that take part: one rank each.")
]
ClockOption = Annotated[
    Clock,
    typer.Option(
        "--clock",
        help="paced: shaped by the model of the fabric. virtual: the same in simulated time, which waits for "
        "every rank: slower, and the same from run to run. none: as fast as this host goes.",
    ),
]
DilationOption = Annotated[
    str,
    typer.Option(
        "--dilation",
        metavar="auto|K",
        help="One ns of fabric time lasts K ns of wall time; auto chooses K from the fabric and this host's speed.",
    ),
]
RoutingOption = Annotated[
    str | None,
    typer.Option(
        "--routing",
        metavar="ENGINE",
        help="Routing engine: minhop, updn, ftree or dfsssp; on Ethernet ecmp, spray or adaptive. updn and ftree "
        "take roots: updn:roots=spine1,spine2.  [default: the fabric's]",
        show_default=False,
        autocompletion=complete_routing,
    ),
]
PlacementOption = Annotated[
    str,
    typer.Option(
        "--placement",
        metavar="HOW",
        help="Which rank sits where: block, cyclic, rail-aligned, random[:SEED], or a file with a line "
        "`node gpu [hca]` for each rank.",
        autocompletion=complete_placement,
    ),
]
TransportOption = Annotated[
    str | None,
    typer.Option(
        "--transport",
        metavar="NAME",
        help="infiniband, rocev2, rocev1 or iwarp.  [default: the fabric's]",
        show_default=False,
        autocompletion=complete_transport,
    ),
]
AlgorithmOption = Annotated[
    str | None,
    typer.Option(
        "--algorithm",
        metavar="NAME",
        help="What collectives use (FAUXRDMA_ALGO): ring, hierarchical, auto, ...  [default: the ranks' choice]",
        show_default=False,
        autocompletion=complete_algorithm,
    ),
]
OnNodesOption = Annotated[
    str | None,
    typer.Option(
        "--on-nodes",
        metavar="0,3,5-7",
        help="The nodes that have ranks, in the order they are used.  [default: all]",
        show_default=False,
    ),
]
ThresholdOption = Annotated[
    list[str] | None,
    typer.Option(
        "--threshold",
        metavar="'METRIC >= LIMIT'",
        help="Fail (exit code 1) unless this holds, as 'all_reduce.busbw >= 0.85 * line_rate' or 'step < 2ms'; may be "
        "repeated.",
        show_default=False,
    ),
]
StrictOption = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Fail (exit code 1) when this host was too slow for the clock: a fidelity debt over 5 % at p99.",
    ),
]
EventsOption = Annotated[
    Path | None,
    typer.Option(
        "--events",
        metavar="FILE",
        help="Faults to come, in YAML: events: [{at: 5ms, fault: link-down, link: n0.hca1}].",
        show_default=False,
    ),
]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of every random choice of the fabric.")]
LogDirOption = Annotated[
    Path | None, typer.Option("--log-dir", help="Keep the logs of the daemons in this directory.", show_default=False)
]
MasterPortOption = Annotated[
    int,
    typer.Option("--master-port", min=0, max=65535, help="MASTER_PORT of the ranks' rendezvous; 0 takes a free one."),
]
ProfileOption = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="NAME[,FIELD=VALUE...]",
        help="Kind of HCA: ibta, cx4-edr, cx6-hdr, cx7-ndr, cx8-xdr, rxe-like. It sets limits, habits and, where the "
        "fabric names no rate, the rate.  [default: ibta]",
        show_default=False,
    ),
]
