"""The port of an emulated HCA: up or down, its tables, and the events of their changes."""

from __future__ import annotations

import errno
import ipaddress
from collections.abc import Callable
from dataclasses import replace

from fauxrdma.errors import VerbsError
from fauxrdma.hca.events import AsyncEvent
from fauxrdma.ib.attributes import AHAttr, DeviceAttr
from fauxrdma.ib.enums import AsyncEventType as E
from fauxrdma.ib.enums import GidType, LinkLayer, PortState
from fauxrdma.ib.gids import GID_TABLE_LENGTH, gid_table, gid_types, multicast_lid_of_gid, short_gid
from fauxrdma.wire.fabric_messages import GidAnswer, HcaInfo, PathAnswer

__all__ = ["EmulatedPort"]

_DEFAULT_PKEY = 0xFFFF
"""Full membership of the default partition (IBTA vol. 1, 10.9.1.2)."""
_PHYS_POLLING = 2
_PHYS_DISABLED = 3
_PHYS_LINK_UP = 5
_SM_LID = 1


class EmulatedPort:
    """Port 1. It is up while nobody has disabled it and its cable is up and made active by the subnet manager. While it
    is not, frames vanish both ways. `listeners` hear of every change."""

    def __init__(self, info: HcaInfo, attributes: DeviceAttr) -> None:
        self.up = True
        self._enabled = True
        self._cable = PortState.IBV_PORT_ACTIVE
        self.sm_lid = _SM_LID
        self.listeners: list[Callable[[AsyncEvent], None]] = []
        self.ethernet = info.link_layer == LinkLayer.IBV_LINK_LAYER_ETHERNET
        self.gids = gid_table(info.guid, info.lid, info.gid, info.transport, info.subnet)
        self.pkeys = [_DEFAULT_PKEY]
        self._info = info
        self._partitioned = False
        self._own = list(self.gids)
        self._max_pkeys = attributes.max_pkeys

    @property
    def state(self) -> PortState:
        """As query_port tells it."""
        return self._cable if self._enabled else PortState.IBV_PORT_DOWN

    @property
    def phys_state(self) -> int:
        """PortPhysicalState: 5 is link up, 3 disabled, 2 polling for a cable that is down."""
        if not self._enabled:
            return _PHYS_DISABLED
        return _PHYS_POLLING if self._cable == PortState.IBV_PORT_DOWN else _PHYS_LINK_UP

    def checked(self, verb: str, attr: AHAttr, *, multicast: bool) -> AHAttr:
        """`attr` if packets can be sent there from here; a group's on Ethernet has the LID made of its GID.

        Raises VerbsError(EINVAL) for what is no address.
        """
        attr.check(verb, multicast=multicast, gids=len(self.gids), ethernet=self.ethernet)
        if self.ethernet and ipaddress.IPv6Address(attr.dgid).is_multicast:
            return replace(attr, dlid=multicast_lid_of_gid(attr.dgid))
        return attr

    def resolved(self, verb: str, attr: AHAttr, found: GidAnswer) -> AHAttr:
        """`attr` with the LID by which the fabric knows that address, which on Ethernet the application does not.

        Raises VerbsError(ENETUNREACH) when no port has it, or no packet of that kind gets there. RoCE v1's sender does
        not find out: its frames go to the MAC address in the GID, or to the router, which drops them.
        """
        if not found.lid:
            raise _nobody(verb, attr)
        if found.subnet != self._info.subnet:
            kind = self.gids[attr.sgid_index][1]
            if self._info.transport == "rocev2" and kind == GidType.IBV_GID_TYPE_ROCE_V1:
                raise VerbsError(
                    errno.ENETUNREACH,
                    f"{verb}: no route to {attr.dgid}, which is in another IP subnet: sgid_index {attr.sgid_index} is "
                    f"a RoCE v1 address, whose frames no router forwards; take one of RoCE v2, as {self._routable()}",
                )
            if kind == GidType.IBV_GID_TYPE_ROCE_V2 and ipaddress.IPv6Address(attr.dgid).is_link_local:
                raise VerbsError(
                    errno.ENETUNREACH,
                    f"{verb}: no route to {attr.dgid}, which is in another IP subnet: link-local addresses end at the "
                    f"router; take the peer's IPv4 address, with sgid_index {self._routable()}",
                )
        return replace(attr, dlid=found.lid)

    def _routable(self) -> int:
        return next(
            index
            for index, (gid, kind) in enumerate(self.gids)
            if kind == GidType.IBV_GID_TYPE_ROCE_V2 and not ipaddress.IPv6Address(gid).is_link_local
        )

    def check_found(self, verb: str, attr: AHAttr, path: PathAnswer) -> None:
        """On Ethernet an address that nobody answers to is known before anything is sent, on InfiniBand only by the
        retries. Raises VerbsError(ENETUNREACH)."""
        if self.ethernet and not path.reachable:
            raise _nobody(verb, attr)

    def group_lid(self, gid: str, lid: int) -> int:
        """The multicast LID of a group: on Ethernet made of its GID, whatever `lid` is. What is no GID is not refused
        here."""
        try:
            return multicast_lid_of_gid(gid) if self.ethernet else lid
        except ValueError:
            return lid

    def shown(self, attr: AHAttr) -> AHAttr:
        """`attr` as the application knows it: there are no LIDs on Ethernet."""
        return replace(attr, dlid=0) if self.ethernet else attr

    def set_state(self, state: int) -> None:
        """Take the port down (IBV_PORT_DOWN) or up (IBV_PORT_ACTIVE). Raises VerbsError(EINVAL) for other states."""
        if state not in (PortState.IBV_PORT_DOWN, PortState.IBV_PORT_ACTIVE):
            raise VerbsError(errno.EINVAL, f"Failed to set port: state {state} is not IBV_PORT_DOWN or IBV_PORT_ACTIVE")
        self._enabled = state == PortState.IBV_PORT_ACTIVE
        self._update("it was disabled")

    def set_cable(self, state: PortState) -> None:
        """What the fabric says: DOWN when the cable is, INIT when it is back, ACTIVE after the manager's sweep."""
        self._cable = state
        self._update("its cable is down")

    def _update(self, reason: str) -> None:
        up = self.state == PortState.IBV_PORT_ACTIVE
        if up != self.up:
            self.up = up
            if up:
                self.announce(E.IBV_EVENT_PORT_ACTIVE, "the port is up")
            else:
                self.announce(E.IBV_EVENT_PORT_ERR, f"the port is down ({reason}): frames vanish both ways")

    def set_pkeys(self, pkeys: list[int]) -> None:
        """Replace the P_Key table. Raises VerbsError(EINVAL) for one that is too long or holds what is no P_Key."""
        if not 1 <= len(pkeys) <= self._max_pkeys or not all(0 <= pkey <= 0xFFFF for pkey in pkeys):
            raise VerbsError(
                errno.EINVAL, f"Failed to set port: a P_Key table has 1 to {self._max_pkeys} entries of 16 bits"
            )
        if pkeys != self.pkeys:
            self.pkeys = list(pkeys)
            self.announce(E.IBV_EVENT_PKEY_CHANGE, f"the P_Key table has {len(pkeys)} entries")

    def set_partition(self, pkeys: list[int]) -> None:
        """The subnet manager gives the port the P_Keys of its partitions; [] for the default one."""
        if pkeys:
            self.set_pkeys(pkeys)
        elif self._partitioned:
            self.set_pkeys([_DEFAULT_PKEY])
        self._partitioned = bool(pkeys)

    def with_gids(self, gids: list[str]) -> list[tuple[str, GidType]]:
        """The port's table with these addresses besides its own; on RoCE each has an entry in every version.

        Raises VerbsError: EINVAL for text that is no GID and for more than the table holds, EOPNOTSUPP on iWARP, whose
        table has one entry.
        """
        try:
            addresses = [short_gid(gid) for gid in gids]
        except ValueError as error:
            raise VerbsError(errno.EINVAL, f"Failed to set port: {error}") from None
        if addresses and self._info.transport == "iwarp":
            raise VerbsError(
                errno.EOPNOTSUPP,
                f"Failed to set port: {addresses[0]} cannot be added, an iWARP port's table has one entry, the MAC",
            )
        table = self._own + [(address, kind) for address in addresses for kind in gid_types(self._info.transport)]
        if len(table) > GID_TABLE_LENGTH:
            raise VerbsError(
                errno.EINVAL, f"Failed to set port: {len(table)} GIDs, the table has {GID_TABLE_LENGTH} entries"
            )
        return table

    def set_gids(self, table: list[tuple[str, GidType]]) -> None:
        """Have this table, of `with_gids`."""
        if table != self.gids:
            self.gids = table
            self.announce(E.IBV_EVENT_GID_CHANGE, f"the GID table has {len(table)} addresses")

    def manager_restarted(self) -> None:
        """The subnet manager was away and set the port up anew, with ClientReregister (IBTA vol. 1, 14.4.11)."""
        self.announce(E.IBV_EVENT_SM_CHANGE, "the subnet manager has started again")
        self.announce(E.IBV_EVENT_CLIENT_REREGISTER, "the subnet manager asks to be told of subscriptions again")

    def manager_lost(self) -> None:
        """The subnet manager is gone."""
        self.sm_lid = 0
        self.announce(E.IBV_EVENT_SM_CHANGE, "the subnet manager is gone: no new paths")

    def announce(self, kind: E, text: str) -> None:
        """Tell every application that has the HCA open."""
        event = AsyncEvent(kind, 1, text)
        for listener in list(self.listeners):
            listener(event)


def _nobody(verb: str, attr: AHAttr) -> VerbsError:
    return VerbsError(errno.ENETUNREACH, f"{verb}: no port that can be reached has the GID {attr.dgid}")
