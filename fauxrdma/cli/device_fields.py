"""What ibv_devinfo says about a device and its port: the same fields, named, ordered and written the same way."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from fauxrdma.ib.attributes import DeviceAttr, PortAttr
from fauxrdma.ib.enums import LinkLayer
from fauxrdma.ib.rnic import IWARP
from fauxrdma.ib.strings import (
    atomic_cap_to_str,
    device_cap_flags_to_str,
    gid_type_to_str,
    guid_to_str,
    link_layer_to_str,
    mtu_to_str,
    phys_state_to_str,
    speed_to_str,
    width_to_str,
)

if TYPE_CHECKING:
    from fauxrdma.verbs import Context

__all__ = ["Fields", "device_fields", "port_fields"]

Fields = list[tuple[str, str]]

_BOARD = "fauxrdma emulated HCA"
_BRIEF = ("fw_ver", "node_guid", "sys_image_guid", "vendor_id", "vendor_part_id", "hw_ver")
_RENAMED = {"atomic_caps": "atomic_cap"}


def device_fields(context: Context, verbose: bool) -> Fields:
    """The device: identity, and with `verbose` every limit; the profile they come from is ours and comes last."""
    attributes = context.query_device()
    shown = [("transport", "iWARP (1)" if context.hca.transport == IWARP else "InfiniBand (0)")]
    shown += [(name, _written(name, getattr(attributes, name))) for name in _BRIEF]
    shown += [("board_id", _BOARD), ("phys_port_cnt", str(attributes.phys_port_cnt))]
    if verbose:
        known = {name for name, _ in shown}
        shown += [
            (_RENAMED.get(field.name, field.name), _written(field.name, getattr(attributes, field.name)))
            for field in fields(DeviceAttr)
            if field.name not in known
        ]
    shown.append(("profile", context.profile.spec))
    return shown


def _written(name: str, value: int | str) -> str:
    if isinstance(value, str):
        return value
    if name.endswith("guid"):
        return guid_to_str(value)
    if name == "vendor_id":
        return f"0x{value:04x}"
    if name == "hw_ver":
        return f"0x{value:X}"
    if name in ("max_mr_size", "page_size_cap"):
        return f"0x{value:x}"
    if name == "device_cap_flags":
        names = device_cap_flags_to_str(value).replace("IBV_DEVICE_", "")
        return f"0x{value:08x} ({names})"
    if name == "atomic_caps":
        return f"{atomic_cap_to_str(value)} ({int(value)})"
    return str(value)


def port_fields(context: Context, verbose: bool) -> Fields:
    """Port 1; where it is plugged in and whose it is are ours and come last."""
    port, hca = context.query_port(), context.hca
    shown = [
        ("state", f"{port.state.name.removeprefix('IBV_')} ({port.state.value})"),
        ("max_mtu", mtu_to_str(port.max_mtu)),
        ("active_mtu", mtu_to_str(port.active_mtu)),
        ("sm_lid", str(port.sm_lid)),
        ("port_lid", str(port.lid)),
        ("port_lmc", f"0x{port.lmc:02x}"),
        ("link_layer", link_layer_to_str(port.link_layer)),
    ]
    if verbose:
        shown += _verbose_port(port)
    shown.append(("rate", f"{port.speed_gbps:g} Gb/sec"))
    gids = context.query_gid_table()
    kinds = verbose or port.link_layer == LinkLayer.IBV_LINK_LAYER_ETHERNET
    for entry in gids if kinds else gids[:1]:
        kind = f", {gid_type_to_str(entry.gid_type)}" if kinds else ""
        shown.append((f"GID[{entry.gid_index}]", f"{entry.gid}{kind}"))
    shown.append(("cable_to", f"{hca.leaf} port {hca.leaf_port}"))
    shown.append(("gpu", ", ".join(map(str, hca.gpus)) or "none (storage)"))
    return shown


def _verbose_port(port: PortAttr) -> Fields:
    return [
        ("max_msg_sz", f"0x{port.max_msg_sz:x}"),
        ("port_cap_flags", f"0x{port.port_cap_flags:08x}"),
        ("port_cap_flags2", f"0x{port.port_cap_flags2:04x}"),
        ("max_vl_num", f"{1 << (port.max_vl_num - 1)} ({port.max_vl_num})"),
        ("bad_pkey_cntr", f"0x{port.bad_pkey_cntr:x}"),
        ("qkey_viol_cntr", f"0x{port.qkey_viol_cntr:x}"),
        ("sm_sl", str(port.sm_sl)),
        ("pkey_tbl_len", str(port.pkey_tbl_len)),
        ("gid_tbl_len", str(port.gid_tbl_len)),
        ("subnet_timeout", str(port.subnet_timeout)),
        ("init_type_reply", str(port.init_type_reply)),
        ("active_width", width_to_str(port.active_width)),
        ("active_speed", speed_to_str(port.active_speed)),
        ("phys_state", phys_state_to_str(port.phys_state).upper().replace(" ", "_", 1)),
    ]
