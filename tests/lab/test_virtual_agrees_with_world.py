"""The world in one process and the lab's daemons under clock virtual: the same operations complete at the same ns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from fauxrdma.hca.work_queue import SendWqe
from fauxrdma.ib.enums import (
    IBV_SEND_SIGNALED,
    IBV_WC_SUCCESS,
    IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM,
    IBV_WR_SEND,
)
from fauxrdma.ib.work import WC
from fauxrdma.lab.local import LocalLab
from fauxrdma.memory.regions import MemoryRegion
from fauxrdma.sim.base import SimQp
from fauxrdma.sim.fabric_world import FabricWorld
from fauxrdma.topology.rank_places import block_places
from fauxrdma.verbs import CQ, MR, PD, QP, SGE, CompChannel, Context, QPCap, QPInitAttr, RecvWR, SendWR

NODES, GPUS = 2, 3
LENGTH = 1 << 20
RD_ATOMIC = 16


@dataclass(frozen=True)
class Stream:
    """Requests (opcode, bytes) that rank `source` posts at once, to rank `target`."""

    source: int
    target: int
    requests: tuple[tuple[int, int], ...]

    @property
    def receives(self) -> int:
        """How many requests consume a receive."""
        return sum(opcode in (IBV_WR_SEND, IBV_WR_RDMA_WRITE_WITH_IMM) for opcode, _ in self.requests)


WRITE, READ, SEND, IMM = IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_SEND, IBV_WR_RDMA_WRITE_WITH_IMM
PATTERNS = {
    "one large WRITE": [Stream(0, 3, ((WRITE, LENGTH),))],
    "small ones in a row": [Stream(0, 4, ((WRITE, 8), (WRITE, 4096), (WRITE, 1), (SEND, 100), (READ, 8)))],
    "READs": [Stream(1, 4, ((READ, LENGTH), (READ, 5000))), Stream(4, 1, ((READ, 70_000),))],
    "SENDs both ways": [Stream(2, 5, ((SEND, 65_536), (SEND, 0))), Stream(5, 2, ((SEND, 200_000), (IMM, 77_777)))],
    "three to one": [
        Stream(0, 3, ((WRITE, 300_000), (WRITE, 300_000))),
        Stream(1, 3, ((WRITE, 500_000),)),
        Stream(2, 3, ((IMM, 100_000), (WRITE, 333_333))),
    ],
    "within a node": [Stream(0, 1, ((WRITE, 100_000), (READ, 50_000)))],
}


Times = list[list[tuple[int, int]]]
"""By stream, of each request (number, ns from posting to completion)."""


class LabRig:
    """A lab's daemons with this process as the application of all its ranks."""

    def __init__(self, stack: ExitStack) -> None:
        lab = stack.enter_context(LocalLab("fat-tree", NODES, GPUS, clock="virtual", seed=4))
        places = block_places(lab.topology, NODES, GPUS)
        self._gpus = [place.gpu for place in places]
        self._contexts = [
            stack.enter_context(Context(f"hca{place.hca}", str(lab.socket_path(place.node)))) for place in places
        ]
        self._pds = [PD(context) for context in self._contexts]

    def _end(self, rank: int) -> tuple[QP, CQ, MR]:
        context, pd = self._contexts[rank], self._pds[rank]
        cq = CQ(context, 64, None, CompChannel(context))
        qp = QP(pd, QPInitAttr(scq=cq, rcq=cq, cap=QPCap(64, 64), sq_sig_all=0))
        return qp, cq, MR(pd, LENGTH, 7, gpu=self._gpus[rank])

    def times(self, streams: list[Stream]) -> Times:
        ends = []
        for stream in streams:
            (a, acq, amr), (b, _, bmr) = self._end(stream.source), self._end(stream.target)
            a.connect(b.endpoint(), timeout=14, max_rd_atomic=RD_ATOMIC)
            b.connect(a.endpoint(), timeout=14, max_rd_atomic=RD_ATOMIC)
            for _ in range(stream.receives):
                b.post_recv(RecvWR(0, [SGE(bmr.buf, LENGTH, bmr.lkey)]))
            ends.append((a, acq, amr, bmr))
        began = self._contexts[0].fabric_now_ns()
        for stream, (qp, _, mine, theirs) in zip(streams, ends, strict=True):
            qp.post_send(
                *(
                    SendWR(
                        at, opcode, [SGE(mine.buf, nbytes, mine.lkey)] if nbytes else [], 0, IBV_SEND_SIGNALED,
                        theirs.buf, theirs.rkey,
                    )
                    for at, (opcode, nbytes) in enumerate(stream.requests)
                )
            )  # fmt: skip
        return [
            self._wait(cq, len(stream.requests), began) for stream, (_, cq, _, _) in zip(streams, ends, strict=True)
        ]

    @staticmethod
    def _wait(cq: CQ, count: int, began: int) -> list[tuple[int, int]]:
        seen: list[WC] = []
        while len(seen) < count:
            seen += cq.wait(16, 60)
        assert all(wc.status == IBV_WC_SUCCESS for wc in seen)
        return [(wc.wr_id, wc.timestamp_ns - began) for wc in seen]


def times_in_world(world: FabricWorld, streams: list[Stream]) -> Times:
    ends: list[tuple[SimQp, MemoryRegion, MemoryRegion]] = []
    for stream in streams:
        here, there = world.hcas[stream.source], world.hcas[stream.target]
        a, b = here.create_qp(sq_sig_all=False), there.create_qp(sq_sig_all=False)
        world.connect(a, b, timeout=14, max_rd_atomic=RD_ATOMIC, max_dest_rd_atomic=RD_ATOMIC)
        mine, theirs = here.alloc(LENGTH)[0], there.alloc(LENGTH)[0]
        for _ in range(stream.receives):
            b.post_recv(0, ((theirs.base, LENGTH, theirs.lkey),))
        ends.append((a, mine, theirs))
    began = world.now
    for stream, (qp, mine, theirs) in zip(streams, ends, strict=True):
        for at, (opcode, nbytes) in enumerate(stream.requests):
            sges = ((mine.base, nbytes, mine.lkey),) if nbytes else ()
            qp.post_send(SendWqe(0, at, opcode, IBV_SEND_SIGNALED, sges, theirs.base, theirs.rkey))
    assert world.run()
    out = []
    for qp, _, _ in ends:
        assert all(wc.status == IBV_WC_SUCCESS for wc in qp.completions)
        out.append([(wc.wr_id, wc.timestamp_ns - began) for wc in qp.completions])
    return out


@pytest.fixture(scope="module")
def lab() -> Iterator[LabRig]:
    with ExitStack() as stack:
        yield LabRig(stack)


@pytest.fixture(scope="module")
def world() -> FabricWorld:
    return FabricWorld("fat-tree", NODES, GPUS, seed=4)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_same_nanoseconds(pattern: str, lab: LabRig, world: FabricWorld) -> None:
    streams = PATTERNS[pattern]
    assert times_in_world(world, streams) == lab.times(streams)
