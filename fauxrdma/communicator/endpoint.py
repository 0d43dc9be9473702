"""One peer of a communicator: a queue pair, the staging regions, and the words spoken over it.

Everything travels as RDMA WRITE_WITH_IMM into the peer's inbox; collectives/immediate.py says what the immediate means.
Each of these consumes one receive of no entries; as many as can be under way are kept posted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgpack
import numpy as np

from fauxrdma.collectives.channel import Channel
from fauxrdma.collectives.executor import Event, PutCompleted, PutMessage
from fauxrdma.collectives.immediate import FAREWELL, decode_immediate, encode_immediate
from fauxrdma.errors import CollectiveError, VerbsError
from fauxrdma.ib.enums import (
    IBV_ACCESS_LOCAL_WRITE,
    IBV_ACCESS_REMOTE_WRITE,
    IBV_QPT_RC,
    IBV_SEND_SIGNALED,
    IBV_WC_RECV_RDMA_WITH_IMM,
    IBV_WC_SUCCESS,
    IBV_WC_WR_FLUSH_ERR,
    IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM,
    WcStatus,
)
from fauxrdma.verbs import CQ, MR, PD, QP, SGE, WC, QPCap, QPInitAttr, RecvWR, SendWR

__all__ = ["Endpoint", "check_staging"]

SIGNAL_EVERY = 8
"""At least every eighth request asks for a completion, so that send-queue slots come free."""


def check_staging(peer: int, remote: Mapping[str, Any], slots: int, slot_bytes: int) -> None:
    """Raise CollectiveError unless `peer`, which described itself as `remote`, stages as this rank does."""
    if (remote["slots"], remote["slot_bytes"]) != (slots, slot_bytes):
        raise CollectiveError(
            f"rank {peer} stages {remote['slots']} slots of {remote['slot_bytes']} bytes, this rank {slots} of "
            f"{slot_bytes}: give every Communicator the same slots and slot_bytes"
        )


class Endpoint:
    """The connection to `peer`. Made unconnected; `description()` goes to the peer, whose own goes into `connect()`.
    The staging is memory of GPU `gpu` of the node, where the rank's data is; of the host for None."""

    def __init__(self, pd: PD, cq: CQ, peer: int, *, slots: int, slot_bytes: int, gpu: int | None = None) -> None:
        self.peer = peer
        self.failure: str | None = None
        """What went wrong with this connection, once something did."""
        self._flushed_only = False  # whether only flushes have been seen of it so far
        self.remote: dict[str, Any] = {}
        self.probing = False
        self._departed = False  # the peer said farewell
        self._farewell_at = 0  # which request our own was
        self._slots = slots
        self._slot_bytes = slot_bytes
        self._unsignaled = 0
        self._posted = 0
        self._reaped = 0
        self._to_repost = 0
        self._send_depth = 8 * slots + 2 * SIGNAL_EVERY
        self._receive_depth = 2 * slots + 3
        self._remote_inbox = 0
        self._remote_rkey = 0
        size = slots * slot_bytes
        self._inbox = MR(pd, size, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, gpu=gpu)
        try:
            self._outbox = MR(pd, size, IBV_ACCESS_LOCAL_WRITE, gpu=gpu)
        except BaseException:
            self._inbox.close()
            raise
        try:
            cap = QPCap(
                max_send_wr=self._send_depth,
                max_recv_wr=self._receive_depth,
                max_send_sge=1,
                max_recv_sge=1,
                max_inline_data=0,
            )
            self.qp = QP(pd, QPInitAttr(qp_type=IBV_QPT_RC, scq=cq, rcq=cq, cap=cap, sq_sig_all=0))
        except BaseException:
            self._outbox.close()
            self._inbox.close()
            raise
        self.qp_num: int = self.qp.qp_num
        self.channel: Channel | None = Channel(
            peer,
            slots,
            slot_bytes,
            np.frombuffer(self._inbox.view, dtype=np.uint8),
            np.frombuffer(self._outbox.view, dtype=np.uint8),
        )

    def description(self) -> bytes:
        """What the peer needs to connect and to write into the inbox."""
        content = {
            "qp": self.qp.endpoint(),
            "inbox": self._inbox.buf,
            "rkey": self._inbox.rkey,
            "slots": self._slots,
            "slot_bytes": self._slot_bytes,
        }
        packed: bytes = msgpack.packb(content, use_bin_type=True)
        return packed

    def connect(self, description: bytes, *, timeout: int, retry_cnt: int) -> None:
        """Bring the queue pair to RTS towards the peer described. `timeout` is the exponent of the ACK timeout.

        Raises CollectiveError when the two sides stage differently.
        """
        remote = msgpack.unpackb(description, raw=False)
        check_staging(self.peer, remote, self._slots, self._slot_bytes)
        self.remote = remote["qp"]
        self._remote_inbox = remote["inbox"]
        self._remote_rkey = remote["rkey"]
        self.qp.connect(self.remote, timeout=timeout, retry_cnt=retry_cnt, rnr_retry=7)
        self._to_repost = self._receive_depth
        self.repost(force=True)

    def repost(self, force: bool = False) -> None:
        """Post receives again for those consumed, once they are a batch (or now, with `force`)."""
        if self._to_repost >= self._slots or force:
            self.qp.post_recv(*[RecvWR() for _ in range(self._to_repost)])
            self._to_repost = 0

    @property
    def send_queue_full(self) -> bool:
        """Whether a completion must be awaited before anything can be posted."""
        return self._posted - self._reaped >= self._send_depth - 1

    def put(self, message: PutMessage, source: Endpoint | Channel | None) -> None:
        """Write a message into its slot at the peer and notify; `source` is the endpoint whose inbox is forwarded, or
        the channel if that inbox is not registered with the HCA."""
        sg: tuple[SGE, ...] = ()
        if message.nbytes:
            region, number = self._outbox, message.number
            if isinstance(source, Endpoint):
                region, number = source._inbox, message.source_number
            elif source is not None:
                start = number % self._slots * self._slot_bytes
                self._outbox.view[start : start + message.nbytes] = source.landed(
                    message.source_number, message.nbytes
                ).data
            address = region.buf + number % self._slots * self._slot_bytes
            sg = (SGE(address, message.nbytes, region.lkey),)
        slot_address = self._remote_inbox + message.number % self._slots * self._slot_bytes
        immediate = encode_immediate(message.credits, message.number, message.call)
        self._post(IBV_WR_RDMA_WRITE_WITH_IMM, sg, slot_address, immediate, message.completion)

    def return_credits(self, count: int) -> None:
        """Tell the peer that `count` of its slots are free."""
        self._post(IBV_WR_RDMA_WRITE_WITH_IMM, (), self._remote_inbox, encode_immediate(count, None), False)

    def probe(self) -> None:
        """Ask for a sign of life: an empty write, which the peer's HCA acknowledges whatever its application does."""
        if not self.probing and not self.send_queue_full:
            self.probing = True
            self._post(IBV_WR_RDMA_WRITE, (), self._remote_inbox, 0, True)

    def say_farewell(self) -> None:
        """Tell the peer, behind all that was put, that this rank wants nothing more of it."""
        if self.remote and not self._farewell_at and not self.send_queue_full:
            self._post(IBV_WR_RDMA_WRITE_WITH_IMM, (), self._remote_inbox, FAREWELL, True)
            self._farewell_at = self._posted

    @property
    def parted(self) -> bool:
        """Whether the queue pair may go: all that was put is with the peer, which knows that nothing more comes; or it
        wants nothing more itself, and may be gone before it acknowledges."""
        return not self.remote or self._departed or 0 < self._farewell_at <= self._reaped

    def _post(self, opcode: int, sg: tuple[SGE, ...], address: int, immediate: int, signaled: bool) -> None:
        self._unsignaled += 1
        self._posted += 1
        flags = 0
        if signaled or self._unsignaled >= SIGNAL_EVERY:
            flags = IBV_SEND_SIGNALED
            self._unsignaled = 0
        assert self.channel is not None
        # wr_id: how many requests and how many messages are behind this one, so that its completion retires them all.
        wr_id = self._posted << 32 | self.channel.sent & 0xFFFFFFFF
        self.qp.post_send(
            SendWR(
                wr_id=wr_id,
                opcode=opcode,
                sg=sg,
                imm_data=immediate,
                send_flags=flags,
                remote_addr=address,
                rkey=self._remote_rkey,
            )
        )

    def take(self, wc: WC, lost: Callable[[], str]) -> Event | None:
        """Take a completion; returns the event it stands for, None for one in error, which marks the connection as
        failed. `lost` says in words what is lost then."""
        if wc.status != IBV_WC_SUCCESS:
            # The first real error says what happened; the flushes around it only that it did.
            if self.failure is None or (self._flushed_only and wc.status != IBV_WC_WR_FLUSH_ERR):
                try:
                    status = WcStatus(wc.status).name.removeprefix("IBV_WC_")
                except ValueError:
                    status = str(wc.status)
                self.failure = f"{lost()} completed with {status}"
                self._flushed_only = wc.status == IBV_WC_WR_FLUSH_ERR
            return None
        if wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM:
            return self._received(wc)
        return PutCompleted(self.peer, self._send_completed(wc))

    def _send_completed(self, wc: WC) -> int:
        """How many messages have completed with a send completion."""
        self.probing = False
        self._reaped = wc.wr_id >> 32
        assert self.channel is not None
        # Rebuild the full count from its low 32 bits: never more than `sent`, never 2^32 behind it.
        sent: int = self.channel.sent
        behind: int = (sent - wc.wr_id) & 0xFFFFFFFF
        return sent - behind

    def _received(self, wc: WC) -> Event:
        self._to_repost += 1
        if wc.imm_data == FAREWELL:
            self._departed = True
        return decode_immediate(self.peer, wc.imm_data, wc.byte_len)

    @property
    def drained(self) -> bool:
        """Whether every message put has been acknowledged by the peer's HCA."""
        return self.channel is None or self.channel.completed >= self.channel.sent

    def disconnect(self) -> None:
        """Destroy the queue pair: from now on the peer hears nothing. The staging stays until `close`."""
        try:
            self.qp.close()
        except VerbsError:
            pass  # the daemon is gone, and the queue pair with it

    def close(self) -> None:
        """Destroy the queue pair and free the staging. Idempotent."""
        self.disconnect()
        self.channel = None  # its arrays must be gone before the regions can be unmapped
        for region in (self._outbox, self._inbox):
            try:
                region.close()
            except VerbsError:
                pass
