"""`fauxrdma fault`: have things go wrong in a lab that runs, end that, and see what there was."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fauxrdma.cli.options import Format, FormatOption

if TYPE_CHECKING:
    from fauxrdma.lab.subnet_manager_link import SubnetManagerLink

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="Have cables, switches, HCAs and GPUs of a running lab fail, and work again.",
)

LabOption = Annotated[
    str | None,
    typer.Option(
        "--lab",
        metavar="NAME",
        help="The lab, by name or directory.  [default: the one that runs]",
        show_default=False,
    ),
]


@app.command("kinds")
def kinds(format_: FormatOption = Format.TABLE) -> None:
    """List the faults there are, with what each is told.

    \b
    Examples:
      fauxrdma fault kinds
      fauxrdma fault kinds --format json
    """
    from rich.table import Table

    from fauxrdma.cli.output import console, print_json
    from fauxrdma.topology.fault_events import KINDS

    if format_ is Format.JSON:
        print_json([{"fault": k.name, "about": k.about, "target": k.target, "needs": list(k.needs),
                     "may": list(k.may), "usage": k.usage} for k in KINDS.values()])  # fmt: skip
        return
    table = Table("fault", "what it does", "fauxrdma fault inject ...", box=None, header_style="bold")
    for kind in KINDS.values():
        table.add_row(kind.name, kind.about, f"{kind.name} {kind.usage}")
    console().print(table)


@app.command("inject")
def inject(
    kind: Annotated[str, typer.Argument(help="See `fauxrdma fault kinds`.", metavar="FAULT", show_default=False)],
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            help="The cable, switch, HCA or GPU; for a partition the groups, each as n0,n1.hca2.",
            metavar="[TARGET]...",
            show_default=False,
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="TIME", help="On the fabric's timeline.  [default: now]", show_default=False),
    ] = None,
    lasts: Annotated[
        str | None,
        typer.Option("--for", metavar="TIME", help="Until it ends.  [default: until cleared]", show_default=False),
    ] = None,
    rate: Annotated[str | None, typer.Option("--rate", help="As 50Gbps.", show_default=False)] = None,
    latency: Annotated[str | None, typer.Option("--latency", help="As 5us.", show_default=False)] = None,
    loss: Annotated[str | None, typer.Option("--loss", help="As 0.5%.", show_default=False)] = None,
    bit_errors: Annotated[
        float | None, typer.Option("--bit-errors", help="As 1e-7: the part of bits that are wrong.", show_default=False)
    ] = None,
    factor: Annotated[float | None, typer.Option("--factor", help="How many times slower.", show_default=False)] = None,
    priority: Annotated[
        int | None,
        typer.Option("--priority", help="The service level that is paused.  [default: all]", show_default=False),
    ] = None,
    every: Annotated[
        str | None,
        typer.Option("--every", metavar="TIME", help="From one outage to the next.", show_default=False),
    ] = None,
    times: Annotated[int | None, typer.Option("--times", help="How many outages.", show_default=False)] = None,
    lab: LabOption = None,
    format_: FormatOption = Format.TABLE,
) -> None:
    """Have a fault begin in a lab that runs, now or later. Returns when every daemon goes by it; prints its number.

    \b
    Examples:
      fauxrdma fault inject link-down n0.hca1 --for 2ms
      fauxrdma fault inject link-flap "leaf1 -- spine1:2" --for 1ms --every 5ms --times 3
      fauxrdma fault inject packet-loss n1.hca2 --loss 0.5%
      fauxrdma fault inject partition n0,n1 n2,n3 --for 20ms
      fauxrdma fault inject sm-restart --for 10ms --lab fauxrdma-x3k2a91b
    """
    from dataclasses import replace

    from fauxrdma.cli.output import print_json
    from fauxrdma.errors import ConfigError
    from fauxrdma.topology.events_file import event_from
    from fauxrdma.topology.fault_events import KINDS, describe_fault, misfit
    from fauxrdma.topology.presets.options import did_you_mean

    if kind not in KINDS:
        raise ConfigError(f"there is no fault {kind!r}{did_you_mean(kind, KINDS)}")
    keys: dict[str, Any] = {
        "fault": kind, "at": at, "for": lasts, "rate": rate, "latency": latency, "loss": loss,
        "bit_errors": bit_errors, "factor": factor, "priority": priority, "every": every, "times": times,
        **_target(KINDS[kind].target, targets or []),
    }  # fmt: skip
    event = event_from({key: value for key, value in keys.items() if value is not None})
    event = replace(event, at_ns=event.at_ns if at is not None else -1)
    wrong = misfit(event)
    if wrong is not None:
        raise ConfigError(wrong[1])
    with _manager(lab) as manager:
        number = manager.inject(event)
    if format_ is Format.JSON:
        print_json({"number": number, "fault": describe_fault(event)})
    else:
        print(f"fault {number}: {describe_fault(event)}")


@app.command("clear")
def clear(
    number: Annotated[int, typer.Argument(min=0, help="Of the fault; 0: all.", metavar="[NUMBER]")] = 0,
    lab: LabOption = None,
    format_: FormatOption = Format.TABLE,
) -> None:
    """End a fault, or all of them, and take those that are yet to come off the timeline.

    \b
    Examples:
      fauxrdma fault clear 3
      fauxrdma fault clear
    """
    from fauxrdma.cli.output import print_json

    with _manager(lab) as manager:
        cleared = manager.clear_fault(number)
    if format_ is Format.JSON:
        print_json({"cleared": cleared})
    else:
        print(f"cleared: {', '.join(map(str, cleared)) or 'none was left'}")


@app.command("list")
def list_(lab: LabOption = None, format_: FormatOption = Format.TABLE) -> None:
    """Show the faults that were, are and will be, and what links did to packets.

    \b
    Examples:
      fauxrdma fault list
      fauxrdma fault list --format json
    """
    from rich.table import Table

    from fauxrdma.cli.output import console, print_json
    from fauxrdma.units import format_ns

    with _manager(lab) as manager:
        manager.report()  # has daemons say what they have counted
        found = manager.faults()
        fabric = manager.welcome.fabric
    if format_ is Format.JSON:
        print_json({"fabric": fabric, **asdict(found)})
        return
    out = console()
    if not found.faults:
        out.print("no faults")
    else:
        table = Table("", "fault", "state", "began", "ended", box=None, header_style="bold")
        for fault in found.faults:
            began, ended = (format_ns(at) if at >= 0 else "-" for at in (fault.began_ns, fault.ended_ns))
            table.add_row(str(fault.number), fault.text, fault.state, began, ended)
        out.print(table)
    if found.errors:
        table = Table("link", "damaged packets", "trained again", "frames lost", box=None, header_style="bold")
        for link in found.errors:
            table.add_row(link.link, str(link.symbol_errors), str(link.link_error_recoveries), str(link.frames_lost))
        out.print(table)


def _target(kind: str, given: list[str]) -> dict[str, Any]:
    """What the kind is told of its target, as in a file."""
    from fauxrdma.errors import ConfigError

    if kind == "groups":
        return {"groups": [text.split(",") for text in given]}
    wanted = 1 if kind else 0
    if len(given) != wanted:
        what = {"": "no target", "link": "one cable, as n0.hca1", "switch": "one switch, as leaf1",
                "hca": "one HCA, as n0.hca1", "gpu": "one GPU, as n0.gpu0"}[kind]  # fmt: skip
        raise ConfigError(f"this fault takes {what}, not {len(given)} targets")
    return {kind: given[0]} if kind else {}


def _manager(lab: str | None) -> SubnetManagerLink:
    from fauxrdma.lab.record import find_lab
    from fauxrdma.lab.subnet_manager_link import SubnetManagerLink

    found = find_lab(lab)
    return SubnetManagerLink(found.host, found.port)
