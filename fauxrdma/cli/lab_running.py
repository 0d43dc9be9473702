"""`fauxrdma lab ps`, `logs`, `exec` and `down`: labs that are up, from any terminal."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fauxrdma.cli.options import Format, FormatOption

if TYPE_CHECKING:
    from fauxrdma.lab.running.folder import LabState

__all__ = ["chosen_lab", "down", "exec_", "logs", "parse_node", "ps"]


def _complete_lab(incomplete: str) -> list[str]:
    from fauxrdma.lab.running.folder import labs

    return [state.name for state in labs().values() if state.name.startswith(incomplete)]


LabOption = Annotated[
    str | None,
    typer.Option(
        "--lab",
        metavar="NAME",
        help="Which lab.  [default: that of ./lab.yaml, or the only one that is up]",
        show_default=False,
        autocompletion=_complete_lab,
    ),
]


def chosen_lab(name: str | None) -> tuple[Path, LabState]:
    """The lab of that name; without one that of ./lab.yaml if it is up, or the only one. Raises ConfigError."""
    from fauxrdma.lab.running.folder import find_lab, labs

    if name is None and len(labs()) > 1 and Path("lab.yaml").is_file():
        from fauxrdma.topology.yaml_document import YamlDocument

        here = YamlDocument("lab.yaml").data.get("name")
        if here in {state.name for state in labs().values()}:
            name = here
    return find_lab(name)


def parse_node(text: str, state: LabState) -> int:
    """``0`` or ``n0`` as a node of the lab. Raises ConfigError."""
    from fauxrdma.errors import ConfigError

    number = text.removeprefix("n")
    if not (number.isascii() and number.isdecimal()) or int(number) >= state.nodes:
        raise ConfigError(f"the lab {state.name} has no node {text!r}: it has n0..n{state.nodes - 1}")
    return int(number)


def ps(
    lab: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]", help="Only this lab.  [default: all]", show_default=False, autocompletion=_complete_lab
        ),
    ] = None,
    format_: FormatOption = Format.TABLE,
) -> None:
    """Show the labs that are up: their daemons, ranks and what `lab exec` started, each with its state.

    A lab whose keeper was killed is shown as dead: `fauxrdma lab down` removes what is left of it.

    \b
    Examples:
      fauxrdma lab ps
      fauxrdma lab ps digits --format json
    """
    from dataclasses import asdict

    from fauxrdma.cli.output import print_json
    from fauxrdma.lab.running.folder import find_lab, labs
    from fauxrdma.lab.running.inventory import lab_phase, processes_of

    states = [find_lab(lab)[1]] if lab is not None else list(labs().values())
    described: list[dict[str, Any]] = [
        {
            "lab": state.name,
            "state": lab_phase(state),
            "fabric": state.fabric,
            "file": state.file,
            "nodes": state.nodes,
            "clock": state.clock,
            "dilation": state.dilation,
            "subnet_manager": f"{state.subnet_manager[0]}:{state.subnet_manager[1]}",
            "processes": [asdict(process) for process in processes_of(state)],
        }
        for state in states
    ]
    if format_ is Format.JSON:
        print_json(described)
    elif not described:
        print("no lab is up: start one with `fauxrdma lab up`")
    else:
        _print_processes(described)


def _print_processes(described: list[dict[str, Any]]) -> None:
    from rich.table import Table

    from fauxrdma.cli.output import console

    out = console()
    for lab in described:
        print(f"{lab['lab']}: {lab['state']} ({lab['fabric']}, {lab['nodes']} nodes, from {lab['file']})")
        table = Table("role", "node", "rank", "pid", "state", "for", "command", box=None, pad_edge=False)
        for process in lab["processes"]:
            age = process["age_s"]
            table.add_row(
                process["role"],
                "" if process["node"] is None else f"n{process['node']}",
                "" if process["rank"] is None else str(process["rank"]),
                str(process["pid"]),
                process["state"],
                "" if age is None else f"{age:.0f} s",
                process["command"][:60] if process["role"] in ("rank", "exec") else "",
            )
        out.print(table)


def logs(
    node: Annotated[
        str | None, typer.Argument(metavar="[NODE]", help="Only this node, as n0.", show_default=False)
    ] = None,
    lab: LabOption = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the lab is taken down.")] = False,
    format_: FormatOption = Format.TABLE,
) -> None:
    """Print the logs of a lab: of its supervisor, subnet manager, HCA daemons and, during `up --run`, the ranks.

    \b
    Examples:
      fauxrdma lab logs
      fauxrdma lab logs n1 -f
    """
    import json

    from fauxrdma.lab.running.logs import follow_logs, read_logs

    folder, state = chosen_lab(lab)
    number = parse_node(node, state) if node is not None else None
    for line in follow_logs(folder, number) if follow else read_logs(folder, number):
        if format_ is Format.JSON:
            print(json.dumps({"source": line.source, "node": line.node, "text": line.text}), flush=follow)
        else:
            print(f"[{line.source}] {line.text}", flush=follow)


def exec_(
    context: typer.Context,
    node: Annotated[str, typer.Argument(metavar="NODE", help="The node, as n0.", show_default=False)],
    lab: LabOption = None,
    rank: Annotated[int, typer.Option("--local-rank", min=0, help="Whose environment: the node's so-manyth rank.")] = 0,
) -> None:
    """Run a command with the environment that a rank of the node has: FAUXRDMA_SOCKET, RANK, MASTER_ADDR and so on.

    The command takes the place of this one: its exit code, its terminal, its signals. It ends when the lab does.

    \b
    Examples:
      fauxrdma lab exec n0 -- fauxrdma devinfo
      fauxrdma lab exec n1 --local-rank 1 -- python probe.py
      fauxrdma lab exec n0 -- bash
    """
    from fauxrdma.errors import ConfigError, SetupError
    from fauxrdma.lab.launcher import resolve_command

    _, state = chosen_lab(lab)
    number = parse_node(node, state)
    if state.phase != "up":
        raise SetupError(f"the lab {state.name} is not up yet: wait for `fauxrdma lab up` to return")
    if not context.obj:
        raise ConfigError("nothing to run: give the command after --, as in `fauxrdma lab exec n0 -- fauxrdma devinfo`")
    seats = [env for env in state.rank_env if env["FAUXRDMA_NODE"] == str(number)]
    if rank and rank >= len(seats):
        raise ConfigError(f"node n{number} has {len(seats)} rank(s): --local-rank counts from 0")
    environment = {**state.node_env[number], **(seats[rank] if seats else {}), **state.environment}
    # `fauxrdma` and `python` are those of this interpreter, whether or not its environment is activated.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    argv = resolve_command(context.obj)
    sys.stdout.flush()
    try:
        os.execvpe(argv[0], argv, {**os.environ, **environment})
    except OSError as error:
        raise SetupError(f"cannot start {argv[0]}: {error.strerror}") from None


def down(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...",
            help="The labs.  [default: that of ./lab.yaml, or the only one]",
            show_default=False,
            autocompletion=_complete_lab,
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every lab of this user, also those that were killed.")] = False,
    format_: FormatOption = Format.TABLE,
) -> None:
    """End every process of a lab and remove all it left; ready when that is done.

    Only processes that the lab started, or that `lab exec` did, are ended, however it came to its end.

    \b
    Examples:
      fauxrdma lab down
      fauxrdma lab down digits fat
      fauxrdma lab down --all
    """
    from fauxrdma.cli.output import print_json
    from fauxrdma.errors import ConfigError
    from fauxrdma.lab.running.folder import end_lab, labs, tidy_labs

    if every and names:
        raise ConfigError("give names or --all, not both")
    if every:
        found = [(folder, state.name) for folder, state in labs().items()]
    else:
        wanted: list[str | None] = [*names] if names else [None]
        found = [(folder, state.name) for folder, state in (chosen_lab(name) for name in wanted)]
    for folder, name in found:
        end_lab(folder)
        if format_ is Format.TABLE:
            print(f"{name} is down")
    if every:
        tidy_labs()
    if format_ is Format.JSON:
        print_json({"down": [name for _, name in found]})
    elif not found:
        print("no lab was up")
