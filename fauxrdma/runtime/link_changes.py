"""Links of the running fabric that go down and come up, driven by the clock: the service's side of `fabric.sweep`.

A change is told to the daemons at once, since a dead link loses their packets at once; what they are told after the
sweep are new paths. Both go as PathsChanged, and both wait until the daemons have applied them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from fauxrdma.errors import ConfigError
from fauxrdma.fabric.sweep import Sweep
from fauxrdma.ib.enums import PortState
from fauxrdma.runtime.pending_changes import PendingChanges
from fauxrdma.runtime.subnet_state import SubnetState
from fauxrdma.wire.control import Message
from fauxrdma.wire.fabric_messages import (
    LinkChange,
    LinkChanged,
    PathAnswer,
    PathsChanged,
    PortChange,
    SweepReport,
)

__all__ = ["LinkChanges"]

_log = logging.getLogger(__name__)


class LinkChanges:
    """One fabric's link changes and sweeps. `now_ns()` is fabric time, of which a nanosecond lasts `dilation` of wall
    time; `nodes()` are the daemons that are in, `send(node, message)` reaches one; `rerouted()` is called when the
    tables have changed."""

    def __init__(
        self,
        state: SubnetState,
        now_ns: Callable[[], int],
        nodes: Callable[[], Iterable[int]],
        send: Callable[[int, Message], None],
        rerouted: Callable[[], None],
    ) -> None:
        self._state = state
        self._subnet = state.subnet
        self._now_ns = now_ns
        self._nodes = nodes
        self._send = send
        self._rerouted = rerouted
        self._pending = PendingChanges()
        self._timer: asyncio.TimerHandle | None = None
        self._ports: dict[int, PortState] = {}  # by LID, where it is not ACTIVE
        self._curious: list[Callable[[SweepReport], None]] = []
        self._held = False

    def change(self, msg: LinkChange, answer: Callable[[LinkChanged], None]) -> None:
        """A cable fails or comes back; `answer` once every daemon goes by it."""
        now = self._now_ns()
        try:
            link = self._subnet.link_up(msg.link, now) if msg.up else self._subnet.link_down(msg.link, now)
        except ConfigError as error:
            answer(LinkChanged("", str(error)))
            return
        _log.info("link %s is %s", link.name, "up" if msg.up else "down")
        self.spread(lambda: answer(LinkChanged(link.name, "")))
        self._arm()

    def set_down(self, up: Iterable[str], down: Iterable[str], now_ns: int) -> None:
        """Cables come back, and others fail; `spread` is to follow."""
        for name in up:
            self._subnet.link_up(name, now_ns)
        for name in down:
            self._subnet.link_down(name, now_ns)
        self._arm()

    def hold(self, held: bool, now_ns: int) -> None:
        """The manager is away: traps wait, no sweep goes on. When it is back it sweeps."""
        self._held = held
        if not held:
            self._subnet.sweep_from(now_ns)
        self._arm()

    def query(self, answer: Callable[[SweepReport], None]) -> None:
        """`answer` once all is settled."""
        self._curious.append(answer)
        self._look()

    def spread(self, done: Callable[[], None]) -> None:
        """Tell the daemons of every path and port that is not as they know it; `done()` once they go by them."""
        paths = self._state.paths.changes()
        ports = self._changed_ports()
        inside = set(self._nodes())
        told = sorted(inside & (paths.keys() | ports.keys()))

        def settled() -> None:
            done()
            self._look()

        token = self._pending.begin("changed paths", told, settled)
        for node in told:
            self._send(node, PathsChanged(token, paths.get(node, []), ports.get(node, [])))

    def _changed_ports(self) -> dict[int, list[PortChange]]:
        out: dict[int, list[PortChange]] = {}
        for hca in self._state.topology.hcas():
            lid = self._state.manager.lid(hca.name)
            state = self._subnet.port_state(hca.name)
            if state != self._ports.get(lid, PortState.IBV_PORT_ACTIVE):
                self._ports[lid] = state
                out.setdefault(hca.host or 0, []).append(PortChange(lid, int(state)))
        return out

    def applied(self, node: int, token: int) -> None:
        """A daemon goes by the paths it was told, and has counted what went before."""
        self._state.paths.apply(node)
        self._pending.applied(node, token)

    def node_joined(self, node: int) -> None:
        """A daemon that comes in takes its ports for active: tell it of those that are not."""
        ports = [
            PortChange(lid, int(state))
            for lid, state in self._ports.items()
            if self._state.manager.node(lid).host == node and state != PortState.IBV_PORT_ACTIVE
        ]
        if ports:
            nothing: list[PathAnswer] = []
            self._send(node, PathsChanged(self._pending.begin("ports", [node], self._look), nothing, ports))

    def node_left(self, node: int) -> None:
        """Nothing waits for a daemon that is gone."""
        self._pending.node_left(node)

    def close(self) -> None:
        """Stop the timers."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._pending.close()

    def next_ns(self) -> int | None:
        """When `poll` has something to do; None while the manager is away."""
        return None if self._held else self._subnet.next_ns()

    # -- sweeps

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self.next_ns()
        if due is not None and self._state.clock != "virtual":
            delay_s = max(0.0, (due - self._now_ns()) * self._state.dilation / 1e9)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.poll)

    def poll(self) -> None:
        """Carry out what is due: traps that arrive, sweeps that end."""
        self._timer = None
        now = self._now_ns()
        sweeps = [] if self._held else self._subnet.poll(now)
        if sweeps:
            for sweep in sweeps:
                _log.info("%s", _describe(sweep))
            routes = self._state.manager.routes
            for message in (*routes.messages, *routes.warnings):
                _log.warning("%s", message)
            self._state.reroute(now)
            self._rerouted()
            self.spread(lambda: None)
        self._arm()
        self._look()

    def _look(self) -> None:
        """Answer those who wait for all to be settled, if it is."""
        if self._subnet.settled and not self._pending and self._curious:
            curious, self._curious = self._curious, []
            report = self._report()
            for answer in curious:
                answer(report)

    def _report(self) -> SweepReport:
        sweeps = self._subnet.sweeps
        if not sweeps:
            return SweepReport(0, 0, 0, 0, [])
        last = sweeps[-1]
        return SweepReport(len(sweeps), last.started_ns, last.ended_ns, len(last.changed), list(last.down))


def _describe(sweep: Sweep) -> str:
    down = f"; down: {', '.join(sweep.down)}" if sweep.down else ""
    took_us = (sweep.ended_ns - sweep.started_ns) / 1000
    return f"heavy sweep of {took_us:.0f} us of fabric time changed {len(sweep.changed)} forwarding entries{down}"
