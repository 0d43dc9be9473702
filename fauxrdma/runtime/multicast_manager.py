"""Who hears which multicast LID: the subnet manager's side of joining and leaving (IBTA vol. 1, 15.2.5.17).

A change is told to every daemon, and a join is answered when each of them has applied it: a datagram that is sent after
the answer reaches the new member. A daemon that is stuck (stopped, say) is waited for only so long.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fauxrdma.errors import RemoteProtocolError
from fauxrdma.ib.attributes import FIRST_MULTICAST_LID, LAST_MULTICAST_LID
from fauxrdma.runtime.subnet_state import SubnetState
from fauxrdma.wire.control import Message
from fauxrdma.wire.fabric_messages import MulticastJoin, MulticastJoined, MulticastLeave, MulticastMembers

__all__ = ["APPLY_TIMEOUT_S", "MulticastManager"]

APPLY_TIMEOUT_S = 5.0
"""A join is answered after this long even if a daemon has not said that it applied it."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Change:
    """A change on its way: the nodes that have yet to apply it, and who is told when they have."""

    group: int
    joiner: tuple[int, int] | None  # node and its token
    waiting: set[int]
    timer: asyncio.TimerHandle | None = None


class MulticastManager:
    """Membership of one fabric. `nodes()` are the daemons that are in, `send(node, message)` reaches one."""

    def __init__(
        self, state: SubnetState, nodes: Callable[[], Iterable[int]], send: Callable[[int, Message], None]
    ) -> None:
        self._state = state
        self._nodes = nodes
        self._send = send
        self._members: dict[int, set[int]] = {}  # multicast LID to the LIDs of HCAs
        self._changes: dict[int, _Change] = {}
        self._next_token = 1

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
        change = self._changes.get(token)
        if change is not None:
            change.waiting.discard(node)
            if not change.waiting:
                self._finish(token)

    def node_joined(self, node: int) -> None:
        """Tell a daemon that has just come in of all groups."""
        for group in self._members:
            self._send(node, MulticastMembers(group, self.members(group), 0))

    def node_left(self, node: int, lids: Iterable[int]) -> None:
        """A daemon is gone: its HCAs (`lids`) leave every group, and nothing waits for it any more."""
        gone = set(lids)
        for group in [group for group, members in self._members.items() if members & gone]:
            self._remove(group, gone)
        for token in list(self._changes):
            self.applied(node, token)

    def close(self) -> None:
        """Stop the timers."""
        for change in self._changes.values():
            if change.timer is not None:
                change.timer.cancel()
        self._changes.clear()

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
        token, self._next_token = self._next_token, self._next_token + 1
        nodes = list(self._nodes())
        change = self._changes[token] = _Change(group, joiner, set(nodes))
        change.timer = asyncio.get_running_loop().call_later(APPLY_TIMEOUT_S, self._too_late, token)
        for node in nodes:
            self._send(node, MulticastMembers(group, self.members(group), token))
        if not nodes:
            self._finish(token)

    def _too_late(self, token: int) -> None:
        change = self._changes[token]
        waiting = sorted(change.waiting)
        _log.warning("nodes %s did not take multicast LID 0x%x within %g s", waiting, change.group, APPLY_TIMEOUT_S)
        self._finish(token)

    def _finish(self, token: int) -> None:
        change = self._changes.pop(token)
        if change.timer is not None:
            change.timer.cancel()
        if change.joiner is not None:
            node, theirs = change.joiner
            self._send(node, MulticastJoined(theirs))
