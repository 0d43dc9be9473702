"""Deregistration with work in flight: after it not one byte moves, and both sides are told what hardware would tell.

Over the simulator's engines here; tests/verbs/test_memory_in_flight.py does the same over two daemons.
"""

from __future__ import annotations

import gc
import weakref

import pytest

from fauxrdma.hca.work_queue import SendWqe
from fauxrdma.ib.enums import (
    IBV_QPS_ERR,
    IBV_WC_LOC_PROT_ERR,
    IBV_WC_REM_ACCESS_ERR,
    IBV_WC_REM_OP_ERR,
    IBV_WC_SUCCESS,
    IBV_WC_WR_FLUSH_ERR,
    IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE,
    IBV_WR_SEND,
    BthOpcode,
)
from fauxrdma.memory.regions import MemoryRegion
from fauxrdma.sim.world import SimHca, SimQp, World
from fauxrdma.wire.headers import Frame

BURST = 4096
LENGTH = 10 * BURST


class Scene:
    """Two connected queue pairs, a region on each side, and a rule that deregisters when the n-th data frame passes."""

    def __init__(self) -> None:
        self.world = World(burst=BURST, latency_ns=10, fault_rule=self._rule)
        self.a, self.b = self.world.pair(timeout=8)
        self.ours, self.our_bytes = self.a.hca.alloc(LENGTH)
        self.theirs, self.their_bytes = self.b.hca.alloc(LENGTH)
        self.our_bytes[:] = b"a" * LENGTH
        self.when: tuple[SimHca, MemoryRegion, int] | None = None
        self.lost = 0
        self.seen = 0

    def dereg_after(self, qp: SimQp, region: MemoryRegion, frames: int, lost: int = 0) -> None:
        """Deregister once `frames` data frames have arrived; of what follows, lose `lost` frames."""
        self.when = (qp.hca, region, frames)
        self.lost = lost

    def _rule(self, frame: Frame) -> str:
        if self.when is not None and frame.nbytes and frame.opcode != BthOpcode.RC_ACKNOWLEDGE:
            self.seen += 1
            if self.seen == self.when[2] + 1:
                self._deregister()
            if self.seen > self.when[2] and self.lost:
                self.lost -= 1
                return "lost"
        return "ok"

    def _deregister(self) -> None:
        assert self.when is not None
        hca, region, _ = self.when
        data = self.their_bytes if region is self.theirs else self.our_bytes
        actions = hca.engine.deregister(region, self.world.now)
        self.world.at(self.world.now, lambda: self.world.perform(hca, actions))
        self.at_dereg = bytes(data)

    def statuses(self, qp: SimQp) -> list[tuple[int, int]]:
        return [(wc.wr_id, wc.status) for wc in qp.hca.completions]

    def request(self, opcode: int, wr_id: int = 1, length: int = LENGTH) -> SendWqe:
        return SendWqe(
            0, wr_id, opcode, 0, ((self.ours.base, length, self.ours.lkey),), self.theirs.base, self.theirs.rkey
        )


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_write_of_many_frames_loses_its_target(scene: Scene) -> None:
    scene.dereg_after(scene.b, scene.theirs, 4)
    scene.a.post_send(scene.request(IBV_WR_RDMA_WRITE))
    scene.a.post_send(scene.request(IBV_WR_RDMA_WRITE, 2))
    scene.world.run()
    assert scene.statuses(scene.a) == [(1, IBV_WC_REM_ACCESS_ERR), (2, IBV_WC_WR_FLUSH_ERR)]
    assert bytes(scene.their_bytes) == scene.at_dereg
    assert 0 < scene.at_dereg.count(b"a") < LENGTH
    assert scene.b.qp.state == IBV_QPS_ERR
    assert "is not registered" in scene.a.qp.last_error


def test_a_frame_that_was_placed_and_is_still_arriving_is_refused(scene: Scene) -> None:
    """Between `place` and `finish`: as in a daemon that has received half of a payload."""
    engine = scene.b.hca.engine
    frame = Frame(
        BthOpcode.RC_RDMA_WRITE_ONLY, 1, 2, scene.b.qp.qpn, scene.a.qp.attr.sq_psn, ack_req=True,
        va=scene.theirs.base, rkey=scene.theirs.rkey, dma_len=100, nbytes=100,
    )  # fmt: skip
    views = engine.place(frame)
    assert views is not None
    views[0][:50] = b"x" * 50
    scene.world.perform(scene.b.hca, engine.deregister(scene.theirs, 0))
    scene.a.post_send(scene.request(IBV_WR_RDMA_WRITE, length=100))  # the request that this frame is of
    from fauxrdma.hca.events import FrameReceived

    scene.b.hca.run(FrameReceived(frame))
    scene.world.run()
    assert scene.statuses(scene.a) == [(1, IBV_WC_REM_ACCESS_ERR)]
    assert scene.their_bytes[50:] == bytes(LENGTH - 50)


def test_a_read_that_is_being_answered_loses_its_source(scene: Scene) -> None:
    scene.their_bytes[:] = b"b" * LENGTH
    scene.dereg_after(scene.b, scene.theirs, 4)
    scene.a.post_send(scene.request(IBV_WR_RDMA_READ))
    scene.world.run()
    assert scene.statuses(scene.a) == [(1, IBV_WC_REM_ACCESS_ERR)]
    assert BURST <= scene.our_bytes.count(b"b") <= 5 * BURST  # what had been cut before
    assert scene.b.qp.state == IBV_QPS_ERR


def test_a_read_fails_though_a_later_write_was_acknowledged_already(scene: Scene) -> None:
    """The acknowledgement of a later request overtakes READ data on the emulated link; the NAK lies before it."""
    other, _ = scene.b.hca.alloc(100)
    scene.dereg_after(scene.b, scene.theirs, 4)
    scene.a.post_send(scene.request(IBV_WR_RDMA_READ))
    scene.a.post_send(
        SendWqe(0, 2, IBV_WR_RDMA_WRITE, 0, ((scene.ours.base, 100, scene.ours.lkey),), other.base, other.rkey)
    )
    scene.world.run()
    assert scene.statuses(scene.a) == [(1, IBV_WC_REM_ACCESS_ERR), (2, IBV_WC_WR_FLUSH_ERR)]
    assert not any("WC_RETRY" in line for line in scene.world.trace)


def test_a_read_that_is_asked_for_again_after_dereg_is_refused(scene: Scene) -> None:
    """The last answer was lost: executed again (9.7.4.4.1), the READ meets a key that is gone."""
    scene.dereg_after(scene.b, scene.theirs, 9, lost=1)
    scene.a.post_send(scene.request(IBV_WR_RDMA_READ))
    scene.world.run()
    assert scene.statuses(scene.a) == [(1, IBV_WC_REM_ACCESS_ERR)]


def test_a_send_loses_the_memory_of_the_receive_it_fills(scene: Scene) -> None:
    scene.b.post_recv(7, ((scene.theirs.base, LENGTH, scene.theirs.lkey),))
    scene.dereg_after(scene.b, scene.theirs, 4)
    scene.a.post_send(scene.request(IBV_WR_SEND))
    scene.world.run()
    assert scene.statuses(scene.a) == [(1, IBV_WC_REM_OP_ERR)]
    assert scene.statuses(scene.b) == [(7, IBV_WC_LOC_PROT_ERR)]
    assert bytes(scene.their_bytes) == scene.at_dereg


def test_a_requester_loses_what_it_is_sending(scene: Scene) -> None:
    first, _ = scene.a.hca.alloc(100)
    scene.dereg_after(scene.a, scene.ours, 4)
    scene.a.post_send(
        SendWqe(0, 1, IBV_WR_RDMA_WRITE, 0, ((first.base, 100, first.lkey),), scene.theirs.base, scene.theirs.rkey)
    )
    scene.a.post_send(scene.request(IBV_WR_RDMA_WRITE, 2))
    scene.a.post_send(scene.request(IBV_WR_RDMA_WRITE, 3))
    scene.world.run()
    assert scene.statuses(scene.a) == [
        (1, IBV_WC_SUCCESS),
        (2, IBV_WC_LOC_PROT_ERR),
        (3, IBV_WC_WR_FLUSH_ERR),
    ]
    assert 0 < scene.their_bytes.count(b"a") <= 5 * BURST


def test_what_was_sent_whole_completes_unless_it_has_to_be_sent_again(scene: Scene) -> None:
    scene.dereg_after(scene.a, scene.ours, 0)
    scene.a.post_send(scene.request(IBV_WR_RDMA_WRITE, length=BURST))
    scene.world.run()
    assert scene.statuses(scene.a) == [(1, IBV_WC_SUCCESS)]
    again = Scene()
    again.dereg_after(again.a, again.ours, 0, lost=1)
    again.a.post_send(again.request(IBV_WR_RDMA_WRITE, length=BURST))
    again.world.run()
    assert again.statuses(again.a) == [(1, IBV_WC_LOC_PROT_ERR)]
    assert bytes(again.their_bytes) == bytes(LENGTH)


@pytest.mark.parametrize("before", [0, 4])
def test_a_read_loses_its_destination(scene: Scene, before: int) -> None:
    scene.their_bytes[:] = b"b" * LENGTH
    scene.dereg_after(scene.a, scene.ours, before)
    scene.a.post_send(scene.request(IBV_WR_RDMA_READ))
    scene.a.post_send(scene.request(IBV_WR_RDMA_READ, 2))
    scene.world.run()
    assert scene.statuses(scene.a) == [(1, IBV_WC_LOC_PROT_ERR), (2, IBV_WC_WR_FLUSH_ERR)]
    assert bytes(scene.our_bytes) == scene.at_dereg
    assert scene.our_bytes.count(b"b") <= before * BURST


@pytest.mark.parametrize("opcode", [IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ])
@pytest.mark.parametrize("side", ["ours", "theirs"])
def test_no_reference_is_left_when_deregister_returns(opcode: int, side: str) -> None:
    """A view kept anywhere would keep the mapping alive, and one day be used."""

    class Memory(bytearray):
        """A bytearray that can be watched."""

    scene = Scene()
    memory = Memory(LENGTH)
    watch = weakref.ref(memory)
    qp, other = (scene.a, "ours") if side == "ours" else (scene.b, "theirs")
    region = qp.hca.engine.keys.register(99, scene.world.pds[qp.hca.lid], 1 << 32, LENGTH, 7, memoryview(memory))
    del memory
    setattr(scene, other, region)
    scene.a.post_send(scene.request(opcode))
    scene.world.run(until=lambda: sum("psn=" in line for line in scene.world.trace) >= 4)
    scene.world.perform(qp.hca, qp.hca.engine.deregister(region, scene.world.now))
    del region
    delattr(scene, other)
    gc.collect()
    assert watch() is None
    scene.world.run()
    assert scene.statuses(scene.a)[0][1] in (IBV_WC_LOC_PROT_ERR, IBV_WC_REM_ACCESS_ERR)
