"""What a device and its port say of themselves, in pyverbs' names (of pyverbs.device)."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from fauxrdma.compat import device_strings as text
from fauxrdma.compat.addr import GID
from fauxrdma.compat.base import PyverbsObject
from fauxrdma.compat.utils import be64toh, gid_str, table
from fauxrdma.ib import attributes as ib
from fauxrdma.ib.gids import GIDEntry as _Entry

__all__ = [
    "CQModerationCaps",
    "DeviceAttr",
    "DeviceAttrEx",
    "GIDEntry",
    "ODPCaps",
    "PCIAtomicCaps",
    "PacketPacingCaps",
    "PortAttr",
    "QueryDeviceExInput",
    "RSSCaps",
    "TMCaps",
    "TSOCaps",
]

MODERATION_LIMIT = 65535
"""Of cq_count and of cq_period, see CQ.modify."""


class DeviceAttr(PyverbsObject, ib.DeviceAttr):
    """Limits and identity (struct ibv_device_attr). GUIDs are in network order, as there; `guid_format` prints them."""

    @classmethod
    def of(cls, attr: ib.DeviceAttr) -> DeviceAttr:
        """The same in pyverbs' shape."""
        values = {each.name: getattr(attr, each.name) for each in fields(attr)}
        values["node_guid"] = be64toh(attr.node_guid)
        values["sys_image_guid"] = be64toh(attr.sys_image_guid)
        return cls(**values)

    @property
    def fw_version(self) -> str:
        """Of the firmware, which is fauxrdma."""
        return self.fw_ver

    @property
    def max_raw_ipv6_qps(self) -> int:
        """pyverbs' name for max_raw_ipv6_qp."""
        return self.max_raw_ipv6_qp

    def __str__(self) -> str:
        rows: dict[str, object] = {"FW version": self.fw_version}
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name.endswith("guid"):
                value = text.guid_format(value)
            elif each.name in ("max_mr_size", "page_size_cap", "vendor_id"):
                value = hex(value)
            elif each.name == "device_cap_flags":
                value = text.translate_device_caps(value)
            if each.name != "fw_ver":
                name = each.name.replace("_", " ").replace("guid", "GUID")
                rows[name[0].upper() + name[1:]] = value
        return table(rows)


@dataclass
class QueryDeviceExInput(PyverbsObject):
    """For extensions of query_device_ex; there are none."""

    comp_mask: int


@dataclass
class ODPCaps(PyverbsObject):
    """On-demand paging: none, every region is pinned."""

    general_caps: int = 0
    rc_odp_caps: int = 0
    uc_odp_caps: int = 0
    ud_odp_caps: int = 0
    xrc_odp_caps: int = 0


@dataclass
class PCIAtomicCaps(PyverbsObject):
    """Atomics over PCIe: none, the device's are of its own."""

    fetch_add: int = 0
    swap: int = 0
    compare_swap: int = 0


@dataclass
class TSOCaps(PyverbsObject):
    """TCP segmentation: none."""

    max_tso: int = 0
    supported_qpts: int = 0


@dataclass
class RSSCaps(PyverbsObject):
    """Receive side scaling: none."""

    supported_qpts: int = 0
    max_rwq_indirection_tables: int = 0
    max_rwq_indirection_table_size: int = 0
    rx_hash_fields_mask: int = 0
    rx_hash_function: int = 0


@dataclass
class PacketPacingCaps(PyverbsObject):
    """Rate limits of single queue pairs: none."""

    qp_rate_limit_min: int = 0
    qp_rate_limit_max: int = 0
    supported_qpts: int = 0


@dataclass
class TMCaps(PyverbsObject):
    """Tag matching: none."""

    max_rndv_hdr_size: int = 0
    max_num_tags: int = 0
    flags: int = 0
    max_ops: int = 0
    max_sge: int = 0


@dataclass
class CQModerationCaps(PyverbsObject):
    """Event moderation (CQ.modify): completions, microseconds."""

    max_cq_count: int = MODERATION_LIMIT
    max_cq_period: int = MODERATION_LIMIT


@dataclass
class DeviceAttrEx(PyverbsObject):
    """Extended attributes (struct ibv_device_attr_ex). What this device lacks is 0. Completion timestamps are
    nanoseconds, so `hca_core_clock` is a million kHz."""

    orig_attr: DeviceAttr
    max_dm_size: int
    device_cap_flags_ex: int
    comp_mask: int = 0
    completion_timestamp_mask: int = (1 << 64) - 1
    hca_core_clock: int = 1_000_000
    max_wq_type_rq: int = 0
    raw_packet_caps: int = 0
    phys_port_cnt_ex: int = 1
    odp_caps: ODPCaps = field(default_factory=ODPCaps)
    tso_caps: TSOCaps = field(default_factory=TSOCaps)
    pci_atomic_caps: PCIAtomicCaps = field(default_factory=PCIAtomicCaps)
    rss_caps: RSSCaps = field(default_factory=RSSCaps)
    packet_pacing_caps: PacketPacingCaps = field(default_factory=PacketPacingCaps)
    tm_caps: TMCaps = field(default_factory=TMCaps)
    cq_mod_caps: CQModerationCaps = field(default_factory=CQModerationCaps)


class PortAttr(PyverbsObject, ib.PortAttr):
    """The state of a port (struct ibv_port_attr)."""

    @classmethod
    def of(cls, attr: ib.PortAttr) -> PortAttr:
        """The same in pyverbs' shape."""
        return cls(**{each.name: getattr(attr, each.name) for each in fields(attr)})

    def __str__(self) -> str:
        rows: dict[str, object] = {
            "Port state": text.port_state_to_str(self.state),
            "Max MTU": text.translate_mtu(self.max_mtu),
            "Active MTU": text.translate_mtu(self.active_mtu),
            "SM lid": self.sm_lid,
            "Port lid": self.lid,
            "lmc": hex(self.lmc),
            "Link layer": text.translate_link_layer(self.link_layer),
            "Max message size": hex(self.max_msg_sz),
            "Port cap flags": text.translate_port_cap_flags(self.port_cap_flags),
            "Port cap flags 2": text.translate_port_cap_flags2(self.port_cap_flags2),
            "max VL num": self.max_vl_num,
            "Bad Pkey counter": self.bad_pkey_cntr,
            "Qkey violations counter": self.qkey_viol_cntr,
            "Gid table len": self.gid_tbl_len,
            "Pkey table len": self.pkey_tbl_len,
            "SM sl": self.sm_sl,
            "Subnet timeout": self.subnet_timeout,
            "Init type reply": self.init_type_reply,
            "Active width": text.width_to_str(self.active_width),
            "Active speed": text.speed_to_str(self.active_speed),
            "Phys state": text.phys_state_to_str(self.phys_state),
            "Flags": self.flags,
        }
        return table(rows, 24)


@dataclass
class GIDEntry(PyverbsObject):
    """An entry of the GID table (struct ibv_gid_entry); the GID as its halves in network order."""

    gid_subnet_prefix: int = 0
    gid_interface_id: int = 0
    gid_index: int = 0
    port_num: int = 0
    gid_type: int = 0
    ndev_ifindex: int = 0

    @classmethod
    def of(cls, entry: _Entry) -> GIDEntry:
        """The same in pyverbs' shape."""
        raw = GID.of(entry.gid).raw
        halves = (int.from_bytes(raw[:8], "little"), int.from_bytes(raw[8:], "little"))
        return cls(*halves, entry.gid_index, entry.port_num, entry.gid_type, entry.ndev_ifindex)

    def gid_str(self) -> str:
        """The GID in eight words."""
        return gid_str(self.gid_subnet_prefix, self.gid_interface_id)

    def __str__(self) -> str:
        rows: dict[str, Any] = {
            "GID": self.gid_str(),
            "GID Index": self.gid_index,
            "Port number": self.port_num,
            "GID type": text.translate_gid_type(self.gid_type),
            "Ndev ifindex": self.ndev_ifindex,
        }
        return table(rows, 24)
