"""What goes over the wire: PSNs, acknowledgement requests, go-back-N, and determinism."""

from __future__ import annotations

from fauxrdma.hca.work_queue import SendWqe
from fauxrdma.ib.enums import IBV_WC_SUCCESS, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_SEND, BthOpcode
from fauxrdma.sim.world import LinkFaults, World
from fauxrdma.wire.headers import Frame

SIZE = 300_000


def transfer(world: World, count: int = 3, **attributes: int) -> tuple[list[int], bool]:
    a, _ = world.pair(**attributes)
    mine, my_bytes = world.hcas[0].alloc(SIZE)
    his, his_bytes = world.hcas[1].alloc(SIZE)
    my_bytes[:] = world.rng.randbytes(SIZE)
    for i in range(count):
        a.post_send(SendWqe(0, i, IBV_WR_RDMA_WRITE, 2, ((mine.base, SIZE, mine.lkey),), his.base, his.rkey))
    world.run()
    return [int(wc.status) for wc in a.completions], my_bytes == his_bytes


def test_psns_count_packets_and_wrap() -> None:
    frames: list[Frame] = []

    def watch(frame: Frame) -> str:
        frames.append(frame)
        return "ok"

    world = World(2, fault_rule=watch, burst=65536)
    assert transfer(world, sq_psn=0xFFFFF0, rq_psn=0xFFFFF0) == ([IBV_WC_SUCCESS] * 3, True)
    writes = [frame for frame in frames if frame.slid == 1]
    psn = 0xFFFFF0
    for frame in writes:
        assert frame.psn == psn
        psn = (psn + -(-frame.nbytes // 4096)) % 2**24
    assert {frame.opcode for frame in writes} == {
        BthOpcode.RC_RDMA_WRITE_FIRST,
        BthOpcode.RC_RDMA_WRITE_MIDDLE,
        BthOpcode.RC_RDMA_WRITE_LAST,
    }
    assert all((frame.rkey != 0) == (frame.opcode == BthOpcode.RC_RDMA_WRITE_FIRST) for frame in writes)


def test_one_lost_burst_is_one_nak_and_a_resend_from_there() -> None:
    seen: list[tuple[str, int]] = []

    def lose_the_third(frame: Frame) -> str:
        seen.append(("data" if frame.slid == 1 else f"ack{frame.syndrome >> 5}", frame.psn))
        return "lost" if len([x for x in seen if x[0] == "data"]) == 3 and frame.slid == 1 else "ok"

    world = World(2, fault_rule=lose_the_third, burst=65536)
    assert transfer(world, 1) == ([IBV_WC_SUCCESS], True)
    naks = [psn for kind, psn in seen if kind == "ack3"]
    data = [psn for kind, psn in seen if kind == "data"]
    assert naks == [data[2]]
    assert data.count(data[2]) == 2
    assert data.count(data[0]) == 1


def test_a_lost_ack_is_repaired_without_executing_twice() -> None:
    acks = 0

    def lose_first_ack(frame: Frame) -> str:
        nonlocal acks
        if frame.slid == 2:
            acks += 1
            return "lost" if acks == 1 else "ok"
        return "ok"

    world = World(2, fault_rule=lose_first_ack)
    a, b = world.pair(timeout=6)
    mine, _ = world.hcas[0].alloc(100)
    inbox, _ = world.hcas[1].alloc(100)
    for i in range(2):
        b.post_recv(i, ((inbox.base, 100, inbox.lkey),))
    a.post_send(SendWqe(0, 1, IBV_WR_SEND, 2, ((mine.base, 100, mine.lkey),)))
    world.run()
    assert [int(wc.status) for wc in a.completions] == [IBV_WC_SUCCESS]
    assert len(b.completions) == 1
    assert a.completions[0].timestamp_ns >= 4096 * 64


def test_a_lost_read_response_resumes_where_it_stopped() -> None:
    responses: list[Frame] = []

    def lose_second(frame: Frame) -> str:
        if frame.slid == 2:
            responses.append(frame)
            return "lost" if len(responses) == 2 else "ok"
        return "ok"

    world = World(2, fault_rule=lose_second)
    a, _ = world.pair(timeout=6)
    mine, my_bytes = world.hcas[0].alloc(SIZE)
    his, his_bytes = world.hcas[1].alloc(SIZE)
    his_bytes[:] = world.rng.randbytes(SIZE)
    a.post_send(SendWqe(0, 1, IBV_WR_RDMA_READ, 2, ((mine.base, SIZE, mine.lkey),), his.base, his.rkey))
    world.run()
    assert [int(wc.status) for wc in a.completions] == [IBV_WC_SUCCESS]
    assert my_bytes == his_bytes
    first = [frame.psn for frame in responses].count(responses[0].psn)
    assert first == 1  # the first burst had arrived; it is not asked for again


def test_acknowledgements_are_shared_by_small_messages() -> None:
    world = World(2)
    a, _ = world.pair()
    mine, _ = world.hcas[0].alloc(100)
    his, _ = world.hcas[1].alloc(100)
    for i in range(64):
        wqe = SendWqe(i, i, IBV_WR_RDMA_WRITE, 2, ((mine.base, 10, mine.lkey),), his.base, his.rkey)
        a.sq.append(wqe)
    a.post_send(SendWqe(0, 64, IBV_WR_RDMA_WRITE, 2, ((mine.base, 10, mine.lkey),), his.base, his.rkey))
    world.run()
    assert [wc.wr_id for wc in a.completions] == list(range(65))
    assert sum("RC_ACKNOWLEDGE" in line for line in world.trace) == 3


def test_the_same_seed_gives_the_same_trace() -> None:
    def trace(seed: int) -> list[str]:
        world = World(2, seed=seed, faults=LinkFaults(0.05, 0.05, 0.05))
        transfer(world, 3)
        return world.trace

    assert trace(1) == trace(1)
    assert trace(1) != trace(2)
