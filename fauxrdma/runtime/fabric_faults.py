"""Faults of the running fabric, driven by the clock: the service's side of `fauxrdma.fabric.faults`.

Whenever a fault begins or ends, what all active ones do together is computed anew; cables go down and come up by
`LinkChanges`, the flow model gets other rates, and every daemon is told which of its paths, HCAs and P_Key tables are
others now. While the manager itself is away (sm-restart) traps and questions for paths wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from fauxrdma.errors import ConfigError
from fauxrdma.fabric.faults import Effects, FaultTimeline
from fauxrdma.runtime.link_changes import LinkChanges
from fauxrdma.runtime.subnet_state import SubnetState
from fauxrdma.topology.fault_events import KINDS, describe_fault
from fauxrdma.topology.fault_targets import checked_fault
from fauxrdma.topology.graph import INFINIBAND
from fauxrdma.wire.control import Message
from fauxrdma.wire.fault_messages import (
    FaultAnswer,
    FaultClear,
    FaultEvent,
    FaultList,
    HcaChanged,
    ManagerAway,
    ManagerRestarted,
)

__all__ = ["FabricFaults"]

_log = logging.getLogger(__name__)


class FabricFaults:
    """The faults of one fabric. `declared` are those on its timeline, which begins with `start`. The other arguments
    are those of `LinkChanges`."""

    def __init__(
        self,
        state: SubnetState,
        links: LinkChanges,
        declared: Iterable[FaultEvent],
        now_ns: Callable[[], int],
        nodes: Callable[[], Iterable[int]],
        send: Callable[[int, Message], None],
        rerouted: Callable[[], None],
    ) -> None:
        self._state = state
        self._links = links
        self._now_ns = now_ns
        self._nodes = nodes
        self._send = send
        self._rerouted = rerouted
        self._timeline = FaultTimeline()
        for event in declared:
            self._timeline.add(event, 0)
        self._effects = Effects()
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: list[Callable[[], None]] = []  # questions to a manager that is away

    def start(self) -> None:
        """Zero of the timeline is now, the first time that this is called."""
        if self._timeline.zero_ns < 0:
            self._timeline.start(self._now_ns())
            self.poll()

    def inject(self, event: FaultEvent, answer: Callable[[FaultAnswer], None]) -> None:
        """A fault begins now, or is put on the timeline; `answer` once every daemon goes by it."""
        try:
            if event.kind not in KINDS:
                raise ConfigError(f"there is no fault {event.kind!r}: {', '.join(KINDS)}")
            number = self._timeline.add(checked_fault(event, self._state.topology), self._now_ns())
        except ConfigError as error:
            answer(FaultAnswer([], str(error)))
            return
        self._take_turn(lambda: answer(FaultAnswer([number])))

    def clear(self, msg: FaultClear, answer: Callable[[FaultAnswer], None]) -> None:
        """End a fault, or all; `answer` once every daemon goes by that."""
        numbers = self._timeline.clear(msg.number, self._now_ns())
        if not numbers and msg.number:
            answer(FaultAnswer([], f"there is no fault {msg.number} that is not over: see `fauxrdma fault list`"))
            return
        self._apply(lambda: answer(FaultAnswer(numbers)))
        self._arm()

    def list(self) -> FaultList:
        """All faults, and what links did to packets."""
        errors = sorted(self._state.link_errors.values(), key=lambda one: one.link)
        return FaultList(self._now_ns(), self._timeline.zero_ns, self._timeline.records(), errors)

    def ask(self, question: Callable[[], None]) -> None:
        """Answer a question for a path: later, while the manager is away."""
        if self._effects.manager_away:
            self._waiting.append(question)
        else:
            question()

    def node_joined(self, node: int) -> None:
        """A daemon that comes in takes its HCAs for whole, and the manager for present."""
        if self._effects.manager_away:
            self._send(node, ManagerAway())
        for name in self._effects.dead | frozenset(
            hca.name for hca in self._state.topology.hcas() if self._effects.pkeys(hca.name)
        ):
            self._tell_hca(name, only=node)

    def next_ns(self) -> int | None:
        """When `poll` has something to do."""
        return self._timeline.next_ns()

    def poll(self) -> None:
        """Faults begin and end whose time has come."""
        self._take_turn(_nothing)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- inside

    def _take_turn(self, done: Callable[[], None]) -> None:
        if self._timeline.poll(self._now_ns()):
            self._apply(done)
        else:
            done()
        self._arm()

    def _arm(self) -> None:
        self.close()
        due = self._timeline.next_ns()
        if due is not None and self._state.clock != "virtual":
            delay_s = max(0.0, (due - self._now_ns()) * self._state.dilation / 1e9)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.poll)

    def _apply(self, done: Callable[[], None]) -> None:
        old, now_ns = self._effects, self._now_ns()
        events = list(self._timeline.active.values())
        new = self._effects = Effects.of(self._state.topology, events)
        _log.info("faults: %s", "; ".join(map(describe_fault, events)) or "none")
        self._state.set_effects(new)
        for hca in self._state.topology.hcas():
            name = hca.name
            if (name in old.dead) != (name in new.dead) or old.pkeys(name) != new.pkeys(name):
                self._tell_hca(name)
        if old.manager_away != new.manager_away:
            self._manager_changed(new.manager_away, now_ns)
        self._links.set_down(old.down - new.down, new.down - old.down, now_ns)
        self._rerouted()
        self._links.spread(done)

    def _tell_hca(self, name: str, only: int | None = None) -> None:
        node = self._state.topology.nodes[name].host or 0
        if only not in (None, node):
            return
        pkeys = self._effects.pkeys(name) if self._state.topology.transport == INFINIBAND else []
        self._send(node, HcaChanged(self._state.manager.lid(name), name in self._effects.dead, pkeys))

    def _manager_changed(self, away: bool, now_ns: int) -> None:
        self._links.hold(away, now_ns)
        for node in list(self._nodes()):
            self._send(node, ManagerAway() if away else ManagerRestarted())
        if away:
            return
        waiting, self._waiting = self._waiting, []
        for question in waiting:
            question()


def _nothing() -> None:
    pass
