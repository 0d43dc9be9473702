"""Stand-ins for `rdma` and `ip` on the PATH of a program written for hardware: the emulated devices, in their words."""

from __future__ import annotations

import json
import sys
from typing import Any

from fauxrdma import verbs
from fauxrdma.compat.sysfs import netdev_of
from fauxrdma.errors import FauxrdmaError
from fauxrdma.ib.enums import LinkLayer
from fauxrdma.ib.gids import connection_gid_index
from fauxrdma.wire.fabric_messages import HcaInfo

__all__ = ["ip", "rdma"]

_STATES = ("NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER")
_JSON = ("-j", "--json", "-jp", "-pj")


def rdma(arguments: list[str]) -> int:
    """`rdma [-j] link|dev [show [DEVICE[/PORT]]]`, the exit code."""
    words = [word for word in arguments if not word.startswith("-")]
    kind = words[0] if words else ""
    if kind not in ("link", "dev") or words[1:2] not in ([], ["show"], ["list"]):
        print("this stand-in knows: rdma [-j] link show [DEVICE[/PORT]], rdma [-j] dev show [DEVICE]", file=sys.stderr)
        return 1
    wanted = words[2].split("/")[0] if len(words) > 2 else None
    try:
        hcas = [hca for hca in verbs.get_device_list() if wanted in (None, hca.name)]
        rows = [(_link if kind == "link" else _dev)(index, hca) for index, hca in enumerate(hcas)]
    except FauxrdmaError as error:
        print(f"rdma: {error}", file=sys.stderr)
        return 1
    if any(word in _JSON for word in arguments):
        print(json.dumps(rows))
    else:
        for row in rows:
            name = f"{row['ifname']}/{row['port']}" if kind == "link" else f"{row['ifindex']}: {row['ifname']}"
            rest = (f"{key} {value}" for key, value in row.items() if key not in ("ifindex", "ifname", "port"))
            print(f"{'link ' if kind == 'link' else ''}{name}{'' if kind == 'link' else ':'} {' '.join(rest)}")
    return 0


def _link(index: int, hca: HcaInfo) -> dict[str, Any]:
    with verbs.Context(hca.name) as context:
        port = context.query_port()
    row: dict[str, Any] = {"ifindex": index, "ifname": hca.name, "port": 1, "state": _STATES[port.state]}
    row["physical_state"] = "LINK_UP" if port.phys_state == 5 else "DISABLED"
    if port.link_layer == LinkLayer.IBV_LINK_LAYER_INFINIBAND:
        return row | {"lid": port.lid, "sm_lid": port.sm_lid, "lmc": port.lmc}
    return row | {"netdev": netdev_of(hca.name), "netdev_index": index + 1}


def _dev(index: int, hca: HcaInfo) -> dict[str, Any]:
    guid = ":".join(f"{hca.guid:016x}"[i : i + 4] for i in range(0, 16, 4))
    node = "rnic" if hca.transport == "iwarp" else "ca"
    return {"ifindex": index, "ifname": hca.name, "node_type": node, "node_guid": guid, "sys_image_guid": guid}


def ip(arguments: list[str]) -> int:
    """`ip [-j] addr show [dev] NETDEV` for the network device of an emulated one; the exit code."""
    words = [word for word in arguments if not word.startswith("-")]
    netdev = words[-1] if words else ""
    hcas = [hca for hca in verbs.get_device_list() if netdev_of(hca.name) == netdev]
    if not hcas or hcas[0].link_layer != LinkLayer.IBV_LINK_LAYER_ETHERNET:
        print(f'Device "{netdev}" does not exist.', file=sys.stderr)
        return 1
    row = _addresses(hcas[0])
    if any(word in _JSON for word in arguments):
        print(json.dumps([row]))
    else:
        print(f"{row['ifindex']}: {netdev}: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu {row['mtu']} state UP")
        print(f"    link/{row['link_type']} {row['address']}")
        for address in row["addr_info"]:
            print(
                f"    {address['family']} {address['local']}/{address['prefixlen']} scope {address['scope']} {netdev}"
            )
    return 0


def _addresses(hca: HcaInfo) -> dict[str, Any]:
    with verbs.Context(hca.name) as context:
        gids = context.query_gid_table()
    guid = f"{hca.guid:016x}"
    mac = guid[:6] + guid[10:]
    found: list[dict[str, Any]] = []
    last = gids[min(connection_gid_index(hca.transport), len(gids) - 1)].gid if gids else ""
    if last.startswith("::ffff:"):
        found.append({"family": "inet", "local": last.removeprefix("::ffff:"), "prefixlen": 16, "scope": "global"})
    link_local = next((entry.gid for entry in gids if entry.gid.startswith("fe80")), None)
    if link_local is not None:
        found.append({"family": "inet6", "local": link_local, "prefixlen": 64, "scope": "link"})
    return {
        "ifindex": int("".join(filter(str.isdigit, hca.name)) or 1),
        "ifname": netdev_of(hca.name),
        "flags": ["BROADCAST", "MULTICAST", "UP", "LOWER_UP"],
        "mtu": hca.mtu,
        "operstate": "UP",
        "link_type": "ether",
        "address": ":".join(mac[i : i + 2] for i in range(0, 12, 2)),
        "addr_info": found,
    }
