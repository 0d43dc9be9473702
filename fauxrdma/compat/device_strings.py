"""Names for people of what devices and ports say (the functions at the end of pyverbs.device)."""

from __future__ import annotations

from typing import Any

from fauxrdma.compat.libibverbs_enums import (
    ibv_device_cap_flags,
    ibv_event_type,
    ibv_port_cap_flags,
    ibv_port_cap_flags2,
)
from fauxrdma.compat.utils import be64toh

__all__ = [
    "guid_format",
    "guid_to_hex",
    "phys_state_to_str",
    "port_state_to_str",
    "speed_to_str",
    "str_from_flags",
    "translate_device_caps",
    "translate_event_type",
    "translate_gid_type",
    "translate_link_layer",
    "translate_mtu",
    "translate_node_type",
    "translate_port_cap_flags",
    "translate_port_cap_flags2",
    "translate_transport_type",
    "width_to_str",
]

_TRANSPORTS = {0: "IB", 1: "IWARP", 2: "USNIC", 3: "USNIC UDP"}
_NODES = {1: "CA", 2: "Switch", 3: "Router", 4: "RNIC", 5: "USNIC", 6: "USNIC UDP"}
_PORT_STATES = {0: "NOP", 1: "Down", 2: "Init", 3: "Armed", 4: "Active", 5: "Defer"}
_PHYS_STATES = {
    1: "Sleep", 2: "Polling", 3: "Disabled", 4: "Port configuration training", 5: "Link up",
    6: "Link error recovery", 7: "Phy test",
}  # fmt: skip
_WIDTHS = {1: "1X", 2: "4X", 4: "8X", 8: "12X", 16: "2X"}
_SPEEDS = {
    0: "0.0", 1: "2.5", 2: "5.0", 4: "10.0", 8: "10.0", 16: "14.0", 32: "25.0", 64: "50.0", 128: "100.0", 256: "200.0",
}  # fmt: skip


def guid_format(num: int) -> str:
    """A GUID in network order as `0002:c903:0000:0001`."""
    digits = f"{be64toh(num):016x}"
    return ":".join(digits[i : i + 4] for i in range(0, 16, 4))


def guid_to_hex(node_guid: int) -> str:
    """Hexadecimal digits, without leading zeros."""
    return f"{node_guid:x}"


def translate_transport_type(transport_type: int) -> str:
    """IB or IWARP."""
    return _TRANSPORTS.get(transport_type, "Unknown")


def translate_node_type(node_type: int) -> str:
    """CA or RNIC."""
    return _NODES.get(node_type, "Unknown")


def port_state_to_str(port_state: int) -> str:
    """`Active (4)`."""
    return f"{_PORT_STATES[port_state]} ({port_state:d})" if port_state in _PORT_STATES else f"Invalid ({port_state})"


def translate_mtu(mtu: int) -> str:
    """`1024 (3)`."""
    return f"{128 << mtu} ({mtu:d})" if 1 <= mtu <= 5 else f"Invalid MTU ({mtu})"


def translate_link_layer(ll: int) -> str:
    """InfiniBand or Ethernet."""
    names = {0: "Unspecified", 1: "InfiniBand", 2: "Ethernet"}
    return names.get(ll, f"Invalid link layer ({ll})")


def str_from_flags(flags: int, dictionary: dict[Any, str]) -> str:
    """The names of the bits that are set, one a line."""
    return "\n  " + "".join(f"{name}\n  " for bit, name in dictionary.items() if flags & bit)


def _flags(flags: int, kind: Any) -> str:
    return str_from_flags(flags, {int(member): member.name for member in kind})


def translate_port_cap_flags(flags: int) -> str:
    """The names of the IBV_PORT_* bits."""
    return _flags(flags, ibv_port_cap_flags)


def translate_port_cap_flags2(flags: int) -> str:
    """The names of the second mask's IBV_PORT_* bits."""
    return _flags(flags, ibv_port_cap_flags2)


def translate_device_caps(flags: int) -> str:
    """The names of the IBV_DEVICE_* bits."""
    return _flags(flags, ibv_device_cap_flags)


def phys_state_to_str(phys: int) -> str:
    """`Link up (5)`."""
    return f"{_PHYS_STATES[phys]} ({phys})" if phys in _PHYS_STATES else "Invalid physical state"


def width_to_str(width: int) -> str:
    """`4X (2)`."""
    return f"{_WIDTHS[width]} ({width})" if width in _WIDTHS else "Invalid width"


def speed_to_str(speed: int) -> str:
    """`50.0 Gbps (64)`, of one lane."""
    return f"{_SPEEDS[speed]} Gbps ({speed})" if speed in _SPEEDS else "Invalid speed"


def translate_event_type(event_type: int) -> str:
    """The name of an asynchronous event, IBV_EVENT_*."""
    try:
        return str(ibv_event_type(event_type).name)
    except ValueError:
        return f"Unknown event_type ({event_type})"


def translate_gid_type(gid_type: int) -> str:
    """IB, RoCEv1, RoCEv2."""
    return {0: "IB", 1: "RoCEv1", 2: "RoCEv2"}.get(gid_type, f"Unknown gid_type ({gid_type})")
