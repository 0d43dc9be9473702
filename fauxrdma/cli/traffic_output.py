"""What `fauxrdma traffic` prints and writes."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fauxrdma.cli.options import Format
from fauxrdma.errors import ConfigError
from fauxrdma.units import format_bytes, format_ns

if TYPE_CHECKING:
    from fauxrdma.fabric.queues.play import FlowResult, Outcome
    from fauxrdma.fabric.queues.ports import PortResult
    from fauxrdma.fabric.queues.settings import QueueSettings
    from fauxrdma.fabric.subnet import SubnetManager

__all__ = ["print_result", "write_trace"]


def print_result(
    manager: SubnetManager,
    pattern: str,
    dcqcn: str,
    settings: QueueSettings,
    outcome: Outcome,
    storms: list[str],
    seed: int,
    top: int,
    format_: Format,
) -> None:
    """The flows and ports of `outcome` as two tables of `top` rows at most, or all of them as JSON."""
    from fauxrdma.cli.output import print_json
    from fauxrdma.fabric.queues.ports import port_results

    ports = port_results(manager.topology, outcome.links)
    about = {
        "fabric": manager.topology.name,
        "transport": manager.transport.name,
        "routing": manager.routes.engine,
        "flow_control": str(settings.flow_control),
        "congestion_control": str(settings.congestion_control),
        "dcqcn": dcqcn if settings.congestion_control == "dcqcn" else None,
        "mark_at": str(settings.ecn.mark_at) if settings.ecn is not None else None,
        "pattern": pattern,
        "storms": storms,
        "seed": seed,
        "step_ns": outcome.step_ns,
    }
    if format_ is Format.JSON:
        print_json(
            _rounded(
                {
                    **about,
                    "ended_ns": outcome.ended_ns,
                    "deadlock": outcome.deadlock,
                    "summary": _summary(outcome, ports),
                    "flows": [_flow_json(manager, result) for result in outcome.flows],
                    "ports": [asdict(port) for port in ports],
                }
            )
        )
        return
    control = [about["flow_control"], about["congestion_control"]]
    words = [word for word in control if word != "none"] or ["lossy"]
    routing = f"routing {about['routing']}, seed {seed}, steps of {format_ns(outcome.step_ns)}"
    print(f"{pattern} on {about['fabric']}: {about['transport']} ({', '.join(map(str, words))}), {routing}\n")
    _print_flows(manager, outcome.flows, top)
    _print_ports(ports, top)
    _print_summary(_summary(outcome, ports), outcome)


def write_trace(path: Path, outcome: Outcome) -> None:
    """What happened, a JSON object in each line. Raises ConfigError where that cannot be written."""
    events = ({"ns": ns, "what": what, "who": who, "amount": amount} for ns, what, who, amount in outcome.trace)
    try:
        path.write_text("".join(json.dumps(_rounded(event)) + "\n" for event in events))
    except OSError as error:
        raise ConfigError(f"--trace {path}: cannot write there: {error.strerror}") from None


def _flow_json(manager: SubnetManager, result: FlowResult) -> dict[str, Any]:
    flow = result.flow
    return {
        "src": manager.node(flow.source).name,
        "dst": manager.node(flow.target).name,
        "bytes": flow.nbytes,
        "start_ns": flow.start_ns,
        "priority": result.priority,
        "completion_ns": result.completion_ns,
        "rate_bps": result.rate_bps,
        "sent": result.sent,
        "delivered": result.delivered,
        "dropped": result.dropped,
        "notifications": result.notifications,
        "restarts": result.restarts,
    }


def _summary(outcome: Outcome, ports: list[PortResult]) -> dict[str, Any]:
    rates = [result.rate_bps for result in outcome.flows if result.rate_bps is not None]
    delivered = sum(result.delivered for result in outcome.flows)
    return {
        "flows": len(outcome.flows),
        "complete": len(rates),
        "goodput_bps": delivered * 8e9 / outcome.ended_ns if outcome.ended_ns else 0.0,
        "rate_min_bps": min(rates, default=None),
        "rate_median_bps": statistics.median(rates) if rates else None,
        "rate_max_bps": max(rates, default=None),
        # Jain's index: 1 when all have the same, 1/n when one has everything.
        "fairness": sum(rates) ** 2 / (len(rates) * sum(rate * rate for rate in rates)) if rates else None,
        "queue_max": max((port.queue_max for port in ports), default=0.0),
        "pauses": sum(port.pauses_sent for port in ports),
        "lost_xons": outcome.lost_xons,
        "marked": sum(port.marked for port in ports),
        "notifications": sum(result.notifications for result in outcome.flows),
        "dropped": sum(result.dropped for result in outcome.flows),
        "stalled_ns": sum(port.stalled_ns for port in ports),
    }


def _rounded(value: Any) -> Any:
    """Floats to a thousandth (of a ns, a byte, a bit/s) or 6 digits of a ratio: more is rounding."""
    if isinstance(value, float):
        return round(value, 3 if abs(value) > 1 else 6)
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(inner) for inner in value]
    return value


def _print_flows(manager: SubnetManager, flows: list[FlowResult], top: int) -> None:
    slowest = sorted(range(len(flows)), key=lambda at: (-(flows[at].completion_ns or float("inf")), at))[:top]
    rows = []
    for at in sorted(slowest) if len(flows) <= top else slowest:
        result = flows[at]
        rate, took = result.rate_bps, result.completion_ns
        rows.append(
            [
                at,
                manager.node(result.flow.source).name,
                manager.node(result.flow.target).name,
                format_bytes(result.flow.nbytes),
                result.priority,
                format_ns(result.flow.start_ns),
                "-" if rate is None else f"{rate / 1e9:.2f} Gb/s",
                "never" if took is None else format_ns(took),
                _some(result.sent - result.flow.nbytes, format_bytes),
                _some(result.dropped, format_bytes),
                result.notifications or "",
                result.restarts or "",
            ]
        )
    headings = (
        "flow",
        "from",
        "to",
        "size",
        "prio",
        "start",
        "rate",
        "took",
        "sent again",
        "dropped",
        "CNPs",
        "restarts",
    )
    _print_table(headings, rows, len(flows), "flows", "the slowest")


def _print_ports(ports: list[PortResult], top: int) -> None:
    def eventful(port: PortResult) -> tuple[float, ...]:
        return (port.dropped, port.stalled_ns, port.pauses_sent, port.queue_max, port.nbytes)

    busiest = sorted(ports, key=lambda port: (*(-amount for amount in eventful(port)), port.link, port.priority))[:top]
    rows = [
        [
            port.link,
            port.priority,
            _some(port.nbytes, format_bytes),
            _some(port.queue_max, format_bytes),
            _some(port.ingress_max, format_bytes),
            port.pauses_sent or "",
            port.pauses_received or "",
            _some(port.marked, format_bytes),
            _some(port.dropped, format_bytes),
            _some(port.stalled_ns, format_ns),
        ]
        for port in busiest
    ]
    headings = (
        "port", "prio", "sent", "queue", "ingress", "pauses sent", "received", "marked", "dropped", "stalled",
    )  # fmt: skip
    _print_table(headings, rows, len(ports), "ports", "those with most drops, stalls and pauses")


def _some(amount: float, how: Any) -> str:
    return str(how(round(amount))) if amount >= 1.0 else ""


def _print_table(headings: tuple[str, ...], rows: list[list[Any]], of: int, what: str, which: str) -> None:
    from rich.table import Table

    from fauxrdma.cli.output import console

    table = Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("from", "to", "port") else "right", no_wrap=True)
    for row in rows:
        table.add_row(*map(str, row))
    console().print(table)
    if len(rows) < of:
        print(f"{len(rows)} of {of} {what} are shown, {which}: --top {of} or --format json shows all")
    print()


def _print_summary(summary: dict[str, Any], outcome: Outcome) -> None:
    parts: Iterable[str] = (
        f"{summary['complete']} of {summary['flows']} flows complete after {format_ns(outcome.ended_ns)}, "
        f"{summary['goodput_bps'] / 1e9:.2f} Gb/s together",
        f"fairness {summary['fairness']:.3f}" if summary["fairness"] is not None else "",
        f"{summary['pauses']} pauses" if summary["pauses"] else "",
        f"{summary['lost_xons']} XON lost" if summary["lost_xons"] else "",
        f"{format_bytes(summary['marked'])} marked" if summary["marked"] >= 1 else "",
        f"{format_bytes(summary['dropped'])} dropped" if summary["dropped"] >= 1 else "nothing dropped",
    )
    print(", ".join(part for part in parts if part))
