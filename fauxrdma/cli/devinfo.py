"""`fauxrdma devinfo`: the devices of a node, as ibv_devinfo prints them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fauxrdma.cli.completion import complete_fabric
from fauxrdma.cli.options import Format, FormatOption, ProfileOption

if TYPE_CHECKING:
    from fauxrdma.abi.control_verbs import HcaList
    from fauxrdma.wire.fabric_messages import HcaInfo

__all__ = ["devinfo", "render"]


def devinfo(
    fabric: Annotated[
        str | None,
        typer.Argument(
            help="Start one node of this preset or YAML file and ask it. Default: the daemon at FAUXRDMA_SOCKET.",
            show_default=False,
            autocompletion=complete_fabric,
        ),
    ] = None,
    socket: Annotated[
        str | None,
        typer.Option("--socket", metavar="PATH", help="Ask the daemon at this Unix socket.", show_default=False),
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", "-d", metavar="NAME", help="Only this one.", show_default=False)
    ] = None,
    names: Annotated[bool, typer.Option("--list", "-l", help="Only the names.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Every limit of the device and everything about its port.")
    ] = False,
    profile: ProfileOption = None,
    format_: FormatOption = Format.TABLE,
) -> None:
    """Print the emulated HCAs of a node: identifiers, port state, LID, MTU, rate and where they are plugged in.

    \b
    Examples:
      fauxrdma devinfo seed-rail8
      fauxrdma devinfo fat-tree -d hca1 -v --profile cx7-ndr
      fauxrdma run fat-tree -- fauxrdma devinfo --list      # what a rank sees
    """
    from contextlib import ExitStack

    from fauxrdma.cli.output import print_json
    from fauxrdma.errors import ConfigError
    from fauxrdma.lab.hca_daemon_link import list_hcas

    if fabric is not None and socket is not None:
        raise ConfigError("give a fabric or --socket, not both")
    if fabric is None and profile is not None:
        raise ConfigError("--profile is for devices that are started: name a fabric; a running daemon has its own")
    with ExitStack() as stack:
        path = socket or os.environ.get("FAUXRDMA_SOCKET")
        if fabric is not None:
            from fauxrdma.lab.local import LocalLab

            lab = stack.enter_context(LocalLab(fabric, nodes=1, gpus=1, clock="none", profile=profile))
            path = str(lab.socket_path(0))
        if not path:
            raise ConfigError("which node? Name a fabric (`fauxrdma devinfo fat-tree`), or a running daemon's --socket")
        answer = list_hcas(path)
        hcas = [hca for hca in answer.hcas if device in (None, hca.name)]
        if not hcas:
            raise ConfigError(
                f"there is no device {device}: node {answer.node} has {', '.join(h.name for h in answer.hcas)}"
            )
        if names and format_ is Format.TABLE:
            print(f"{len(hcas)} HCA{'' if len(hcas) == 1 else 's'} found:")
            print("\n".join(f"\t{hca.name}" for hca in hcas))
            return
        described = [_describe(answer, hca, path, verbose) for hca in hcas]
    if format_ is Format.JSON:
        print_json(described)
    else:
        print("\n".join(render(each) for each in described))


def _describe(answer: HcaList, hca: HcaInfo, socket: str, verbose: bool) -> dict[str, Any]:
    """One device as plain data: the fields of ibv_devinfo, and of its port under `ports`."""
    from fauxrdma.cli.device_fields import device_fields, port_fields
    from fauxrdma.verbs import Context

    with Context(hca.name, socket) as context:
        device, port = device_fields(context, verbose), port_fields(context, verbose)
    return {"hca_id": hca.name, "node": answer.node, "fabric": answer.fabric, **dict(device), "ports": [dict(port)]}


def render(described: dict[str, Any]) -> str:
    """One device in the layout of ibv_devinfo."""
    lines = [f"hca_id:\t{described['hca_id']}"]
    lines += [
        f"\t{name + ':':<32}{value}"
        for name, value in described.items()
        if name not in ("hca_id", "node", "fabric", "ports")
    ]
    for number, port in enumerate(described["ports"], start=1):
        lines.append(f"\t\tport:\t{number}")
        lines += [f"\t\t\t{name + ':':<24}{value}" for name, value in port.items()]
    return "\n".join(lines) + "\n"
