"""What an HCA needs for datagrams besides its UD queue pairs: address handles, multicast groups, and who is meant."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence

from fauxrdma.errors import RemoteProtocolError, VerbsError
from fauxrdma.hca.multicast import MulticastTable
from fauxrdma.hca.port import Port
from fauxrdma.hca.queue_pair import QueuePair
from fauxrdma.hca.ud import MULTICAST_QPN, AddressHandle
from fauxrdma.ib.attributes import FIRST_MULTICAST_LID, LAST_MULTICAST_LID, AHAttr, DeviceAttr
from fauxrdma.ib.enums import QpType
from fauxrdma.memory.regions import ProtectionDomain
from fauxrdma.wire.grh import Grh, gid_bytes, is_multicast_gid
from fauxrdma.wire.headers import Frame

__all__ = ["Datagrams"]


class Datagrams:
    """Address handles by number and multicast attachments of one HCA."""

    def __init__(self, port: Port, attributes: DeviceAttr) -> None:
        self.port = port
        self.handles: dict[int, AddressHandle] = {}
        self.multicast = MulticastTable()
        self._attributes = attributes

    # ---- address handles -----------------------------------------------------------------------------------------

    def create_ah(self, handle: int, pd: ProtectionDomain, attr: AHAttr) -> AddressHandle:
        """An address handle. Raises VerbsError: EINVAL for an address nothing can be sent to, ENOMEM at max_ah."""
        attr.check("Failed to create AH", multicast=True, gids=len(self.port.gids))
        if len(self.handles) >= self._attributes.max_ah:
            raise VerbsError(errno.ENOMEM, f"Failed to create AH: the device has max_ah = {self._attributes.max_ah}")
        made = self.handles[handle] = AddressHandle(handle, pd, attr)
        pd.children += 1
        return made

    def destroy_ah(self, handle: int) -> None:
        """Forget an address handle; requests that name it fail from now on."""
        self.handles.pop(handle).pd.children -= 1

    # ---- multicast groups ----------------------------------------------------------------------------------------

    def attach(self, qp: QueuePair, gid: str, lid: int) -> None:
        """Let a UD queue pair hear a multicast group. Raises VerbsError: EINVAL for other queue pairs and for what is
        no group, ENOMEM at max_mcast_grp, max_mcast_qp_attach or max_total_mcast_qp_attach."""
        key = _group("attach", qp, gid, lid)
        here = self.multicast.queue_pairs(key)
        if not here and len(self.multicast) >= self._attributes.max_mcast_grp:
            limit = self._attributes.max_mcast_grp
            raise VerbsError(errno.ENOMEM, f"Failed to attach QP to multicast group: max_mcast_grp is {limit}")
        if qp.qpn not in here and len(here) >= self._attributes.max_mcast_qp_attach:
            limit = self._attributes.max_mcast_qp_attach
            raise VerbsError(errno.ENOMEM, f"Failed to attach QP to multicast group: max_mcast_qp_attach is {limit}")
        total = self._attributes.max_total_mcast_qp_attach
        if qp.qpn not in here and self.multicast.attachments >= total:
            raise VerbsError(
                errno.ENOMEM, f"Failed to attach QP to multicast group: max_total_mcast_qp_attach is {total}"
            )
        self.multicast.attach(qp.qpn, key, lid)

    def detach(self, qp: QueuePair, gid: str, lid: int) -> None:
        """Undo `attach`. Raises VerbsError(EINVAL) when there is nothing to undo."""
        if not self.multicast.detach(qp.qpn, _group("detach", qp, gid, lid), lid):
            raise VerbsError(
                errno.EINVAL,
                f"Failed to detach QP from multicast group: QP 0x{qp.qpn:x} is not attached to {gid}, LID 0x{lid:x}",
            )

    def forget_qp(self, qpn: int) -> None:
        """Detach a queue pair from everything."""
        for gid, lid in self.multicast.groups_of(qpn):
            self.multicast.detach(qpn, gid, lid)

    # ---- frames in -----------------------------------------------------------------------------------------------

    def place(self, frame: Frame) -> tuple[memoryview, ...] | None:
        """A buffer for a datagram's payload, which is kept in the frame; None to drain what is no datagram.

        Several senders' datagrams may be on their way into one queue pair, and one may be meant for several: each is
        received into a buffer of its own and copied when it is complete.
        """
        if frame.nbytes > self.port.mtu:
            return None
        frame.payload = (memoryview(bytearray(frame.nbytes)),) if frame.nbytes else ()
        return frame.payload

    def recipients(self, frame: Frame, qps: Mapping[int, QueuePair]) -> Sequence[int]:
        """The UD queue pairs that a datagram is meant for; what is meant for none is counted."""
        counters = self.port.counters
        if sum(map(len, frame.payload)) != frame.nbytes:
            return ()  # drained, not received
        dgid = None
        if frame.grh:
            try:
                dgid = Grh.from_bytes(frame.grh).dgid
            except RemoteProtocolError:
                counters.wrong_address += 1
                return ()
        if frame.dest_qpn == MULTICAST_QPN:
            return self.multicast.queue_pairs(dgid) if dgid is not None else ()
        if dgid is not None and all(dgid != gid for gid, _ in self.port.gids):
            counters.wrong_address += 1
            return ()
        qp = qps.get(frame.dest_qpn)
        if qp is None or qp.qp_type != QpType.IBV_QPT_UD:
            counters.no_queue_pair += 1
            return ()
        return (frame.dest_qpn,)


def _group(verb: str, qp: QueuePair, gid: str, lid: int) -> bytes:
    what = f"Failed to {verb} QP 0x{qp.qpn:x}: "
    if qp.qp_type != QpType.IBV_QPT_UD:
        raise VerbsError(errno.EINVAL, f"{what}it is {qp.qp_type.name}, only IBV_QPT_UD hears multicast groups")
    try:
        key = gid_bytes(gid)
    except ValueError:
        raise VerbsError(errno.EINVAL, f"{what}{gid!r} is not a GID") from None
    if not is_multicast_gid(key):
        raise VerbsError(errno.EINVAL, f"{what}{gid} is not a multicast GID, they begin with ff")
    if not FIRST_MULTICAST_LID <= lid <= LAST_MULTICAST_LID:
        raise VerbsError(errno.EINVAL, f"{what}LID 0x{lid:x} is not a multicast LID, they are 0xc000 to 0xfffe")
    return key
