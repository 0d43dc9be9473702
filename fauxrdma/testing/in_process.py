"""HCA daemons in the process of their applications, under a virtual clock: what `Pair` stands on.

The sessions, engines, data path and subnet manager are those of the daemons; the event loop is a pump that is turned
whenever an application waits. So the objects of `fauxrdma.verbs` work as ever, and no process is started.

Fabric time stands still while applications compute. It goes on when all threads that used the world sleep: those that
wait in a verb turn the pump themselves, and for those that wait elsewhere (a `select` of one's own, a lock, an event
loop) a helper thread does, once every thread of the process sleeps.
"""

from __future__ import annotations

import errno
import itertools
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from fauxrdma.errors import ConfigError, FabricUnhealthy, VerbsError
from fauxrdma.fabric.timekeeper import POLL_NS
from fauxrdma.ib.profiles import DEFAULT_PROFILE, parse_profile
from fauxrdma.runtime.app_session import AppSession
from fauxrdma.runtime.control_channel import IN_PROCESS, ControlChannel
from fauxrdma.sim.fabric_world import FabricWorld
from fauxrdma.testing.pump import PumpLoop
from fauxrdma.testing.threads import ThreadWatch
from fauxrdma.topology.graph import Topology
from fauxrdma.wire.control import Message, MessageBuffer
from fauxrdma.wire.fabric_messages import (
    CONTROL_VERSION,
    Counters,
    GidAnswer,
    GidQuery,
    GidsChanged,
    NodeWelcome,
    PathAnswer,
    PeerTraffic,
)

__all__ = ["Deadlock", "InProcessWorld"]

_NS = 1_000_000_000
_ANSWER_NS = 30 * _NS
_IDLE_NS = 10 * _NS
_LAST_BATCH = 20_000
_PAUSE_S = 0.0002
_HELPER_S = 0.002
_numbers = itertools.count(1)


class Deadlock(VerbsError):
    """All threads wait, and nothing is left to happen in the fabric: nobody will ever be woken. Its text says what
    each queue can wait for. Look for a receive that was not posted, a request that was not signaled, a frame that a
    rule of yours dropped, or give the wait a time limit, which is of fabric time here. `errno` is EDEADLK."""


class InProcessWorld(FabricWorld):
    """All nodes of the fabric `topology` with their daemons, in this process. `socket_path(node)` is what `Context`
    takes for the path of a node's daemon. Close it in the end.

    Raises what `load_topology` raises.
    """

    def __init__(
        self,
        topology: str | Topology,
        nodes: int | None = None,
        gpus: int | None = None,
        *,
        seed: int = 0,
        profile: str = DEFAULT_PROFILE,
    ) -> None:
        super().__init__(topology, nodes, gpus, seed=seed, profile=profile, traced=True)
        self._seed = seed
        self._profile = parse_profile(profile).spec
        self._number = next(_numbers)
        self._sessions: list[set[AppSession]] = [set() for _ in self._nodes]
        self._subnets = [_Subnet(self, node) for node in range(len(self._nodes))]
        self._turn = threading.Condition(threading.RLock())
        self._wanting = 0  # threads that wait for their turn
        self._changes = 0
        self._users: dict[int, threading.Thread] = {}  # by native id: threads that used the world
        self._waiting: dict[int, Callable[[], object]] = {}
        self._batch, self._idle_since = 20, -1
        self.closed = False
        for node in range(len(self._nodes)):
            IN_PROCESS[self.socket_path(node)] = self._opener(node)
        self._helper = threading.Thread(target=self._help, name="fauxrdma-pair", daemon=True)
        self._helper.start()

    @property
    def loop(self) -> PumpLoop:
        """What the daemons live by."""
        return cast(PumpLoop, self._turns)

    def _make_turns(self) -> PumpLoop:
        return PumpLoop()

    def socket_path(self, node: int) -> str:
        """What stands for the path of a node's socket. Raises ConfigError for a node that is not there."""
        if not 0 <= node < len(self._nodes):
            raise ConfigError(f"there is no node {node}: {self.topology.name} has nodes 0 to {len(self._nodes) - 1}")
        return f"fauxrdma-in-process/{os.getpid()}/{self._number}/n{node}"

    def _opener(self, node: int) -> Callable[[], ControlChannel]:
        return lambda: _Channel(self, node)

    def open_session(self, node: int, sock: socket.socket) -> None:
        """An application has come."""
        welcome = NodeWelcome(
            CONTROL_VERSION, self.topology.name, "virtual", 0, 1.0, 0, self._seed, self._state.hcas(node),
            self.topology.shape.to_dict(), self.manager.routes.engine,
        )  # fmt: skip
        sessions = self._sessions[node]
        sessions.add(
            AppSession(
                cast(Any, self.loop), sock, node, welcome, self._nodes[node], cast(Any, self._subnets[node]),
                self._profile, sessions.discard,
            )
        )  # fmt: skip

    # ---- taking turns --------------------------------------------------------------------------------------------

    @contextmanager
    def turn(self) -> Iterator[None]:
        """One thread at a time works on the world."""
        self._wanting += 1
        self._turn.acquire()
        self._wanting -= 1
        try:
            self._changes += 1
            self._users[threading.get_native_id()] = threading.current_thread()
            yield
        finally:
            self._turn.notify_all()
            self._turn.release()

    def serve(self) -> None:
        """Have the daemons do what applications have asked for; no fabric time passes."""
        with self.turn():
            self._serve()

    def _serve(self) -> None:
        self.loop.run()
        if self.loop.serve():
            self._changes += 1
        self._settle()

    def wait(self, ready: Callable[[], Any], timeout_s: float | None) -> Any:
        """Let fabric time go on until `ready()` is true, and return it; what it is then when `timeout_s` of fabric time
        have passed. Raises Deadlock when there is no limit and nothing is left to happen."""
        me = threading.get_native_id()
        with self.turn():
            deadline = None if timeout_s is None else self.now + round(timeout_s * _NS)
            outer = self._waiting.get(me)
            self._waiting[me] = ready
            try:
                while True:
                    self._serve()
                    if (found := ready()) or timeout_s == 0 or self.closed:
                        return found
                    if not self._others_wait(me):
                        self._turn.wait(_PAUSE_S)
                    elif not self._go_on(deadline) and self._all_sleep():
                        if deadline is None:
                            raise Deadlock(errno.EDEADLK, self._stuck())
                        self._step(max(deadline, self.now))
                        return ready()
            finally:
                if outer is None:
                    self._waiting.pop(me, None)
                else:
                    self._waiting[me] = outer

    def _others_wait(self, me: int) -> bool:
        """Whether no other thread that used the world has anything to do."""
        if any(ready() for thread, ready in list(self._waiting.items()) if thread != me):
            self._turn.notify_all()
            return False
        self._users = {number: thread for number, thread in self._users.items() if thread.is_alive()}
        others = [number for number in self._users if number != me and number not in self._waiting]
        return self._wanting == 0 and (not others or self._sleep(others))

    def _sleep(self, threads: list[int] | None) -> bool:
        """Whether threads sleep (None: all of the process but this one), and meanwhile nothing was asked for."""
        watch, before = ThreadWatch(threads, {self._helper.native_id or 0}), self._changes
        self._turn.wait(_PAUSE_S)
        return watch.asleep() and self._changes == before and self._wanting == 0 and not self.loop.input_waits()

    def _all_sleep(self) -> bool:
        if threading.active_count() == 2:  # this one and the helper
            return True
        waiting = set(self._waiting)
        others = [number for number in ThreadWatch.threads() if number not in waiting]
        return self._sleep(
            [number for number in others if number not in (threading.get_native_id(), self._helper.native_id)]
        )

    def _go_on(self, deadline: int | None) -> bool:
        """One step of fabric time, to what is due next; False when nothing is, before the deadline."""
        due = self._next_ns()
        polling = [number for number, node in enumerate(self._nodes) if node.polling()]
        if due is not None and (deadline is None or due <= deadline or polling):
            self._batch, self._idle_since = 20, -1
            at = max(due, self.now)
        elif polling:
            if self._idle_since < 0:
                self._idle_since = self.now
            at = self.now + POLL_NS * self._batch
            self._batch = min(self._batch * 2, _LAST_BATCH)
            if at - self._idle_since > _IDLE_NS:
                self._idle_since = -1
                raise Deadlock(errno.EDEADLK, self._stuck())
        else:
            return False
        for number in polling:
            self._due[number] = min(at, self._due[number] or at)
        self._step(at)
        return True

    def _stuck(self) -> str:
        waits = [
            f"node {node} waits for {what}"
            for node, sessions in enumerate(self._sessions)
            for session in sessions
            for what in session.waits_for()
        ]
        return f"nothing is left to happen at {self.now} ns of fabric time, and every thread waits: " + (
            "; ".join(waits) or "no queue pair has work"
        )

    def _help(self) -> None:
        """For those who wait outside the verbs."""
        while not self.closed:
            time.sleep(_HELPER_S)
            if self._waiting or not self._turn.acquire(blocking=False):
                continue
            try:
                while not self.closed and not self._waiting and self._wanting == 0:
                    if self.loop.input_waits():
                        self._serve()
                    elif self._next_ns() is None or not self._sleep(None) or not self._go_on(None):
                        break
            finally:
                self._turn.release()

    # ---- the end -------------------------------------------------------------------------------------------------

    def hang_up(self, node: int) -> None:
        """End all contexts of a node, as when their processes are killed."""
        with self.turn():
            for session in list(self._sessions[node]):
                session.close()
            self._settle()

    def close(self) -> None:
        """End everything. Contexts that are open see that their daemon is gone. Idempotent."""
        if self.closed:
            return
        for node in range(len(self._nodes)):
            self.hang_up(node)
            IN_PROCESS.pop(self.socket_path(node), None)
        with self.turn():
            self.closed = True
            for data_path in self._nodes:
                data_path.close()
        self._helper.join()


class _Channel(ControlChannel):
    """An application's end, the daemon being in the same process: whoever waits has it work."""

    def __init__(self, world: InProcessWorld, node: int) -> None:
        self._world = world
        self.path = world.socket_path(node)
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._broken = False
        self._buffer = MessageBuffer()
        self._fds = []
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        theirs.setblocking(False)
        with world.turn():
            world.open_session(node, theirs)

    def request(self, *arguments: Any, **options: Any) -> Any:
        """As ControlChannel."""
        with self._world.turn():
            return super().request(*arguments, **options)

    def _receive(self) -> Message:
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        for msg in self._buffer:
            return msg
        if not self._world.wait(lambda: poller.poll(0), _ANSWER_NS / _NS):
            raise TimeoutError
        return super()._receive()

    def wait(self, poller: select.poll, timeout_s: float | None) -> list[tuple[int, int]]:
        """As ControlChannel; `timeout_s` is of fabric time."""
        ready: list[tuple[int, int]] = self._world.wait(lambda: poller.poll(0), timeout_s)
        return ready

    def close(self) -> None:
        """As ControlChannel; everything is released on return."""
        super().close()
        if os.getpid() == self._pid and not self._world.closed:
            self._world.serve()


class _Subnet:
    """The subnet manager as a node's sessions ask it."""

    def __init__(self, world: InProcessWorld, node: int) -> None:
        self._world = world
        self._node = node

    async def path(self, slid: int, dlid: int, label: int = 0) -> PathAnswer:
        """As SubnetClient."""
        answer = self._world.path(slid, dlid, label)
        if answer is None:
            raise FabricUnhealthy(f"there is no LID {dlid}")
        return answer

    async def find(self, gid: str) -> GidAnswer:
        """As SubnetClient."""
        return self._world._state.find_gid(GidQuery(gid, 0))

    async def set_gids(self, lid: int, gids: list[str]) -> str:
        """As SubnetClient."""
        return self._world._state.gids_changed(self._node, GidsChanged(lid, gids, 0)).taken

    async def join(self, lid: int, group: int) -> None:
        """Multicast trees are the real subnet manager's."""
        raise FabricUnhealthy("multicast needs daemons: take a fabric instead of a pair")

    def leave(self, lid: int, group: int) -> None:
        """Nobody can have joined."""

    def send(self, msg: Message) -> None:
        """As SubnetClient."""
        if isinstance(msg, PeerTraffic):
            self._world._state.count_peers(self._node, msg)
        else:
            self._world.told(self._node, msg)

    def report(self, counters: Counters) -> None:
        """Counters are not kept."""

    def forget_label(self, slid: int, label: int) -> bool:
        """As SubnetClient."""
        paths = self._world._paths
        if label:
            for flow in [flow for flow in paths if flow[0] == slid and flow[2] == label]:
                del paths[flow]
        return False
