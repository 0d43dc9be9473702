"""What an application can ask of a device's port: state, GIDs, P_Keys."""

from __future__ import annotations

import errno
from typing import Any

from fauxrdma.abi import control_verbs as V
from fauxrdma.errors import VerbsError
from fauxrdma.ib.attributes import DeviceAttr, PortAttr
from fauxrdma.ib.enums import GidType, LinkLayer, Mtu, PortCapFlags, PortState
from fauxrdma.ib.gids import GID_TABLE_LENGTH, GIDEntry
from fauxrdma.ib.work import MAX_MESSAGE_BYTES
from fauxrdma.wire.fabric_messages import HcaInfo

__all__ = ["PortQueries", "port_attributes"]

_SPEED_CODES = {40: 4, 56: 16, 100: 32, 200: 64, 400: 128, 800: 256}
"""Speed code of one lane by the signalled rate of four in Gb/s: QDR, FDR, EDR, HDR, NDR, XDR."""
_WIDTH_4X = 2
_VL0_TO_7 = 4
_SUBNET_TIMEOUT = 18

_IB_PORT = (
    PortCapFlags.IBV_PORT_TRAP_SUP
    | PortCapFlags.IBV_PORT_SL_MAP_SUP
    | PortCapFlags.IBV_PORT_SYS_IMAGE_GUID_SUP
    | PortCapFlags.IBV_PORT_EXTENDED_SPEEDS_SUP
    | PortCapFlags.IBV_PORT_CM_SUP
    | PortCapFlags.IBV_PORT_CLIENT_REG_SUP
)
_ETHERNET_PORT = PortCapFlags.IBV_PORT_CM_SUP | PortCapFlags.IBV_PORT_IP_BASED_GIDS


def port_attributes(hca: HcaInfo, device: DeviceAttr, status: V.PortStatus) -> PortAttr:
    """The port's attributes from what the subnet manager configured, what the device has and what changes."""
    gbps = hca.rate_bps / 1e9
    link_layer = LinkLayer(hca.link_layer)
    ethernet = link_layer == LinkLayer.IBV_LINK_LAYER_ETHERNET
    return PortAttr(
        state=PortState(status.state),
        max_mtu=Mtu.IBV_MTU_4096,
        active_mtu=Mtu.of_bytes(hca.mtu),
        gid_tbl_len=GID_TABLE_LENGTH,
        port_cap_flags=_ETHERNET_PORT if ethernet else _IB_PORT,
        max_msg_sz=MAX_MESSAGE_BYTES,
        bad_pkey_cntr=status.bad_pkey_cntr,
        qkey_viol_cntr=status.qkey_viol_cntr,
        pkey_tbl_len=device.max_pkeys,
        lid=0 if ethernet else hca.lid,
        sm_lid=0 if ethernet else status.sm_lid,
        lmc=0,
        max_vl_num=_VL0_TO_7,
        sm_sl=0,
        subnet_timeout=_SUBNET_TIMEOUT,
        init_type_reply=0,
        active_width=_WIDTH_4X,
        active_speed=_SPEED_CODES.get(round(gbps), 0),
        phys_state=status.phys_state,
        link_layer=link_layer,
        flags=0,
        port_cap_flags2=0,
        speed_gbps=gbps,
    )


class PortQueries:
    """The port's part of a Context. There is port 1; others are VerbsError(EINVAL)."""

    hca: HcaInfo

    def _request(self, msg: Any, answer: Any) -> Any:
        raise NotImplementedError

    def query_device(self) -> DeviceAttr:
        """Limits and identity of the device."""
        raise NotImplementedError

    def _port_status(self, port_num: int) -> V.PortStatus:
        status: V.PortStatus = self._request(V.QueryPort(port_num), V.PortStatus)
        return status

    def query_port(self, port_num: int = 1) -> PortAttr:
        """State of the port."""
        return port_attributes(self.hca, self.query_device(), self._port_status(port_num))

    def query_port_speed(self, port_num: int = 1) -> int:
        """The signalled rate in units of 100 Mb/s."""
        self._port_status(port_num)
        return self.hca.rate_bps // 100_000_000

    def query_gid(self, port_num: int = 1, index: int = 0) -> str:
        """GID number `index` of the port; ``::`` where the table has none. Raises VerbsError(EINVAL) beyond it."""
        status = self._port_status(port_num)
        if not 0 <= index < GID_TABLE_LENGTH:
            raise VerbsError(
                errno.EINVAL,
                f"Failed to query gid {index} of port {port_num}: the table has indices 0 to {GID_TABLE_LENGTH - 1}",
            )
        return status.gids[index] if index < len(status.gids) else "::"

    def query_gid_ex(self, port_num: int = 1, gid_index: int = 0, flags: int = 0) -> GIDEntry:
        """GID number `gid_index` with its type. Raises VerbsError: ENODATA where the table has none, EINVAL beyond it
        and for flags, of which there are none."""
        if flags:
            raise VerbsError(errno.EINVAL, f"Failed to query gid table of port {port_num}: flags 0x{flags:x} is not 0")
        status = self._port_status(port_num)
        if not 0 <= gid_index < GID_TABLE_LENGTH:
            raise VerbsError(
                errno.EINVAL,
                f"Failed to query gid {gid_index} of port {port_num}: the table has indices 0 to "
                f"{GID_TABLE_LENGTH - 1}",
            )
        if gid_index >= len(status.gids):
            raise VerbsError(errno.ENODATA, f"Failed to query gid {gid_index} of port {port_num}: there is none")
        return _entry(status, port_num, gid_index)

    def query_gid_type(self, port_num: int = 1, index: int = 0) -> GidType:
        """The type of GID number `index`; errors as of `query_gid_ex`."""
        return self.query_gid_ex(port_num, index).gid_type

    def query_gid_table(self, max_entries: int | None = None, flags: int = 0) -> list[GIDEntry]:
        """Every GID there is. Raises VerbsError(EINVAL) when that is more than `max_entries`, or for flags."""
        status = self._port_status(1)
        if flags or (max_entries is not None and max_entries < len(status.gids)):
            raise VerbsError(
                errno.EINVAL,
                f"Failed to query gid table: {len(status.gids)} entries, max_entries {max_entries}, flags 0x{flags:x}",
            )
        return [_entry(status, 1, index) for index in range(len(status.gids))]

    def query_pkey(self, port_num: int = 1, index: int = 0) -> int:
        """P_Key number `index`; 0, which is none, where the table has no more. Raises VerbsError(EINVAL) beyond it."""
        status = self._port_status(port_num)
        length = self.query_device().max_pkeys
        if not 0 <= index < length:
            raise VerbsError(
                errno.EINVAL,
                f"Failed to query pkey {index} of port {port_num}: the table has indices 0 to {length - 1}",
            )
        return status.pkeys[index] if index < len(status.pkeys) else 0

    def get_pkey_index(self, port_num: int, pkey: int) -> int:
        """Where `pkey` is in the table. Raises VerbsError(ENOENT) when it is not."""
        pkeys = self._port_status(port_num).pkeys
        if pkey not in pkeys:
            raise VerbsError(
                errno.ENOENT,
                f"Failed to get pkey index: port {port_num} has {', '.join(map(hex, pkeys))}, not 0x{pkey:x}",
            )
        return pkeys.index(pkey)

    def set_port(
        self, state: PortState | None = None, pkeys: list[int] | None = None, gids: list[str] | None = None
    ) -> None:
        """For tests: take the port down (IBV_PORT_DOWN: frames vanish both ways) or up (IBV_PORT_ACTIVE), replace its
        P_Key table, give it GIDs besides its own. Every application of the device hears of it by events.

        Raises VerbsError(EINVAL) for what no port can be.
        """
        self._request(V.SetPort(1, None if state is None else int(state), pkeys, gids), V.Done)


def _entry(status: V.PortStatus, port_num: int, index: int) -> GIDEntry:
    return GIDEntry(status.gids[index], index, port_num, GidType(status.gid_types[index]))
