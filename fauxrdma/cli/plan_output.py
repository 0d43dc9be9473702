"""What `fauxrdma plan` prints: the table of choices, or one plan with its messages and links."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from fauxrdma.cli.options import Format
from fauxrdma.cli.output import console, print_json
from fauxrdma.collectives.channelled import ChannelledPlan
from fauxrdma.collectives.fabric_cost import FabricCost, fabric_cost
from fauxrdma.collectives.plan import Plan, Step
from fauxrdma.collectives.plan_rounds import SentMessage, describe_step, plan_messages
from fauxrdma.collectives.request import FILE_PREFIX
from fauxrdma.collectives.selector import Choice, SelectionTable, Selector
from fauxrdma.errors import ConfigError
from fauxrdma.report.plan_svg import MOST_MESSAGES, plan_svg
from fauxrdma.report.selection_svg import selection_svg
from fauxrdma.topology.graph import Topology
from fauxrdma.units import format_bytes, format_ns

__all__ = ["print_selection", "print_shown"]

_ONE_LINE = 100
"""Characters of headings in one line."""
_MOST_ROWS = 60
"""A table of messages or links goes no further; JSON has them all."""


def _where(selector: Selector) -> str:
    paths = selector.paths
    nodes = len({place.node for place in paths.places})
    return (
        f"{paths.topology.name}: {_count(paths.world_size, 'rank')} on {_count(nodes, 'node')}, "
        f"within nodes over {paths.intra_node}" + ("" if paths.queues is None else ", through queues")
    )


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" + ("" if number == 1 else "s")


def _about(selector: Selector) -> dict[str, Any]:
    paths = selector.paths
    places = [{"node": place.node, "gpu": place.gpu, "hca": place.hca} for place in paths.places]
    return {
        "fabric": paths.topology.name,
        "transport": paths.topology.transport,
        "routing": paths.manager.routes.engine,
        "intra_node": paths.intra_node,
        "model": "flows" if paths.queues is None else "queues",
        "places": places,
    }


def _table(*columns: str, left: tuple[str, ...] = ()) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in columns:
        table.add_column(heading, justify="left" if heading in left else "right", no_wrap=True)
    return table


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text + "\n")
    except OSError as error:
        raise ConfigError(f"--plot {path}: cannot be written: {error.strerror}") from None


# ---- which algorithm


def print_selection(selection: SelectionTable, selector: Selector, plot: Path | None, format_: Format) -> None:
    """The table of sizes and algorithms."""
    if plot is not None:
        _write(plot, selection_svg(selection, f"{selection.operation} on {_where(selector)}"))
    if format_ is Format.JSON:
        print_json({**_about(selector), **_selection_json(selection)})
        return
    names = selection.algorithms
    table = _table("size", *_headings(names))
    for choice in selection.choices:
        cells = []
        for name in names:
            ns = choice.predicted_ns.get(name)
            mark = "*" if name == choice.algorithm else " "
            cells.append("-" if ns is None else f"{ns / 1000:.2f}{mark}")
        table.add_row(format_bytes(choice.nbytes), *cells)
    out = console()
    out.print(f"{selection.operation} on {_where(selector)}; predicted us of fabric time, * the fastest\n")
    out.print(table)
    out.print()
    for crossover in selection.crossovers:
        out.print(f"from {format_bytes(crossover.nbytes)} on {crossover.algorithm}, before that {crossover.instead_of}")
    if not selection.crossovers:
        out.print(f"{selection.choices[0].algorithm} at every size")
    for name, why in selection.unusable.items():
        out.print(f"not usable: {name}: {why}")
    if plot is not None:
        out.print(f"drawn: {plot}")


def _headings(names: list[str]) -> list[str]:
    """The names of algorithms, on several lines where they would not fit beside each other."""
    if sum(len(name) + 2 for name in names) < _ONE_LINE:
        return names
    return [
        f"{FILE_PREFIX}\n{Path(name).name}" if name.startswith(FILE_PREFIX) else name.replace("-", "-\n")
        for name in names
    ]


def _selection_json(selection: SelectionTable) -> dict[str, Any]:
    return {
        "operation": selection.operation,
        "sizes": [
            {
                "nbytes": choice.nbytes,
                "chosen": choice.algorithm,
                "predicted_ns": dict(choice.predicted_ns),
                "pieces": dict(choice.pieces),
            }
            for choice in selection.choices
        ],
        "crossovers": [
            {"nbytes": crossover.nbytes, "algorithm": crossover.algorithm, "instead_of": crossover.instead_of}
            for crossover in selection.crossovers
        ],
        "unusable": selection.unusable,
    }


# ---- one plan


def print_shown(selector: Selector, choice: Choice, rank: int | None, plot: Path | None, format_: Format) -> None:
    """The plan of a choice: its messages by round, what crosses rails, and the bytes on every link."""
    operation, algorithm, nbytes = choice.operation, choice.algorithm, choice.nbytes
    plan = selector.plan(operation, algorithm, nbytes, choice.pieces.get(algorithm, 0))
    cost = fabric_cost(plan, 1, selector.paths, messages_too=plot is not None)
    parts = plan.parts if isinstance(plan, ChannelledPlan) else (plan,)
    messages = [message for part in parts for message in plan_messages(part)]
    title = f"{operation} of {format_bytes(nbytes)} by {algorithm} on {_where(selector)}"
    if plot is not None:
        if len(parts) > 1:
            raise ConfigError("messages are drawn for one channel: leave --channels away, or --plot")
        if len(messages) > MOST_MESSAGES:
            raise ConfigError(f"{len(messages)} messages cannot be drawn: show a smaller --size or fewer ranks")
        _write(plot, plan_svg(cost, messages, list(selector.paths.places), title, 1))
    if format_ is Format.JSON:
        print_json({**_about(selector), "nbytes": nbytes, **_plan_json(plan, cost, messages, selector, rank)})
        return
    out = console()
    out.print(
        f"{title}\n{_count(cost.rounds, 'round')}, {_count(cost.messages, 'message')}, {format_bytes(cost.nbytes)} in "
        f"all; predicted {format_ns(cost.predicted_ns)}\n"
    )
    out.print(_message_table(messages))
    _say_rest(len(messages), "messages")
    if rank is not None:
        out.print(f"\nrank {rank}, step by step:")
        for number, step in enumerate(_steps(parts, rank), start=1):
            out.print(f"{number:5}  {describe_step(step)}")
    out.print()
    _print_crossing(cost, selector)
    out.print()
    links = _busiest(cost, selector)
    table = _table("link", "bytes", "busy", "rate", left=("link",))
    for name, carried, share, rate in links[:_MOST_ROWS]:
        table.add_row(name, str(carried), f"{share:.1%}", f"{rate:.1f} Gb/s")
    out.print(table)
    _say_rest(len(links), "links")
    if plot is not None:
        out.print(f"drawn: {plot}")


def _steps(parts: Sequence[Plan], rank: int) -> list[Step]:
    """The steps of a rank, channel after channel."""
    return [step for part in parts for step in part.program(rank).steps]


def _say_rest(number: int, what: str) -> None:
    if number > _MOST_ROWS:
        console().print(f"... and {number - _MOST_ROWS} more {what}: --format json has all")


def _message_table(messages: list[SentMessage]) -> Table:
    table = _table("round", "from", "to", "bytes", "what", "then", left=("what", "then"))
    for message in messages[:_MOST_ROWS]:
        numbers = (message.round, message.source, message.target, message.count)
        table.add_row(*map(str, numbers), message.what, message.then)
    return table


def _print_crossing(cost: FabricCost, selector: Selector) -> None:
    out = console()
    out.print(
        f"between nodes {format_bytes(cost.between_nodes)}, across rails {format_bytes(cost.across_rails)}, over "
        f"spines {format_bytes(cost.over_spines)}"
    )
    places = selector.paths.places
    rows = sorted(cost.crossing.items(), key=lambda item: (-item[1].nbytes, item[0]))
    for (source, target), traffic in rows[:_MOST_ROWS]:
        out.print(
            f"  crosses rails: rank {source} ({places[source].hca_name}) to rank {target} ({places[target].hca_name}), "
            f"{format_bytes(traffic.nbytes)}"
        )
    _say_rest(len(rows), "flows")


def _busiest(cost: FabricCost, selector: Selector) -> list[tuple[str, int, float, float]]:
    """(name, bytes, share of the predicted time that the link needs for them, payload rate in Gb/s), busiest first."""
    topology: Topology = selector.paths.topology
    rows = []
    for link, carried in cost.link_bytes.items():
        rate = selector.paths.manager.payload_rate(link)
        share = rate.transfer_ns(carried) / max(1, cost.predicted_ns)
        rows.append((topology.links[link].name, carried, share, rate.in_gbps))
    return sorted(rows, key=lambda row: (-row[2], row[0]))


def _plan_json(
    plan: Plan | ChannelledPlan, cost: FabricCost, messages: list[SentMessage], selector: Selector, rank: int | None
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operation": plan.name,
        "algorithm": plan.algorithm,
        "predicted_ns": cost.predicted_ns,
        "rank_end_ns": list(cost.end_ns),
        "rounds": cost.rounds,
        "messages": [
            {"round": m.round, "from": m.source, "to": m.target, "index": m.index, "nbytes": m.count, "what": m.what,
             "then": m.then}
            for m in messages
        ],
        "between_nodes": cost.between_nodes,
        "across_rails": cost.across_rails,
        "over_spines": cost.over_spines,
        "crossing_rails": [
            {"from": source, "to": target, "messages": traffic.messages, "nbytes": traffic.nbytes}
            for (source, target), traffic in cost.crossing.items()
        ],
        "links": [
            {"name": name, "nbytes": carried, "busy": share} for name, carried, share, _ in _busiest(cost, selector)
        ],
    }  # fmt: skip
    if rank is not None:
        parts = plan.parts if isinstance(plan, ChannelledPlan) else (plan,)
        found["steps"] = {"rank": rank, "steps": [describe_step(step) for step in _steps(parts, rank)]}
    return found
