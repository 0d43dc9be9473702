"""`fauxrdma devinfo`: the devices of a node, as ibv_devinfo prints them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fauxrdma.cli.options import Format, FormatOption

if TYPE_CHECKING:
    from fauxrdma.abi.control_verbs import HcaList
    from fauxrdma.wire.fabric_messages import HcaInfo

__all__ = ["devinfo", "render"]

_TRANSPORT = "InfiniBand (0)"
_BOARD = "fauxrdma emulated HCA"


def devinfo(
    fabric: Annotated[
        str | None,
        typer.Argument(
            help="Start one node of this preset or YAML file and ask it. Default: the daemon at FAUXRDMA_SOCKET.",
            show_default=False,
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
    format_: FormatOption = Format.TABLE,
) -> None:
    """Print the emulated HCAs of a node: identifiers, port state, LID, MTU, rate and where they are plugged in.

    \b
    Examples:
      fauxrdma devinfo seed-rail8
      fauxrdma devinfo fat-tree:ndr -d hca1
      fauxrdma run fat-tree -- fauxrdma devinfo --list      # what a rank sees
    """
    from fauxrdma.cli.output import print_json
    from fauxrdma.errors import ConfigError
    from fauxrdma.lab.hca_daemon_link import list_hcas

    if fabric is not None and socket is not None:
        raise ConfigError("give a fabric or --socket, not both")
    if fabric is not None:
        from fauxrdma.lab.local import LocalLab

        with LocalLab(fabric, nodes=1, gpus=1, clock="none") as lab:
            answer = list_hcas(lab.socket_path(0))
    else:
        path = socket or os.environ.get("FAUXRDMA_SOCKET")
        if not path:
            raise ConfigError("which node? Name a fabric (`fauxrdma devinfo fat-tree`), or a running daemon's --socket")
        answer = list_hcas(path)
    hcas = [hca for hca in answer.hcas if device in (None, hca.name)]
    if not hcas:
        raise ConfigError(
            f"there is no device {device}: node {answer.node} has {', '.join(h.name for h in answer.hcas)}"
        )
    if format_ is Format.JSON:
        print_json([_as_dict(answer, hca) for hca in hcas])
    elif names:
        print(f"{len(hcas)} HCA{'' if len(hcas) == 1 else 's'} found:")
        for hca in hcas:
            print(f"\t{hca.name}")
    else:
        print("\n".join(render(hca) for hca in hcas))


def _guid(value: int) -> str:
    digits = f"{value:016x}"
    return ":".join(digits[i : i + 4] for i in range(0, 16, 4))


def _mtu(nbytes: int) -> str:
    """Bytes and the code of the enum ibv_mtu."""
    from fauxrdma.ib.enums import Mtu

    return f"{nbytes} ({Mtu.of_bytes(nbytes).value})"


def _fields(hca: HcaInfo) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """(device fields, port fields), named and ordered as ibv_devinfo does; ours follow."""
    from fauxrdma.ib.attributes import DeviceAttr
    from fauxrdma.ib.enums import PortState

    attributes = DeviceAttr(node_guid=hca.guid)
    active = PortState.IBV_PORT_ACTIVE
    device = [
        ("transport", _TRANSPORT),
        ("fw_ver", attributes.fw_ver),
        ("node_guid", _guid(hca.guid)),
        ("sys_image_guid", _guid(hca.guid)),
        ("vendor_id", f"0x{attributes.vendor_id:04x}"),
        ("vendor_part_id", str(attributes.vendor_part_id)),
        ("hw_ver", f"0x{attributes.hw_ver:X}"),
        ("board_id", _BOARD),
        ("phys_port_cnt", str(attributes.phys_port_cnt)),
    ]
    port = [
        ("state", f"{active.name.removeprefix('IBV_')} ({active.value})"),
        ("max_mtu", _mtu(4096)),
        ("active_mtu", _mtu(hca.mtu)),
        ("port_lid", str(hca.lid)),
        ("port_lmc", "0x00"),
        ("link_layer", "InfiniBand"),
        ("rate", f"{hca.rate_bps / 1e9:g} Gb/sec"),
        ("GID[0]", hca.gid),
        ("cable_to", f"{hca.leaf} port {hca.leaf_port}"),
        ("gpu", "none (storage)" if hca.gpu is None else str(hca.gpu)),
    ]
    return device, port


def render(hca: HcaInfo) -> str:
    """One device in the layout of ibv_devinfo."""
    device, port = _fields(hca)
    lines = [f"hca_id:\t{hca.name}"]
    lines += [f"\t{name + ':':<32}{value}" for name, value in device]
    lines.append("\t\tport:\t1")
    lines += [f"\t\t\t{name + ':':<24}{value}" for name, value in port]
    return "\n".join(lines) + "\n"


def _as_dict(answer: HcaList, hca: HcaInfo) -> dict[str, Any]:
    device, port = _fields(hca)
    return {"hca_id": hca.name, "node": answer.node, "fabric": answer.fabric, **dict(device), "ports": [dict(port)]}
