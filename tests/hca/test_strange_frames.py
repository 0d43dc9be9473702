"""Frames that no correct peer sends, and waits that must really be waited."""

from __future__ import annotations

import pytest

from fauxrdma.hca.events import FrameReceived
from fauxrdma.hca.work_queue import SendWqe
from fauxrdma.ib.enums import (
    IBV_QPS_ERR,
    IBV_QPS_RTS,
    IBV_WC_BAD_RESP_ERR,
    IBV_WC_SUCCESS,
    IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE,
    IBV_WR_SEND,
    BthOpcode,
)
from fauxrdma.sim.world import SimHca, SimQp, World
from fauxrdma.wire.headers import Frame

SIZE = 20_000


def deliver(hca: SimHca, frame: Frame, payload: bytes = b"") -> None:
    """Hand a frame to an engine as the runtime does."""
    frame.nbytes = len(payload)
    views = hca.engine.place(frame)
    for view in views or ():
        view[:] = payload[: len(view)]
        payload = payload[len(view) :]
    hca.run(FrameReceived(frame))


def last_nak(world: World) -> str:
    return next(line for line in reversed(world.trace) if "ACKNOWLEDGE" in line)


def pair(world: World) -> tuple[SimQp, SimQp]:
    return world.pair(sq_psn=100, rq_psn=100, timeout=14)


@pytest.mark.parametrize("said", [0, 19, 21, 1 << 20])
def test_a_write_of_another_length_than_its_header_says(said: int) -> None:
    world = World(2)
    a, b = pair(world)
    his, data = world.hcas[1].alloc(SIZE)
    write = Frame(
        int(BthOpcode.RC_RDMA_WRITE_ONLY), 1, 2, b.qp.qpn, 100, True, va=his.base, rkey=his.rkey, dma_len=said
    )
    deliver(world.hcas[1], write, b"x" * 20)
    world.run()
    assert not any(data)
    assert b.qp.state == IBV_QPS_ERR
    assert f"syndrome={0x60 | (2 if said > SIZE else 1)}" in last_nak(world)
    assert a.completions == []


def test_a_message_that_grows_over_its_length() -> None:
    """FIRST of 4096 out of 5000 B, then a LAST that is too long."""
    world = World(2)
    _, b = pair(world)
    his, data = world.hcas[1].alloc(SIZE)
    first = Frame(int(BthOpcode.RC_RDMA_WRITE_FIRST), 1, 2, b.qp.qpn, 100, va=his.base, rkey=his.rkey, dma_len=5000)
    deliver(world.hcas[1], first, b"x" * 4096)
    deliver(world.hcas[1], Frame(int(BthOpcode.RC_RDMA_WRITE_LAST), 1, 2, b.qp.qpn, 101, True), b"y" * 905)
    world.run()
    assert bytes(data[4096:]) == bytes(SIZE - 4096)
    assert b.qp.state == IBV_QPS_ERR


@pytest.mark.parametrize("ahead", [1, 2, 1000, (1 << 23) - 1])
def test_an_acknowledgement_of_what_was_never_sent(ahead: int) -> None:
    world = World(2, fault_rule=lambda frame: "lost")
    a, _ = pair(world)
    mine, _ = world.hcas[0].alloc(SIZE)
    a.post_send(SendWqe(0, 1, IBV_WR_RDMA_WRITE, 2, ((mine.base, 64, mine.lkey),), 0x10000, 7))
    world.run(lambda: any("WRITE_ONLY" in line for line in world.trace))
    deliver(world.hcas[0], Frame(int(BthOpcode.RC_ACKNOWLEDGE), 2, 1, a.qp.qpn, 100 + ahead, syndrome=31))
    assert a.completions == []
    assert a.qp.state == IBV_QPS_RTS
    deliver(world.hcas[0], Frame(int(BthOpcode.RC_ACKNOWLEDGE), 2, 1, a.qp.qpn, 100, syndrome=31))
    assert [wc.status for wc in a.completions] == [IBV_WC_SUCCESS]


@pytest.mark.parametrize(
    ("opcode", "nbytes"),
    [
        (BthOpcode.RC_ATOMIC_ACKNOWLEDGE, 0),
        (BthOpcode.RC_RDMA_READ_RESPONSE_MIDDLE, 64),
        (BthOpcode.RC_RDMA_READ_RESPONSE_LAST, 64),
        (BthOpcode.RC_RDMA_READ_RESPONSE_ONLY, 65),
        (BthOpcode.RC_RDMA_READ_RESPONSE_ONLY, 63),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_response_that_answers_something_else(opcode: BthOpcode, nbytes: int) -> None:
    """BAD_RESP_ERR, the queue pair in ERR, and the memory for the answer untouched."""
    world = World(2, fault_rule=lambda frame: "lost")
    a, _ = pair(world)
    mine, data = world.hcas[0].alloc(SIZE)
    a.post_send(SendWqe(0, 1, IBV_WR_RDMA_READ, 2, ((mine.base, 64, mine.lkey),), 0x10000, 7))
    world.run(lambda: any("READ_REQUEST" in line for line in world.trace))
    deliver(world.hcas[0], Frame(int(opcode), 2, 1, a.qp.qpn, 100, syndrome=31), b"z" * nbytes)
    assert [wc.status for wc in a.completions] == [IBV_WC_BAD_RESP_ERR]
    assert a.qp.state == IBV_QPS_ERR
    assert not any(data)


@pytest.mark.parametrize(("timer", "delay_ns"), [(1, 10_000), (12, 640_000), (20, 10_240_000), (0, 655_360_000)])
def test_the_receiver_s_timer_is_waited_for(timer: int, delay_ns: int) -> None:
    """The RNR NAK carries the responder's timer; the requester waits that long, though a receive is there sooner."""
    world = World(2)
    a, b = world.pair(min_rnr_timer=timer, rnr_retry=7)
    mine, _ = world.hcas[0].alloc(SIZE)
    his, _ = world.hcas[1].alloc(SIZE)
    a.post_send(SendWqe(0, 1, IBV_WR_SEND, 2, ((mine.base, 64, mine.lkey),)))
    world.at(3000, lambda: b.post_recv(1, ((his.base, SIZE, his.lkey),)))
    world.run()
    sent = [int(line.split()[0]) for line in world.trace if "SEND_ONLY" in line]
    assert len(sent) == 2
    assert delay_ns <= sent[1] - sent[0] <= delay_ns + 10_000
    assert [wc.status for wc in a.completions] == [IBV_WC_SUCCESS]
