"""`fauxrdma traffic`: plays traffic through the queues of a fabric in virtual time, without running anything."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fauxrdma.cli.options import (
    FabricArgument,
    Format,
    FormatOption,
    GpusOption,
    OnNodesOption,
    PlacementOption,
    RoutingOption,
    SeedOption,
    TransportOption,
)
from fauxrdma.errors import ConfigError, FabricUnhealthy

if TYPE_CHECKING:
    from fauxrdma.fabric.queues.patterns import Pattern
    from fauxrdma.fabric.queues.play import Flow
    from fauxrdma.fabric.queues.settings import QueueSettings
    from fauxrdma.fabric.subnet import SubnetManager
    from fauxrdma.fabric.transport import TransportProfile

__all__ = ["traffic"]

_USUAL_NODES = 8


def traffic(
    fabric: FabricArgument,
    pattern: Annotated[
        str,
        typer.Option(
            "--pattern",
            "-p",
            metavar="PATTERN",
            help="incast[:SENDERS] (to rank 0), permutation, all-to-all or ring[:HOPS].",
        ),
    ] = "incast",
    flows: Annotated[
        Path | None,
        typer.Option(
            "--flows",
            metavar="FILE",
            help="Flows from a CSV or YAML file instead: src, dst, bytes, start, priority.",
            show_default=False,
        ),
    ] = None,
    size: Annotated[str, typer.Option("--size", metavar="SIZE", help="Of each flow of the pattern.")] = "1M",
    priority: Annotated[
        int | None,
        typer.Option(
            "--priority",
            min=0,
            help="Of the pattern's flows: 0 to 7, or the virtual lane on InfiniBand.  [default: 0; on InfiniBand what "
            "the routes say]",
            show_default=False,
        ),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes",
            "-n",
            min=1,
            help="Nodes.  [default: all of a file; of a preset those that the flows name or the incast takes, or 8]",
            show_default=False,
        ),
    ] = None,
    gpus: GpusOption = 1,
    placement: PlacementOption = "block",
    on_nodes: OnNodesOption = None,
    transport: TransportOption = None,
    routing: RoutingOption = None,
    flow_control: Annotated[
        str | None,
        typer.Option(
            "--flow-control",
            metavar="pfc|none",
            help="On Ethernet: pause, or drop what finds no room.  [default: pfc; iwarp: none]",
            show_default=False,
        ),
    ] = None,
    congestion_control: Annotated[
        str | None,
        typer.Option(
            "--congestion-control",
            metavar="NAME",
            help="none, or the transport's: dcqcn for rocev2, tcp for iwarp.  [default: the transport's]",
            show_default=False,
        ),
    ] = None,
    dcqcn: Annotated[
        str, typer.Option("--dcqcn", metavar="SET", help="Parameters of DCQCN: paper, firmware or hpcc.")
    ] = "paper",
    mark_at: Annotated[
        str, typer.Option("--mark-at", metavar="enqueue|dequeue", help="When packets are marked; Fast ECN: dequeue.")
    ] = "enqueue",
    buffer: Annotated[
        str | None,
        typer.Option(
            "--buffer",
            metavar="SIZE",
            help="Of a switch.  [default: 16 MB at 50 Gb/s, in proportion]",
            show_default=False,
        ),
    ] = None,
    vl_buffer: Annotated[
        str | None,
        typer.Option(
            "--vl-buffer",
            metavar="SIZE",
            help="Of a virtual lane of a port.  [default: what its cable carries in a round trip and 2 us]",
            show_default=False,
        ),
    ] = None,
    xoff: Annotated[
        str | None,
        typer.Option(
            "--xoff",
            metavar="SIZE",
            help="A port pauses from so much on.  [default: an eighth of what is free]",
            show_default=False,
        ),
    ] = None,
    xon_loss: Annotated[
        float, typer.Option("--xon-loss", min=0.0, max=1.0, metavar="PART", help="Part of the XON frames that is lost.")
    ] = 0.0,
    storm: Annotated[
        list[str] | None,
        typer.Option(
            "--storm",
            metavar="HCA[@START[-END]]",
            help="This HCA takes nothing in meanwhile: pauses, or grants no credits. May be repeated.",
            show_default=False,
        ),
    ] = None,
    weight: Annotated[
        list[str] | None,
        typer.Option(
            "--weight", metavar="PRIORITY=WEIGHT", help="ETS: may be repeated.  [default: 1 each]", show_default=False
        ),
    ] = None,
    step: Annotated[str, typer.Option("--step", metavar="TIME", help="How far time goes in a step.")] = "500ns",
    limit: Annotated[
        str, typer.Option("--limit", metavar="TIME", help="Break off after so much fabric time.")
    ] = "200ms",
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE", help="Write what happened when, as JSON lines.", show_default=False),
    ] = None,
    top: Annotated[int, typer.Option("--top", min=1, help="Rows of each table; JSON always has all.")] = 16,
    seed: SeedOption = 0,
    format_: FormatOption = Format.TABLE,
) -> None:
    """Play a traffic pattern through the queues of a fabric, and show what flows and ports go through.

    Queue by queue in virtual time (docs/queues.md): credits or PAUSE frames, marks, DCQCN, drops and what is sent
    again. The ranks that send are placed as a job's are. The same seed gives the same output. Exit code 4: the fabric
    deadlocked, and the circle is named; 1: flows were not complete at --limit.

    \b
    Examples:
      fauxrdma traffic fat-tree --pattern incast:32 --size 1M
      fauxrdma traffic fat-tree,transport=rocev2 --pattern incast:32 --congestion-control none
      fauxrdma traffic fat-tree --transport rocev2 --flow-control none --buffer 4MB --size 4M
      fauxrdma traffic fat-tree --transport iwarp --pattern permutation --nodes 16 --gpus 4
      fauxrdma traffic seed-rail8 --pattern all-to-all --nodes 4 --gpus 8 --format json
      fauxrdma traffic ring,switches=5 --pattern ring:2 --nodes 10 --size 16M --routing dfsssp
      fauxrdma traffic fat-tree --transport rocev2 --pattern permutation --buffer 2MB --storm n3.hca1@50us-500us
      fauxrdma traffic examples/fabrics/roce-two-tier.yaml --flows examples/traffic/victim.csv --trace events.jsonl
    """
    from fauxrdma.cli.traffic_output import print_result, write_trace
    from fauxrdma.fabric.queues.flow_file import flows_of, nodes_named, read_flow_file
    from fauxrdma.fabric.queues.patterns import Pattern
    from fauxrdma.fabric.queues.play import play
    from fauxrdma.fabric.queues.storms import Storm
    from fauxrdma.fabric.subnet import SubnetManager
    from fauxrdma.topology.loading import is_fabric_file, load_topology, over_transport
    from fauxrdma.units import parse_time_ns

    chosen = Pattern.parse(pattern)
    listed = read_flow_file(str(flows)) if flows is not None else None
    spec = over_transport(fabric, transport)
    if nodes is None and not is_fabric_file(spec):
        nodes = nodes_named(listed) if listed is not None else _usual_nodes(spec, chosen, gpus)
    manager = SubnetManager(load_topology(spec, nodes, gpus).with_routing(routing), seed)
    for line in (*manager.routes.messages, *manager.routes.warnings):
        print(f"fauxrdma: {line}", file=sys.stderr)
    settings = _settings(
        manager.transport, flow_control, congestion_control, dcqcn, mark_at, buffer, vl_buffer, xoff, xon_loss,
        weight or [], step,
    )  # fmt: skip
    if listed is not None:
        played = flows_of(manager, listed)
    else:
        played = _pattern_flows(manager, chosen, size, priority, gpus, placement, on_nodes, seed)
    storms = [Storm.parse(text, manager.topology) for text in storm or []]
    outcome = play(manager, played, settings, seed=seed, limit_ns=float(parse_time_ns(limit)), storms=storms)
    if trace is not None:
        write_trace(trace, outcome)
    about = str(flows) if flows is not None else str(chosen)
    print_result(manager, about, dcqcn, settings, outcome, storm or [], seed, top, format_)
    if outcome.deadlock:
        raise FabricUnhealthy(
            f"deadlock at {outcome.ended_ns / 1e3:.1f} us, each waits for room behind the next: "
            + " -> ".join([*outcome.deadlock, outcome.deadlock[0]])
        )
    unfinished = sum(result.completion_ns is None for result in outcome.flows)
    if unfinished:
        print(
            f"fauxrdma: {unfinished} of {len(played)} flows were not complete after {limit}: raise --limit",
            file=sys.stderr,
        )
        raise typer.Exit(1)


def _usual_nodes(spec: str, pattern: Pattern, gpus: int) -> int:
    """What an incast takes, else 8, or as many as fit."""
    from fauxrdma.topology.presets.spec import parse_preset

    if pattern.name == "incast" and pattern.number is not None:
        return -(-pattern.ranks // gpus)
    preset = parse_preset(spec)
    return _USUAL_NODES if preset is None else max(1, min(_USUAL_NODES, preset.max_nodes))


def _pattern_flows(
    manager: SubnetManager,
    pattern: Pattern,
    size: str,
    priority: int | None,
    gpus: int,
    placement: str,
    on_nodes: str | None,
    seed: int,
) -> list[Flow]:
    from fauxrdma.fabric.host_path import memory_number
    from fauxrdma.fabric.queues.play import Flow
    from fauxrdma.topology.placement import choose_placement
    from fauxrdma.topology.placement.choosing import parse_nodes
    from fauxrdma.units import parse_byte_count

    topology = manager.topology
    own_nodes = parse_nodes(on_nodes) if on_nodes is not None else None
    places = choose_placement(placement, topology, gpus, on_nodes=own_nodes, seed=seed).places
    ends = [(manager.lid(p.hca_name), memory_number(topology.nodes[p.gpu_name])) for p in places]
    nbytes = parse_byte_count(size)
    made = []
    for number, (sender, receiver) in enumerate(pattern.pairs(len(places), seed)):
        (source, of), (target, into) = ends[sender], ends[receiver]
        made.append(Flow(source, target, nbytes, 0.0, priority, number, of, into))
    return made


def _settings(
    transport: TransportProfile,
    flow_control: str | None,
    congestion_control: str | None,
    dcqcn: str,
    mark_at: str,
    buffer: str | None,
    vl_buffer: str | None,
    xoff: str | None,
    xon_loss: float,
    weights: list[str],
    step: str,
) -> QueueSettings:
    from dataclasses import replace

    from fauxrdma.fabric.queues.dcqcn import PARAMETER_SETS
    from fauxrdma.fabric.queues.settings import BufferSettings, EcnSettings, MarkAt, PfcSettings, QueueSettings
    from fauxrdma.fabric.transport import CongestionControl, FlowControl
    from fauxrdma.units import parse_byte_count, parse_time_ns

    def nbytes(text: str | None) -> float | None:
        return None if text is None else float(parse_byte_count(text))

    flow = None if flow_control is None else FlowControl(_one_of("--flow-control", flow_control, FlowControl))
    congestion = (
        None
        if congestion_control is None
        else CongestionControl(_one_of("--congestion-control", congestion_control, CongestionControl))
    )
    settings = QueueSettings.of(transport, flow, congestion)
    return replace(
        settings,
        ecn=settings.ecn and EcnSettings(mark_at=MarkAt(_one_of("--mark-at", mark_at, MarkAt))),
        dcqcn=PARAMETER_SETS[_one_of("--dcqcn", dcqcn, PARAMETER_SETS)],
        buffers=BufferSettings(shared_bytes=nbytes(buffer), vl_bytes=nbytes(vl_buffer)),
        pfc=PfcSettings(xoff_bytes=nbytes(xoff), xon_loss=xon_loss),
        ets_weights=dict(map(_weight, weights)),
        step_ns=float(parse_time_ns(step)),
    )


def _one_of(option: str, given: str, known: object) -> str:
    words = [str(word) for word in known]  # type: ignore[attr-defined]
    if given not in words:
        raise ConfigError(f"{option} {given!r}: it is one of {', '.join(words)}")
    return given


def _weight(text: str) -> tuple[int, float]:
    priority, _, weight = text.partition("=")
    try:
        return int(priority), float(weight)
    except ValueError:
        raise ConfigError(f"--weight {text!r}: write PRIORITY=WEIGHT, as 3=2.5") from None
