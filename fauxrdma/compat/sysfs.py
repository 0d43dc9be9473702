"""/sys/class/infiniband for the emulated devices: the files that programs read there, with the kernel's wording."""

from __future__ import annotations

import itertools
import shutil
import sys
import tempfile
from pathlib import Path

from fauxrdma import verbs
from fauxrdma.compat.addr import GID
from fauxrdma.errors import FauxrdmaError
from fauxrdma.ib.enums import LinkLayer, NodeType
from fauxrdma.ib.rnic import IWARP
from fauxrdma.ib.strings import guid_to_str, link_layer_to_str, phys_state_to_str

__all__ = ["netdev_of", "write_sysfs"]

_STATES = ("NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER")
_GID_KINDS = ("IB/RoCE v1", "IB/RoCE v1", "RoCE v2")


def netdev_of(device: str) -> str:
    """The network device that stands for the port of a device on Ethernet: `eth-hca1`."""
    return f"eth-{device}"


def write_sysfs(root: Path) -> None:
    """A directory for each device of this node; none when the program is not run on a node. It is there as a whole or
    not at all: several processes may write it at a time."""
    try:
        hcas = verbs.get_device_list()
    except FauxrdmaError:
        hcas = []  # said when the program asks for its devices
    root.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=root.parent))
    for hca in hcas:
        with verbs.Context(hca.name) as context:
            _write_device(made / hca.name, context)
    try:
        made.rename(root)
    except OSError:  # another was faster
        shutil.rmtree(made, ignore_errors=True)


def _write_device(directory: Path, context: verbs.Context) -> None:
    attr = context.query_device()
    node = NodeType.IBV_NODE_RNIC if context.hca.transport == IWARP else NodeType.IBV_NODE_CA
    files = {
        "board_id": "fauxrdma emulated HCA",
        "fw_ver": attr.fw_ver,
        "hca_type": "fauxrdma",
        "hw_rev": f"{attr.hw_ver:x}",
        "node_desc": f"{context.name} of node {context.node}",
        "node_guid": guid_to_str(attr.node_guid),
        "node_type": f"{node.value}: {'RNIC' if node == NodeType.IBV_NODE_RNIC else 'CA'}",
        "sys_image_guid": guid_to_str(attr.sys_image_guid),
    }
    if context.hca.link_layer == LinkLayer.IBV_LINK_LAYER_ETHERNET:
        files[f"device/net/{netdev_of(context.name)}/operstate"] = "up"
    files |= {f"ports/1/{name}": text for name, text in _port_files(context).items()}
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


def _port_files(context: verbs.Context) -> dict[str, str]:
    port = context.query_port()
    ethernet = port.link_layer == LinkLayer.IBV_LINK_LAYER_ETHERNET
    files = {
        "cap_mask": f"0x{int(port.port_cap_flags):08x}",
        "lid": f"0x{port.lid:x}",
        "lid_mask_count": str(port.lmc),
        "link_layer": link_layer_to_str(port.link_layer),
        "phys_state": f"{port.phys_state}: {phys_state_to_str(port.phys_state).rsplit(' (', 1)[0].replace(' ', '')}",
        "rate": f"{port.speed_gbps:g} Gb/sec (4X)",
        "sm_lid": f"0x{port.sm_lid:x}",
        "sm_sl": str(port.sm_sl),
        "state": f"{port.state.value}: {_STATES[port.state]}",
    }
    pkeys = list(itertools.takewhile(bool, (context.query_pkey(1, index) for index in range(port.pkey_tbl_len))))
    files |= {f"pkeys/{index}": "0x0000" for index in range(port.pkey_tbl_len)}
    files |= {f"pkeys/{index}": f"0x{pkey:04x}" for index, pkey in enumerate(pkeys)}
    files |= {f"gids/{index}": GID().gid for index in range(port.gid_tbl_len)}
    for entry in context.query_gid_table():
        files[f"gids/{entry.gid_index}"] = GID.of(entry.gid).gid
        files[f"gid_attrs/types/{entry.gid_index}"] = _GID_KINDS[entry.gid_type]
        if ethernet:
            files[f"gid_attrs/ndevs/{entry.gid_index}"] = netdev_of(context.name)
    return files


if __name__ == "__main__":
    write_sysfs(Path(sys.argv[1]))
