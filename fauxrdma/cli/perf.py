"""`fauxrdma perf`: perftest's measurements between two HCAs of a fabric."""

from __future__ import annotations

import sys
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fauxrdma.cli.options import (
    Clock,
    ClockOption,
    DilationOption,
    EventsOption,
    FabricArgument,
    Format,
    FormatOption,
    ProfileOption,
    RoutingOption,
    SeedOption,
    TransportOption,
)
from fauxrdma.errors import ConfigError

if TYPE_CHECKING:
    from fauxrdma.lab.local import LocalLab
    from fauxrdma.perf import PerfSpec, Row
    from fauxrdma.topology.graph import Topology

__all__ = ["perf"]


class Test(StrEnum):
    """What to measure; perftest's ib_write_bw and so on."""

    WRITE_BW = "write-bw"
    WRITE_LAT = "write-lat"
    READ_BW = "read-bw"
    READ_LAT = "read-lat"
    SEND_BW = "send-bw"
    SEND_LAT = "send-lat"
    ATOMIC_LAT = "atomic-lat"


class Connection(StrEnum):
    """Connection types."""

    RC = "RC"
    UC = "UC"
    UD = "UD"


_LARGEST_BYTES = 8 << 20


def perf(
    test: Annotated[Test, typer.Argument(help="What to measure.", show_default=False)],
    fabric: FabricArgument,
    client: Annotated[str, typer.Option("--from", metavar="HCA", help="The client's HCA.")] = "n0.hca1",
    server: Annotated[str, typer.Option("--to", metavar="HCA", help="The server's HCA.")] = "n1.hca1",
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes", min=1, help="Nodes of the fabric.  [default: up to the last named]", show_default=False
        ),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(
            "--size",
            "-s",
            metavar="BYTES",
            help="Of a message: 65536, 64K, 1M.  [default: bw 65536, lat 2]",
            show_default=False,
        ),
    ] = None,
    all_sizes: Annotated[
        bool, typer.Option("--all", "-a", help="Sizes from 2 bytes to 8 MiB; on UD to one MTU.")
    ] = False,
    iterations: Annotated[
        int | None,
        typer.Option(
            "--iterations",
            "-n",
            help="At each size.  [default: write-bw 5000, others 1000; fewer where that is over 32 MiB]",
            show_default=False,
        ),
    ] = None,
    qps: Annotated[int, typer.Option("--qps", "-q", min=1, max=1024, help="Queue pairs (bandwidth).")] = 1,
    connection: Annotated[Connection, typer.Option("--connection", "-c", help="Connection type.")] = Connection.RC,
    bidirectional: Annotated[
        bool, typer.Option("--bidirectional", "-b", help="Both ways at once; figures are the sums (bandwidth).")
    ] = False,
    tx_depth: Annotated[int, typer.Option("--tx-depth", "-t", min=1, help="Requests under way per queue pair.")] = 128,
    mtu: Annotated[
        int | None, typer.Option("--mtu", "-m", help="Path MTU in bytes.  [default: the port's]", show_default=False)
    ] = None,
    inline: Annotated[
        int | None,
        typer.Option(
            "--inline-size",
            "-I",
            min=0,
            help="Up to this size messages are sent inline.  [default: lat 220, bw 0]",
            show_default=False,
        ),
    ] = None,
    gpu: Annotated[
        int | None,
        typer.Option(
            "--gpu", min=0, help="Memory of this GPU at both ends.  [default: host memory]", show_default=False
        ),
    ] = None,
    report_gbits: Annotated[bool, typer.Option("--report-gbits", help="Bandwidth in Gb/s (10^9 bits).")] = False,
    transport: TransportOption = None,
    clock: ClockOption = Clock.PACED,
    dilation: DilationOption = "auto",
    seed: SeedOption = 0,
    events: EventsOption = None,
    routing: RoutingOption = None,
    profile: ProfileOption = None,
    format_: FormatOption = Format.TABLE,
) -> None:
    """Measure bandwidth or latency between two HCAs as perftest does, in fabric time, with its columns.

    A client and a server process are started at their daemons, and measure what they see through the verbs. MB is 2^20
    bytes. Latencies of writes and sends are half round trips; reads and atomics are there and back.

    \b
    Examples:
      fauxrdma perf write-bw seed-rail8
      fauxrdma perf write-lat fat-tree --all --clock none
      fauxrdma perf read-bw seed-rail8 --from n0.hca1 --to n1.hca2 --qps 4 --report-gbits
      fauxrdma perf send-lat seed-two-switch --connection UD --transport rocev2 --format json
      fauxrdma perf write-bw fat-tree,gpudirect=off --gpu 0 --bidirectional
    """
    from fauxrdma.cli.output import print_json
    from fauxrdma.ib.enums import QpType
    from fauxrdma.lab.local import LocalLab
    from fauxrdma.perf import TESTS, PerfSpec, default_iterations, measure, sizes_of
    from fauxrdma.topology.loading import over_transport
    from fauxrdma.units import parse_byte_count

    kind = TESTS[test.value]
    (client_node, _), (server_node, _) = ends = [_end(name) for name in (client, server)]
    node_count = nodes if nodes is not None else max(client_node, server_node) + 1
    lab = LocalLab(
        over_transport(fabric, transport), node_count, 1,
        clock=clock.value, dilation=dilation, seed=seed, routing=routing, profile=profile, events=events,
    )  # fmt: skip
    _check_ends(lab.topology, client, server)
    largest = min(_LARGEST_BYTES, lab.topology.mtu if connection is Connection.UD else _LARGEST_BYTES)
    sizes = sizes_of(kind, None if size is None else parse_byte_count(size), all_sizes, largest)
    if connection is Connection.UD and max(sizes) > largest:
        raise ConfigError(f"--size {max(sizes)}: a datagram is one packet, at most {largest} bytes on this fabric")
    inline_bytes = inline if inline is not None else _default_inline(kind.is_latency, kind.halved)
    if gpu is not None and gpu >= lab.topology.gpus_per_host:
        raise ConfigError(f"--gpu {gpu}: hosts of {lab.topology.name} have GPUs 0..{lab.topology.gpus_per_host - 1}")
    with lab:
        spec = PerfSpec(
            test.value,
            tuple((each, iterations if iterations is not None else default_iterations(kind, each)) for each in sizes),
            tuple((str(lab.socket_path(node)), device) for node, device in ends),  # type: ignore[arg-type]
            QpType[f"IBV_QPT_{connection.value}"], qps, tx_depth, bidirectional, inline_bytes, gpu, mtu,
        )  # fmt: skip
        about = _about(lab, spec, client, server)
        results = measure(spec)
        cards = next(results)
        assert isinstance(cards, dict)
        if format_ is Format.TABLE:
            _print_table(about, cards, results, lab.dilation, report_gbits)
        else:
            rows = [
                _row_json(row, lab.dilation, lab.clock == "virtual") for row in results if not isinstance(row, dict)
            ]
            print_json({**about, "rows": rows})


def _default_inline(is_latency: bool, halved: bool) -> int:
    from fauxrdma.perf.spec import INLINE_LATENCY

    return INLINE_LATENCY if is_latency and halved else 0


def _end(name: str) -> tuple[int, str]:
    """(node, device) of n0.hca1."""
    node, dot, device = name.partition(".")
    if not dot or not device or not node.startswith("n") or not node[1:].isdecimal():
        raise ConfigError(f"{name!r} is not an HCA: they are called n0.hca1, n1.hca3 and so on")
    return int(node[1:]), device


def _check_ends(topology: Topology, client: str, server: str) -> None:
    from fauxrdma.topology.complaints import did_you_mean

    names = [hca.name for hca in topology.hcas()]
    for name in (client, server):
        if name not in names:
            raise ConfigError(f"{topology.name} has no HCA {name!r}{did_you_mean(name, names)}")
    if client == server:
        raise ConfigError(f"--from and --to are both {client}: what an HCA sends itself crosses no fabric")


def _about(lab: LocalLab, spec: PerfSpec, client: str, server: str) -> dict[str, Any]:
    return {
        "test": spec.test_name,
        "fabric": lab.topology.name,
        "transport": lab.topology.transport,
        "from": client,
        "to": server,
        "clock": lab.clock,
        "dilation": lab.dilation,
        "seed": lab.seed,
        "connection": spec.qp_type.name.removeprefix("IBV_QPT_"),
        "qps": spec.qps,
        "tx_depth": 1 if spec.test.is_latency else spec.tx_depth,
        "bidirectional": spec.bidirectional,
        "inline_bytes": spec.inline_bytes,
        "memory": "host" if spec.gpu is None else f"gpu{spec.gpu}",
        "mtu_bytes": spec.path_mtu_bytes or lab.topology.mtu,
    }


def _row_json(row: Row, dilation: float, virtual: bool) -> dict[str, Any]:
    """Fabric time and, unless time is virtual and the same from run to run, the wall time it took."""
    return {
        "bytes": row.size,
        "iterations": row.iterations,
        **asdict(row.figures),
        "wall": None if virtual else {"seconds": row.wall_s, "dilation": dilation},
    }


def _print_table(about: dict[str, Any], cards: dict[str, Any], results: Any, dilation: float, gbits: bool) -> None:
    from fauxrdma.perf.kinds import TESTS
    from fauxrdma.perf.table import RULE, heading, line

    test = TESTS[about["test"]]
    title = test.title.replace("BW", "Bidirectional BW") if about["bidirectional"] else test.title
    link = "IB" if about["transport"] == "infiniband" else "Ethernet"
    print(RULE, f"{title:^{len(RULE)}}".rstrip(), sep="\n")
    for left, right in (
        (("Dual-port", "OFF"), ("Device", cards["local"]["device"])),
        (("Number of qps", about["qps"]), ("Transport type", "IB")),
        (("Connection type", about["connection"]), ("Using SRQ", "OFF")),
        (("TX depth", about["tx_depth"]), ("Mtu", f"{about['mtu_bytes']}[B]")),
        (("Link type", link), ("Max inline data", f"{about['inline_bytes']}[B]")),
        (("Fabric", about["fabric"]), ("Clock", f"{about['clock']}, dilation {dilation:g}")),
        (("From", about["from"]), ("To", about["to"])),
    ):
        print(f" {left[0]:<16}: {left[1]!s:<14} {right[0]:<16}: {right[1]}")
    print(RULE)
    for which in ("local", "remote"):
        for qp in cards[which]["qps"]:
            print(f" {which} address: LID {qp['lid']:#06x} QPN {qp['qpn']:#08x} PSN {qp['psn']:#08x}")
    print(RULE, heading(test.is_latency, gbits), sep="\n")
    wall_s = 0.0
    for row in results:
        print(line(row, gbits), flush=True)
        wall_s += row.wall_s
    print(RULE)
    print(f"Fabric time; {wall_s:.2f} s of wall time.", file=sys.stderr)
