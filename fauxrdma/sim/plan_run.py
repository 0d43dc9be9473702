"""A collective plan over emulated queue pairs in one process: real engines, real bytes, virtual time.

The same plans, executors and engines as in a lab of processes; only the driver differs. A run is deterministic: the
same world seed, plan and buffers give the same trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from fauxrdma.collectives.arithmetic import Array, numpy_arithmetic
from fauxrdma.collectives.channel import Channel
from fauxrdma.collectives.executor import Action, PlanExecutor, PutCompleted, PutMessage, ReturnCredits
from fauxrdma.collectives.immediate import decode_immediate, encode_immediate
from fauxrdma.collectives.plan import Plan
from fauxrdma.errors import CollectiveError
from fauxrdma.hca.work_queue import SendWqe
from fauxrdma.ib.enums import IBV_SEND_SIGNALED, IBV_WC_RECV_RDMA_WITH_IMM, IBV_WR_RDMA_WRITE_WITH_IMM, WcStatus
from fauxrdma.ib.work import WC
from fauxrdma.memory.regions import MemoryRegion
from fauxrdma.sim.base import BaseWorld, SimHca, SimQp

__all__ = ["run_plan"]


class _Peer:
    """One direction-pair of staging and the queue pair it is written through."""

    def __init__(self, hca: SimHca, peer: int, slots: int, slot_bytes: int) -> None:
        self.inbox, inbox = hca.alloc(slots * slot_bytes)
        self.outbox, outbox = hca.alloc(slots * slot_bytes)
        self.qp: SimQp = hca.create_qp()
        self.channel = Channel(peer, slots, slot_bytes, np.frombuffer(inbox, np.uint8), np.frombuffer(outbox, np.uint8))
        self.remote: MemoryRegion = self.inbox


class _Rank:
    """One rank: its executor, and the translation between completions and the executor's events."""

    def __init__(
        self, hca: SimHca, rank: int, plan: Plan, buffers: dict[str, Array], op: str | None, slots: int, slot_bytes: int
    ) -> None:
        self.rank = rank
        self.slots, self.slot_bytes = slots, slot_bytes
        self.peers = {peer: _Peer(hca, peer, slots, slot_bytes) for peer in plan.program(rank).peers}
        self._by_qp = {peer.qp.qp.qpn: peer for peer in self.peers.values()}
        channels = {number: peer.channel for number, peer in self.peers.items()}
        dtype = next(iter(buffers.values())).dtype
        arithmetic = numpy_arithmetic(op, dtype, plan.world_size) if op is not None else None
        self.executor = PlanExecutor(plan, rank, buffers, channels, arithmetic)
        self._hca = hca
        hca.on_completion = self._completed

    def start(self) -> None:
        for peer in self.peers.values():
            for _ in range(2 * self.slots + 2):
                peer.qp.post_recv(0)
        self._perform(self.executor.start())

    def leave(self) -> None:
        """Hear of nothing more."""
        self._hca.on_completion = None

    def _completed(self, wc: WC) -> None:
        peer = self._by_qp[wc.qp_num]
        if wc.status:
            raise CollectiveError(
                f"rank {self.rank}: queue pair 0x{wc.qp_num:x} to rank {peer.channel.peer} completed with "
                f"{WcStatus(wc.status).name}: {peer.qp.qp.last_error}"
            )
        if wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM:
            peer.qp.post_recv(0)
            self._perform(self.executor.handle(decode_immediate(peer.channel.peer, wc.imm_data, wc.byte_len)))
        else:
            self._perform(self.executor.handle(PutCompleted(peer.channel.peer, wc.wr_id)))

    def _perform(self, actions: Iterable[Action]) -> None:
        # All at once: what is posted here may complete at once, and come back to the executor.
        for action in tuple(actions):
            if isinstance(action, PutMessage):
                peer = self.peers[action.peer]
                region, number = peer.outbox, action.number
                if action.source is not None:
                    region, number = self.peers[action.source].inbox, action.source_number
                at = region.base + number % self.slots * self.slot_bytes
                sges = ((at, action.nbytes, region.lkey),) if action.nbytes else ()
                slot = peer.remote.base + action.number % self.slots * self.slot_bytes
                self._write(
                    peer, action.number + 1, sges, slot, encode_immediate(action.credits, action.number, action.call)
                )
            elif isinstance(action, ReturnCredits):
                peer = self.peers[action.peer]
                self._write(peer, 0, (), peer.remote.base, encode_immediate(action.count, None))

    def _write(self, peer: _Peer, wr_id: int, sges: tuple[tuple[int, int, int], ...], slot: int, imm: int) -> None:
        peer.qp.post_send(
            SendWqe(0, wr_id, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_SEND_SIGNALED, sges, slot, peer.remote.rkey, imm)
        )


def run_plan(
    world: BaseWorld,
    plan: Plan,
    buffers: Sequence[dict[str, Array]],
    *,
    op: str | None = None,
    slots: int = 4,
    slot_bytes: int = 65536,
) -> int:
    """Run `plan` on the world's HCAs, one rank each, in place on `buffers` (by rank); returns the fabric ns it took.

    `op` is the reduction (sum, avg, ...), None for plans that reduce nothing.

    Raises CollectiveError when a queue pair fails, or when the ranks wait for each other for ever.
    """
    ranks = [
        _Rank(world.hcas[rank], rank, plan, buffers[rank], op, slots, slot_bytes) for rank in range(plan.world_size)
    ]
    for rank in ranks:
        for number, peer in rank.peers.items():
            other = ranks[number].peers[rank.rank]
            peer.remote = other.inbox
            if rank.rank < number:
                world.connect(peer.qp, other.qp)
    began = world.now
    for rank in ranks:
        rank.start()
    world.run(lambda: all(rank.executor.done for rank in ranks))
    waiting = [rank.rank for rank in ranks if not rank.executor.done]
    if waiting:
        raise CollectiveError(f"nothing is under way and ranks {waiting} still wait: the plan cannot complete")
    took_ns = world.now - began
    for rank in ranks:
        rank.leave()
    world.run()  # acknowledgements and credits that nobody waits for
    return took_ns
