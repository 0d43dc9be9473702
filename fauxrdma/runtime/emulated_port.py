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
from fauxrdma.ib.gids import GID_TABLE_LENGTH, gid_table, lid_of_gid, multicast_lid_of_gid
from fauxrdma.wire.fabric_messages import HcaInfo, PathAnswer

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
        self.gids = gid_table(info.guid, info.lid, info.gid, LinkLayer(info.link_layer))
        self.pkeys = [_DEFAULT_PKEY]
        self._guid = info.guid
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

    def resolved(self, verb: str, attr: AHAttr, *, multicast: bool) -> AHAttr:
        """`attr` with the LID by which the fabric knows that address, which on Ethernet the application does not.

        Raises VerbsError: EINVAL for what is no address, ENETUNREACH when no port has it.
        """
        attr.check(verb, multicast=multicast, gids=len(self.gids), ethernet=self.ethernet)
        if not self.ethernet:
            return attr
        if ipaddress.IPv6Address(attr.dgid).is_multicast:
            return replace(attr, dlid=multicast_lid_of_gid(attr.dgid))
        lid = lid_of_gid(attr.dgid, self._guid)
        if lid is None:
            raise _nobody(verb, attr)
        return replace(attr, dlid=lid)

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

    def set_gids(self, gids: list[str]) -> None:
        """Give the port these addresses besides its own. Raises VerbsError: EINVAL for text that is no GID and for more
        than the table holds, EOPNOTSUPP on Ethernet, where no peer could resolve them."""
        try:
            addresses = [str(ipaddress.IPv6Address(gid)) for gid in gids]
        except ValueError as error:
            raise VerbsError(errno.EINVAL, f"Failed to set port: {error}") from None
        if addresses and self.ethernet:
            # Peers find an Ethernet port by its own GIDs; nobody would tell them of these.
            raise VerbsError(
                errno.EOPNOTSUPP,
                f"Failed to set port: {addresses[0]} cannot be added, since no peer could resolve it: an Ethernet port "
                f"here is reached by its own GIDs ({', '.join(dict.fromkeys(gid for gid, _ in self._own))}) only",
            )
        table = self._own + [(address, GidType.IBV_GID_TYPE_IB) for address in addresses]
        if len(table) > GID_TABLE_LENGTH:
            raise VerbsError(
                errno.EINVAL, f"Failed to set port: {len(table)} GIDs, the table has {GID_TABLE_LENGTH} entries"
            )
        if table != self.gids:
            self.gids = table
            self.announce(E.IBV_EVENT_GID_CHANGE, f"the GID table has {len(table)} addresses")

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
