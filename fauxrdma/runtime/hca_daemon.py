"""The HCA daemon of one node: N emulated HCAs, a Unix socket for applications, TCP for its peers and the manager."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
import stat
from collections.abc import Coroutine
from pathlib import Path
from typing import TextIO

from fauxrdma.errors import FabricUnhealthy, SetupError
from fauxrdma.ib.enums import PortState
from fauxrdma.ib.profiles import DEFAULT_PROFILE, PROFILES, HcaProfile
from fauxrdma.runtime.app_session import AppSession
from fauxrdma.runtime.data_path import DataPath
from fauxrdma.runtime.emulated_hca import EmulatedHca
from fauxrdma.runtime.event_trace import EventTrace
from fauxrdma.runtime.fabric_clock import FabricClock
from fauxrdma.runtime.frame_receiver import FrameReceiver
from fauxrdma.runtime.host_identity import epoch_here, host_identity
from fauxrdma.runtime.subnet_client import SubnetClient
from fauxrdma.runtime.virtual_data_path import VirtualClock, VirtualDataPath
from fauxrdma.runtime.virtual_node import VirtualNode
from fauxrdma.wire.control import Message
from fauxrdma.wire.fabric_messages import (
    CONTROL_VERSION,
    Directory,
    FlushDone,
    FlushRequest,
    MulticastApplied,
    MulticastMembers,
    NodeHello,
    NodeWelcome,
    PathsApplied,
    PathsChanged,
    RateGrant,
)
from fauxrdma.wire.fault_messages import HcaChanged, ManagerAway, ManagerRestarted

__all__ = ["HcaDaemon"]

log = logging.getLogger(__name__)

_BACKLOG = 256
_ACCEPT_AGAIN_S = 0.1


class HcaDaemon:
    """Start with :meth:`start`, end with :meth:`stop`; `lost` is set when the subnet manager went away. `trace`: the
    file that what happens in virtual time is written into."""

    def __init__(
        self,
        node: int,
        manager: tuple[str, int],
        socket_path: str,
        listen: tuple[str, int],
        profile: HcaProfile = PROFILES[DEFAULT_PROFILE],
        trace: str | None = None,
    ) -> None:
        self.node = node
        self.profile = profile
        self.socket_path = socket_path
        self.port = 0
        self.lost: asyncio.Event = asyncio.Event()
        self.data_path: DataPath
        self._manager = manager
        self._listen = listen
        self._sessions: set[AppSession] = set()
        self._receivers: set[FrameReceiver] = set()
        self._server: asyncio.Server | None = None
        self._unix: socket.socket | None = None
        self._subnet: SubnetClient | None = None
        self._early: list[Message] = []
        self._groups: dict[int, list[int]] = {}  # multicast LID to its members, as the manager last said
        self._tasks: set[asyncio.Task[None]] = set()
        self._ready = False
        self._manager_away = False  # for a while, by a fault
        self._virtual: VirtualNode | None = None
        self._trace_path = trace
        self._trace: TextIO | None = None

    async def start(self) -> None:
        """Listen, join the fabric, serve. Raises SetupError for addresses in use and an absent manager."""
        loop = asyncio.get_running_loop()
        listener = self._bind_tcp()
        try:
            self._bind_unix()
            host, self.port = listener.getsockname()[:2]
            if host in ("0.0.0.0", "::"):
                host = _address_towards(self._manager)
            hello = NodeHello(CONTROL_VERSION, self.node, host, self.port, host_identity(), os.getpid())
            self._subnet, welcome = await SubnetClient.connect(
                self._manager, hello, self._from_manager, self._manager_lost
            )
        except BaseException:
            listener.close()
            await self.stop()
            raise
        subnet = self._subnet
        self.data_path = self._build(loop, welcome)
        self._server = await loop.create_server(self._new_receiver, sock=listener, backlog=_BACKLOG)
        self._welcome = welcome
        self._ready = True
        assert self._unix is not None
        if isinstance(self.data_path, VirtualDataPath):
            if self._trace_path is not None:
                self._trace = Path(self._trace_path).open("w", encoding="ascii")  # noqa: SIM115  closed by `stop`
                self.data_path.trace(EventTrace(self._trace.write))
            self._virtual = VirtualNode(
                loop, self.data_path, self._unix.fileno(), lambda: self._sessions, self._busy,
                lambda: subnet.heard, subnet.send,
            )  # fmt: skip
        for msg in self._early:
            self._from_manager(msg)
        loop.add_reader(self._unix.fileno(), self._accept)
        log.info("node %d: %d HCAs on %s:%d, applications at %s", self.node, len(welcome.hcas), host, self.port,
                 self.socket_path)  # fmt: skip

    def _build(self, loop: asyncio.AbstractEventLoop, welcome: NodeWelcome) -> DataPath:
        assert self._subnet is not None
        virtual = welcome.clock == "virtual"
        epoch_ns = epoch_here(welcome.epoch_ns, welcome.boot_id, welcome.monotonic_ns)
        make = VirtualDataPath if virtual else DataPath
        data_path = make(
            loop,
            self.node,
            VirtualClock(welcome.epoch_ns) if virtual else FabricClock(epoch_ns, welcome.dilation),
            shaped=welcome.clock != "none",
            quantum=welcome.quantum,
            notify=self._subnet.send,
            path=self._subnet.known_path,
            want_path=self._want_path,
            adaptive=welcome.routing == "adaptive",
            seed=welcome.seed,
        )
        for info in welcome.hcas:
            # Keys must not be guessable, so they come from the system, but where a run is to be repeated.
            rng = random.Random(f"{welcome.seed}/{info.lid}/keys") if virtual else random.SystemRandom()
            data_path.add_hca(EmulatedHca(info, rng, self.profile, welcome.seed))
        return data_path

    def _bind_tcp(self) -> socket.socket:
        host, port = self._listen
        listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        try:
            listener.bind((host, port))
        except OSError as error:
            listener.close()
            raise SetupError(
                f"cannot listen on {host}:{port} ({error.strerror}): choose another --listen, port 0 picks a free one"
            ) from None
        return listener

    def _bind_unix(self) -> None:
        path = self.socket_path
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.stat(path).st_mode) and not _answers(path):
                os.unlink(path)  # left behind by a daemon that was killed
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.setblocking(False)
        old_umask = os.umask(0o177)
        try:
            sock.bind(path)
        except OSError as error:
            sock.close()
            raise SetupError(
                f"cannot create the socket {path} ({error.strerror}): is another daemon running there?"
            ) from None
        finally:
            os.umask(old_umask)
        sock.listen(_BACKLOG)
        self._unix = sock

    # ---- applications and peers ----------------------------------------------------------------------------------

    def _accept(self) -> None:
        assert self._unix is not None
        assert self._subnet is not None
        try:
            sock, _ = self._unix.accept()
        except BlockingIOError:
            return
        except OSError as error:
            # Out of descriptors, most likely: the caller stays in the queue, so look again later, not at once.
            log.warning("cannot accept an application: %s", error)
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._unix.fileno())
            loop.call_later(_ACCEPT_AGAIN_S, self._listen_again)
            return
        sock.setblocking(False)
        session = AppSession(
            asyncio.get_running_loop(), sock, self.node, self._welcome, self.data_path, self._subnet,
            self.profile.spec, self._session_closed,
        )  # fmt: skip
        self._sessions.add(session)
        self.data_path.touched()

    def _session_closed(self, session: AppSession) -> None:
        self._sessions.discard(session)
        self.data_path.touched()

    def _listen_again(self) -> None:
        if self._unix is not None:
            asyncio.get_running_loop().add_reader(self._unix.fileno(), self._accept)

    def _new_receiver(self) -> FrameReceiver:
        path = self.data_path
        return FrameReceiver(
            path.clock.epoch_ns,
            path.place,
            path.received,
            path.received_small_write,
            self._receiver_opened,
            self._receiver_closed,
        )

    def _receiver_opened(self, receiver: FrameReceiver) -> None:
        self._receivers.add(receiver)
        self.data_path.receivers.add(receiver)

    def _receiver_closed(self, receiver: FrameReceiver) -> None:
        self._receivers.discard(receiver)
        self.data_path.receivers.discard(receiver)

    # ---- the subnet manager --------------------------------------------------------------------------------------

    def _from_manager(self, msg: Message) -> None:
        if not self._ready:
            self._early.append(msg)
            return
        if self._virtual is not None:
            if self._virtual.handle(msg):
                return
            self._virtual.news()
        if isinstance(msg, RateGrant):
            self.data_path.set_rates(msg.rates)
        elif isinstance(msg, Directory):
            self.data_path.update_directory(msg)
        elif isinstance(msg, PathsChanged):
            self._apply_paths(msg)
        elif isinstance(msg, FlushRequest):
            assert self._subnet is not None
            self._subnet.report(self.data_path.counters())
            self._subnet.send(FlushDone(msg.token))
        elif isinstance(msg, HcaChanged):
            self.data_path.change_hca(msg)
        elif isinstance(msg, ManagerAway):
            self._manager_away = True
        elif isinstance(msg, ManagerRestarted):
            self._manager_away = False
            for hca in self.data_path.hcas.values():
                hca.port.manager_restarted()
        elif isinstance(msg, MulticastMembers):
            self._start(self._apply_members(msg))
        else:
            log.warning("the subnet manager sent an unexpected %s", type(msg).__name__)

    def _busy(self) -> bool:
        """Whether something was begun that ends by itself: all that is, waits for the subnet manager."""
        return not self._manager_away and (bool(self._tasks) or any(session.busy for session in self._sessions))

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self.data_path.touched()

    def _want_path(self, slid: int, dlid: int, label: int) -> None:
        """A flow has begun whose own path nobody has asked for, as datagrams' do."""
        self._start(self._learn_path(slid, dlid, label))

    async def _learn_path(self, slid: int, dlid: int, label: int) -> None:
        assert self._subnet is not None
        with contextlib.suppress(FabricUnhealthy):
            path = await self._subnet.path(slid, dlid, label)
            self._subnet.report(self.data_path.counters())  # of what went before by the way of others
            self.data_path.update_paths([path])

    def _apply_paths(self, msg: PathsChanged) -> None:
        """Count what went the old way, then go by the new ones."""
        assert self._subnet is not None
        self._subnet.report(self.data_path.counters())
        self._subnet.learn(msg.paths)
        for change in msg.ports:
            self.data_path.hcas[change.lid].port.set_cable(PortState(change.state))
        self.data_path.update_paths(msg.paths)
        self._subnet.send(PathsApplied(msg.token))

    async def _apply_members(self, msg: MulticastMembers) -> None:
        """Deliver to the members of a group from now on; first learn the tree as each HCA sees it."""
        subnet = self._subnet
        assert subnet is not None
        self._groups[msg.group] = msg.lids
        try:
            for hca in self.data_path.hcas:
                await subnet.path(hca, msg.group)
        except FabricUnhealthy as error:
            log.error("cannot reach the members of multicast LID 0x%x: %s", msg.group, error)
            return
        if self._groups[msg.group] is msg.lids:  # no later change has come in meanwhile
            self.data_path.flows.set_members(msg.group, tuple(msg.lids))
        subnet.send(MulticastApplied(msg.token))

    def _manager_lost(self, reason: str) -> None:
        log.error("the subnet manager is gone (%s): forwarding goes on, new paths and rates do not", reason)
        self.lost.set()
        for hca in self.data_path.hcas.values():
            hca.port.manager_lost()

    async def stop(self) -> None:
        """Release applications, close connections, remove the socket. Idempotent."""
        for session in list(self._sessions):
            session.close()
        for task in self._tasks:
            task.cancel()
        if self._unix is not None:
            with contextlib.suppress(ValueError):
                asyncio.get_running_loop().remove_reader(self._unix.fileno())
            self._unix.close()
            self._unix = None
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.socket_path)
        if self._server is not None:
            self._server.close()
            self._server = None
        for receiver in list(self._receivers):
            if receiver.transport is not None:
                receiver.transport.abort()
        if self._subnet is not None:
            self._subnet.close()
            self._subnet = None
        if self._ready:
            self._ready = False
            self.data_path.close()
        if self._trace is not None:
            self._trace.close()
            self._trace = None


def _address_towards(manager: tuple[str, int]) -> str:
    """Our address on the network where the manager is: there the other daemons are, too. Raises SetupError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(*manager, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)  # sends nothing, but chooses the way
            return str(probe.getsockname()[0])
    except OSError as error:
        raise SetupError(
            f"no way to the subnet manager at {manager[0]}:{manager[1]} ({error.strerror or error}): check "
            "--subnet-manager, or give --listen an address that other nodes reach"
        ) from None


def _answers(path: str) -> bool:
    """Whether somebody listens on this Unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
        return True
