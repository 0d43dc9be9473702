"""Devices (pyverbs.device)."""

from __future__ import annotations

import errno
import socket
from typing import Any

from fauxrdma import verbs
from fauxrdma.compat.addr import GID
from fauxrdma.compat.base import PyverbsCM, PyverbsObject
from fauxrdma.compat.device_attributes import (
    CQModerationCaps,
    DeviceAttr,
    DeviceAttrEx,
    GIDEntry,
    ODPCaps,
    PacketPacingCaps,
    PCIAtomicCaps,
    PortAttr,
    QueryDeviceExInput,
    RSSCaps,
    TMCaps,
    TSOCaps,
)
from fauxrdma.compat.device_strings import (
    guid_format,
    guid_to_hex,
    phys_state_to_str,
    port_state_to_str,
    speed_to_str,
    str_from_flags,
    translate_device_caps,
    translate_event_type,
    translate_gid_type,
    translate_link_layer,
    translate_mtu,
    translate_node_type,
    translate_port_cap_flags,
    translate_port_cap_flags2,
    translate_transport_type,
    width_to_str,
)
from fauxrdma.compat.handles import Handle, adopt, not_offered, refused_as, verb
from fauxrdma.compat.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from fauxrdma.compat.utils import table
from fauxrdma.errors import SetupError, VerbsError
from fauxrdma.ib.enums import GidType, NodeType
from fauxrdma.ib.rnic import IWARP

__all__ = [
    "DM",
    "AllocDmAttr",
    "AsyncEvent",
    "CQModerationCaps",
    "Context",
    "Device",
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
    "get_device_list",
    "guid_format",
    "guid_to_hex",
    "phys_state_to_str",
    "port_state_to_str",
    "rdma_get_devices",
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


class Device(PyverbsObject):
    """A device that can be opened. `name` is bytes."""

    def __init__(self, name: bytes, guid: int, node_type: int, transport_type: int, index: int = -1) -> None:
        self.name = name
        self.guid = guid
        self.node_type = node_type
        self.transport_type = transport_type
        self.index = index

    def __str__(self) -> str:
        return (
            f"Device {self.name.decode()}, node type {translate_node_type(self.node_type)}, transport type "
            f"{translate_transport_type(self.transport_type)}, guid {guid_to_hex(self.guid)}, index {self.index}"
        )


def get_device_list() -> list[Device]:
    """The devices of this node. Raises PyverbsRDMAError(ENODEV), saying how, when the program is not run on one."""
    try:
        hcas = verbs.get_device_list()
    except SetupError as error:
        raise PyverbsRDMAError(f"Failed to get devices list: {error}", errno.ENODEV) from None
    return [
        Device(
            hca.name.encode(),
            hca.guid,
            NodeType.IBV_NODE_RNIC if hca.transport == IWARP else NodeType.IBV_NODE_CA,
            int(hca.transport == IWARP),
            index,
        )
        for index, hca in enumerate(hcas)
    ]


def rdma_get_devices() -> list[Device]:
    """The devices the connection manager can use: all of them."""
    return get_device_list()


class AsyncEvent(PyverbsObject):
    """An asynchronous event."""

    def __init__(self, event_type: int = 0, event: verbs.AsyncEvent | None = None) -> None:
        self.event_type = event_type
        self._event = event

    @verb("Failed to acknowledge an async event")
    def ack(self) -> None:
        """Acknowledge it, once."""
        if self._event is not None:
            self._event.ack()

    def __str__(self) -> str:
        return table({"Event Type": translate_event_type(self.event_type)}, 24)


class Context(Handle, verbs.Context, PyverbsCM):
    """An open device: `Context(name="hca1")`. Raises PyverbsUserError without a name, PyverbsRDMAError for an unknown
    one. `cmd_fd` would import another process's context, which is EOPNOTSUPP."""

    _CLOSING = "Failed to close device"

    def __init__(self, **kwargs: Any) -> None:
        if kwargs.get("cmd_fd") is not None:
            not_offered("Failed to import device", "import of contexts")
        if kwargs.get("cmid") is not None:
            not_offered("Failed to get the device of a CM ID", "connection manager")
        if kwargs.get("attr") is not None:
            not_offered("Failed to open device", "vendor's provider")
        name = kwargs.get("name")
        if name is None:
            raise PyverbsUserError("Device name must be provided")
        try:
            with refused_as(f"Failed to find device {name}"):
                verbs.Context.__init__(self, name)
        except SetupError as error:
            raise PyverbsRDMAError(f"Failed to get devices list: {error}", errno.ENODEV) from None

    @property
    def cmd_fd(self) -> int:
        """The descriptor by which the device takes commands."""
        return self._channel.fileno()

    @verb("Failed to query device")
    def query_device(self) -> DeviceAttr:
        """Limits and identity."""
        return DeviceAttr.of(verbs.Context.query_device(self))

    @verb("Failed to query EX device")
    def query_device_ex(self, ex_input: QueryDeviceExInput | None = None) -> DeviceAttrEx:
        """The same with extensions: what is 0 there is not offered."""
        attr = self.query_device()
        return DeviceAttrEx(attr, attr.max_dm_size, int(attr.device_cap_flags))

    @verb("Failed to query port")
    def query_port(self, port_num: int = 1) -> PortAttr:
        """The state of a port."""
        return PortAttr.of(verbs.Context.query_port(self, port_num))

    query_port_speed = verb("Failed to query port speed")(verbs.Context.query_port_speed)

    @verb("Failed to query gid")
    def query_gid(self, port_num: int, index: int) -> GID:  # type: ignore[override]
        """A GID; all zeros where the table has none."""
        return GID.of(verbs.Context.query_gid(self, port_num, index))

    @verb("Failed to query gid type")
    def query_gid_type(self, port_num: int, index: int) -> int:  # type: ignore[override]
        """IBV_GID_TYPE_SYSFS_IB_ROCE_V1 or IBV_GID_TYPE_SYSFS_ROCE_V2, the kernel's way to count."""
        kind = verbs.Context.query_gid_type(self, port_num, index)
        return int(kind == GidType.IBV_GID_TYPE_ROCE_V2)

    def query_gid_table(self, max_entries: int, flags: int = 0) -> list[GIDEntry]:  # type: ignore[override]
        """Every GID, at most `max_entries`. The error code is negative here, as ibv_query_gid_table returns it."""
        try:
            return [GIDEntry.of(entry) for entry in verbs.Context.query_gid_table(self, max_entries, flags)]
        except VerbsError as error:
            code = -error.error_code
            raise PyverbsRDMAError(f"Failed to query gid tables of the device: {error.strerror}", code) from error

    @verb("Failed to query gid table of port")
    def query_gid_ex(self, port_num: int, gid_index: int, flags: int = 0) -> GIDEntry:  # type: ignore[override]
        """One entry of the GID table."""
        return GIDEntry.of(verbs.Context.query_gid_ex(self, port_num, gid_index, flags))

    @verb("Failed to query pkey")
    def query_pkey(self, port_num: int, index: int) -> int:  # type: ignore[override]
        """A P_Key, in network order."""
        return socket.htons(verbs.Context.query_pkey(self, port_num, index))

    @verb("Failed to get pkey index")
    def get_pkey_index(self, port_num: int, pkey: int) -> int:
        """Where a P_Key, in network order, is in the table."""
        return verbs.Context.get_pkey_index(self, port_num, socket.ntohs(pkey))

    @verb("Failed to query real time values")
    def query_rt_values_ex(self, comp_mask: int = 1) -> tuple[int, int]:
        """The device's clock, which is fabric time: (seconds, nanoseconds)."""
        if comp_mask != 1:
            not_offered("Failed to query real time values", f"value of comp_mask 0x{comp_mask:x}")
        return divmod(self.fabric_now_ns(), 10**9)

    @verb("Failed to get async event")
    def get_async_event(self, timeout_s: float | None = None) -> AsyncEvent | None:  # type: ignore[override]
        """Wait for the next asynchronous event."""
        event = verbs.Context.get_async_event(self, timeout_s)
        return None if event is None else AsyncEvent(event.event_type, event)


class AllocDmAttr(PyverbsObject, verbs.AllocDmAttr):
    """What device memory to allocate: length, log2 of the alignment, comp_mask."""

    def __init__(self, length: int, log_align_req: int = 0, comp_mask: int = 0) -> None:
        verbs.AllocDmAttr.__init__(self, int(length), log_align_req, comp_mask)


class DM(Handle, verbs.DM, PyverbsCM):
    """Device memory. Raises PyverbsRDMAError: ENOMEM when the device has not enough left."""

    _CLOSING = "Failed to free dm"

    def __init__(self, context: Context, dm_attr: verbs.AllocDmAttr | None = None, **kwargs: Any) -> None:
        if kwargs.get("handle") is not None:
            not_offered("Failed to import DM", "import of device memory")
        if dm_attr is None:
            raise PyverbsUserError("Failed to allocate device memory: no dm_attr was given")
        limit = context.profile.attributes.max_dm_size
        with refused_as(f"Failed to allocate device memory of size {dm_attr.length}. Max available size {limit}"):
            verbs.DM.__init__(self, context, dm_attr)
        adopt(context, self)

    copy_to_dm = verb("Failed to copy to dm")(verbs.DM.copy_to_dm)
    copy_from_dm = verb("Failed to copy from dm")(verbs.DM.copy_from_dm)

    def unimport(self) -> None:
        """Only what was imported can be."""
        not_offered("Failed to unimport DM", "import of device memory")
