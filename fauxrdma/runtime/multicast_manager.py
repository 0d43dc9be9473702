"""Who hears which multicast LID: the subnet manager's side of joining and leaving (IBTA vol. 1, 15.2.5.17).

A change is told to every daemon, and a join is answered when each of them has applied it: a datagram that is sent after
the answer reaches the new member. A daemon that is stuck (stopped, say) is waited for only so long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fauxrdma.errors import RemoteProtocolError
from fauxrdma.ib.attributes import FIRST_MULTICAST_LID, LAST_MULTICAST_LID
from fauxrdma.runtime.pending_changes import PendingChanges
from fauxrdma.runtime.subnet_state import SubnetState
from fauxrdma.wire.control import Message
from fauxrdma.wire.fabric_messages import MulticastJoin, MulticastJoined, MulticastLeave, MulticastMembers

__all__ = ["MulticastManager"]


class MulticastManager:
    """Membership of one fabric. `nodes()` are the daemons that are in, `send(node, message)` reaches one;
    `trees_changed()` is called when datagrams to a group go other ways, before the daemons hear of its members."""

    def __init__(
        self,
        state: SubnetState,
        nodes: Callable[[], Iterable[int]],
        send: Callable[[int, Message], None],
        trees_changed: Callable[[], None],
    ) -> None:
        self._state = state
        self._nodes = nodes
        self._send = send
        self._trees_changed = trees_changed
        self._members: dict[int, set[int]] = {}  # multicast LID to the LIDs of HCAs
        self._changes = PendingChanges()

    def members(self, group: int) -> list[int]:
        """The LIDs of the HCAs that hear a group."""
        return sorted(self._members.get(group, ()))

    def join(self, node: int, msg: MulticastJoin) -> None:
        """An HCA of `node` joins. Raises RemoteProtocolError for an HCA of another node and for what is no group."""
        self._check(node, msg.lid, msg.group)
        self._members.setdefault(msg.group, set()).add(msg.lid)
        self._spread(msg.group, (node, msg.token))

    def leave(self, node: int, msg: MulticastLeave) -> None:
        """An HCA of `node` leaves; harmless when it is no member. Raises RemoteProtocolError as `join`."""
        self._check(node, msg.lid, msg.group)
        if msg.lid in self._members.get(msg.group, ()):
            self._remove(msg.group, {msg.lid})

    def applied(self, node: int, token: int) -> None:
        """A daemon delivers to the members as of this change."""
        self._changes.applied(node, token)

    def node_joined(self, node: int) -> None:
        """Tell a daemon that has just come in of all groups."""
        for group in self._members:
            self._send(node, MulticastMembers(group, self.members(group), 0))

    def node_left(self, node: int, lids: Iterable[int]) -> None:
        """A daemon is gone: its HCAs (`lids`) leave every group, and nothing waits for it any more."""
        gone = set(lids)
        for group in [group for group, members in self._members.items() if members & gone]:
            self._remove(group, gone)
        self._changes.node_left(node)

    def close(self) -> None:
        """Stop the timers."""
        self._changes.close()

    def _check(self, node: int, lid: int, group: int) -> None:
        self._state.check_own(node, lid)
        if not FIRST_MULTICAST_LID <= group <= LAST_MULTICAST_LID:
            raise RemoteProtocolError(
                f"node {node} names LID 0x{group:x} as a multicast group, they are 0xc000 to 0xfffe"
            )

    def _remove(self, group: int, lids: set[int]) -> None:
        self._members[group] -= lids
        if not self._members[group]:
            del self._members[group]
        self._spread(group, None)

    def _spread(self, group: int, joiner: tuple[int, int] | None) -> None:
        """Tell every daemon; once all have applied it, tell the joiner (node and its token)."""

        def joined() -> None:
            if joiner is not None:
                node, token = joiner
                self._send(node, MulticastJoined(token))

        self._state.subnet.set_members(group, self.members(group))
        self._trees_changed()
        nodes = list(self._nodes())
        token = self._changes.begin(f"multicast LID 0x{group:x}", nodes, joined)
        for node in nodes:
            self._send(node, MulticastMembers(group, self.members(group), token))
