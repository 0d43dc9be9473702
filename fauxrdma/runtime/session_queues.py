"""The completion verbs of one application: completion channels and completion queues."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fauxrdma.abi import control_verbs as V
from fauxrdma.abi.layout import cq_bytes
from fauxrdma.abi.rings import CompletionRing
from fauxrdma.errors import VerbsError
from fauxrdma.memory.shared import SharedMemory
from fauxrdma.runtime.event_pipe import EventPipe
from fauxrdma.runtime.queue_rings import CompletionChannel, CompletionQueue
from fauxrdma.wire.control import Message

if TYPE_CHECKING:
    from fauxrdma.runtime.app_session import AppSession

__all__ = ["QueueVerbs"]

_MAX_MODERATION = 0xFFFF
"""Greatest count and period (us) of event moderation: 16-bit fields of struct ibv_moderate_cq."""


class QueueVerbs:
    """Serves the verbs in `handlers`, destroys the kinds in `destroyers` (by handle), owns what it made."""

    def __init__(self, session: AppSession) -> None:
        self._session = session
        self.cqs: dict[int, CompletionQueue] = {}
        self.channels: dict[int, CompletionChannel] = {}
        self.handlers: dict[type[Message], Callable[[Any], None]] = {
            V.CreateChannel: self._create_channel,
            V.CreateCq: self._create_cq,
            V.ResizeCq: self._resize_cq,
            V.ModifyCq: self._modify_cq,
        }
        self.destroyers: dict[str, Callable[[int], None]] = {
            "cq": self._destroy_idle_cq,
            "channel": self._destroy_channel,
        }

    def _create_channel(self, msg: V.CreateChannel) -> None:
        read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
        handle = self._session.hca.new_handle()
        self.channels[handle] = CompletionChannel(
            handle, EventPipe(self._session.loop, write_fd, self._session.data_path.gate)
        )
        self._session.reply(V.Created(handle), read_fd)
        os.close(read_fd)

    def _create_cq(self, msg: V.CreateCq) -> None:
        limit = self._session.hca.attributes.max_cqe
        if not 1 <= msg.entries <= limit:
            raise VerbsError(errno.EINVAL, f"Failed to create CQ: {msg.entries} entries, legal are 1 to {limit}")
        vectors = self._session.hca.attributes.num_comp_vectors
        if not 0 <= msg.comp_vector < vectors:
            raise VerbsError(
                errno.EINVAL, f"Failed to create CQ: comp_vector is {msg.comp_vector}, legal are 0 to {vectors - 1}"
            )
        if len(self._session.hca.cqs) >= self._session.hca.attributes.max_cq:
            raise VerbsError(
                errno.ENOMEM, f"Failed to create CQ: the device has max_cq = {self._session.hca.attributes.max_cq}"
            )
        channel = None
        if msg.channel is not None:
            channel = self.channels.get(msg.channel)
            if channel is None:
                raise VerbsError(errno.EINVAL, f"Failed to create CQ: there is no completion channel {msg.channel}")
        ring, memory = _new_ring(msg.entries)
        cq = CompletionQueue(self._session.hca.new_handle(), ring, channel, self._session.later)
        if channel is not None:
            channel.users += 1
        self.cqs[cq.cqn] = cq
        self._session.hca.cqs[cq.cqn] = cq
        self._session.hca.owners["cq", cq.cqn] = self._session.async_event
        self._session.reply(V.Created(cq.cqn), memory.fd)
        memory.close_fd()

    def _cq(self, handle: int) -> CompletionQueue:
        cq = self.cqs.get(handle)
        if cq is None:
            raise VerbsError(errno.EINVAL, f"there is no cq {handle} in this context")
        return cq

    def _resize_cq(self, msg: V.ResizeCq) -> None:
        cq = self._cq(msg.cq)
        limit = self._session.hca.attributes.max_cqe
        if not 1 <= msg.entries <= limit:
            raise VerbsError(errno.EINVAL, f"Failed to resize CQ: {msg.entries} entries, legal are 1 to {limit}")
        if msg.entries < len(cq.ring):
            raise VerbsError(
                errno.EINVAL, f"Failed to resize CQ: {msg.entries} entries, but {len(cq.ring)} completions are pending"
            )
        ring, memory = _new_ring(msg.entries)
        # Between here and the answer only this thread writes, and the application does not poll.
        cq.ring.move_to(ring)
        cq.ring = ring
        self._session.reply(V.Done(), memory.fd)
        memory.close_fd()

    def _modify_cq(self, msg: V.ModifyCq) -> None:
        cq = self._cq(msg.cq)
        if not (0 <= msg.count <= _MAX_MODERATION and 0 <= msg.period_us <= _MAX_MODERATION):
            raise VerbsError(
                errno.EINVAL,
                f"Failed to modify CQ: cq_count {msg.count} and cq_period {msg.period_us} us, legal are 0 to "
                f"{_MAX_MODERATION}",
            )
        cq.moderate(msg.count, msg.period_us)
        self._session.reply(V.Done())

    def _destroy_idle_cq(self, handle: int) -> None:
        self._cq(handle)
        if self.cqs[handle].users:
            raise VerbsError(errno.EBUSY, f"Failed to destroy CQ {handle}: queue pairs still use it")
        self._destroy_cq(handle)

    def _destroy_channel(self, handle: int) -> None:
        if handle not in self.channels:
            raise VerbsError(errno.EINVAL, f"there is no channel {handle} in this context")
        if self.channels[handle].users:
            raise VerbsError(errno.EBUSY, f"Failed to destroy completion channel {handle}: queues still use it")
        self.channels.pop(handle).close()

    def _destroy_cq(self, cqn: int) -> None:
        cq = self.cqs.pop(cqn)
        self._session.hca.cqs.pop(cqn, None)
        self._session.hca.owners.pop(("cq", cqn), None)
        if cq.channel is not None:
            cq.channel.users -= 1

    def waits_for(self) -> list[str]:
        """The queues whose next completion is to be announced, in words."""
        return [f"a completion on CQ {cqn}" for cqn, cq in self.cqs.items() if cq.ring.armed_for(True)]

    def close(self) -> None:
        """Destroy everything. Queue pairs are gone already."""
        for cqn in list(self.cqs):
            self._destroy_cq(cqn)
        for channel in self.channels.values():
            channel.close()
        self.channels.clear()


def _new_ring(entries: int) -> tuple[CompletionRing, SharedMemory]:
    memory = SharedMemory.create(cq_bytes(entries), "fauxrdma-cq")
    ring = CompletionRing(memory.view, entries)
    ring.format()
    return ring, memory
