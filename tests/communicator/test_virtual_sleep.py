"""In virtual time a rank that goes to sleep, or wakes for a moment by the wall clock, hides nothing from the daemon."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from fauxrdma.abi.timer_page import TIMER_BYTES, AppTimer
from fauxrdma.communicator.bell import Bell
from fauxrdma.communicator.node_peer import NodePeer
from fauxrdma.communicator.peer_set import PeerSet
from fauxrdma.verbs.virtual_timer import VirtualTimer

DUE_NS = 3171


class NearPeer(NodePeer):
    """A peer of the node with a message under way, which has `arrived` or not."""

    def __init__(self, bell: Bell) -> None:
        self._bell = bell
        self.asked_with_bell: list[int] = []
        self.arrived = False
        self.failure = None
        self.exit_fd = -1
        self.next_due_ns = DUE_NS
        self.virtual = True
        self.channel = None
        self.peer = 0
        self.way = None

    def due_ns(self) -> int:
        self.asked_with_bell.append(self._bell._words[0])
        return DUE_NS

    def poll(self, now_ns: int) -> bool:
        return self.arrived


@pytest.fixture
def daemon_side() -> Iterator[AppTimer]:
    timer = AppTimer(memoryview(bytearray(TIMER_BYTES)), os.eventfd(0, os.EFD_NONBLOCK))
    timer.format()
    yield timer
    os.close(timer.event_fd)


@pytest.fixture
def rank(daemon_side: AppTimer) -> Iterator[Any]:
    timer = VirtualTimer.__new__(VirtualTimer)
    timer.fd, timer._timer = daemon_side.event_fd, daemon_side
    peers = PeerSet.__new__(PeerSet)
    peers.context = SimpleNamespace(virtual=SimpleNamespace(timer=timer), fabric_now_ns=lambda: 0)  # type: ignore[assignment]
    peers._bell = bell = Bell()
    peers._near = [NearPeer(bell)]
    peers._far = []
    peers._completion_channel = SimpleNamespace(fd=-1)  # type: ignore[assignment]
    yield peers
    bell.close()


def test_what_is_due_is_looked_at_behind_the_bell(rank: PeerSet, daemon_side: AppTimer) -> None:
    """A message that is announced after the look would ring; one announced before is seen. Else it would be slept
    through, and time would go past its arrival."""
    rank.before_sleep()
    assert rank._near[0].asked_with_bell == [1]  # type: ignore[attr-defined]
    assert daemon_side.wake_at == DUE_NS


def test_a_moment_awake_leaves_what_is_waited_for(rank: PeerSet, daemon_side: AppTimer) -> None:
    rank.before_sleep()
    assert not rank.after_sleep(())
    assert daemon_side.wake_at == DUE_NS


def test_once_something_happened_nothing_is_waited_for(rank: PeerSet, daemon_side: AppTimer) -> None:
    rank.before_sleep()
    rank._near[0].arrived = True  # type: ignore[attr-defined]
    assert rank.after_sleep(())
    assert daemon_side.wake_at is None
