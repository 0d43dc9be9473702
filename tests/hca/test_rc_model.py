"""Two RC queue pairs against a small oracle, under loss, duplication, delay, RNR and small bursts.

Whatever the link does, memory must end as if every request had been executed once and in order, and every atomic must
have returned what its word held then; completions come in order, none is lost, none comes twice.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from fauxrdma.hca.work_queue import SendWqe
from fauxrdma.ib.enums import (
    IBV_SEND_FENCE,
    IBV_SEND_SIGNALED,
    IBV_WC_RECV,
    IBV_WC_RECV_RDMA_WITH_IMM,
    IBV_WC_SUCCESS,
    IBV_WR_ATOMIC_CMP_AND_SWP,
    IBV_WR_ATOMIC_FETCH_AND_ADD,
    IBV_WR_BIND_MW,
    IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM,
    IBV_WR_SEND,
    IBV_WR_SEND_WITH_IMM,
)
from fauxrdma.sim.world import LinkFaults, World

SIZE = 60_000
WORDS = 3
ATOMICS = (IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD)
WITH_RECEIVE = (IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM)


@dataclass
class Op:
    opcode: int
    offset: int
    length: int
    remote: int
    signaled: bool
    fence: bool
    split: bool


ops = st.builds(
    Op,
    st.sampled_from([IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_BIND_MW, *WITH_RECEIVE, *ATOMICS]),
    st.integers(0, SIZE // 2),
    st.one_of(st.integers(0, 200), st.integers(4000, 4200), st.integers(0, SIZE // 2)),
    st.integers(0, SIZE // 2),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
chance = st.floats(0, 0.15)
# Eight tries in a row must not be lost by bad luck: Hypothesis looks for it.
loss_chance = st.floats(0, 0.06)


@given(
    st.lists(ops, min_size=1, max_size=12),
    st.integers(0, 2**32),
    loss_chance,
    chance,
    chance,
    st.sampled_from([4096, 8192, 65536]),
    st.integers(0, 3),
    st.sampled_from([0, 0xFFFFF0]),
    st.booleans(),
)
def test_exactly_once_in_order(
    plan: list[Op],
    seed: int,
    loss: float,
    duplicate: float,
    delay: float,
    burst: int,
    late_receives: int,
    psn: int,
    express: bool,
) -> None:
    world = World(2, seed=seed, burst=burst, faults=LinkFaults(loss, duplicate, delay), express=express)
    # retry_cnt 7 is not for ever: with a timeout well over the longest delay, seven losses in a row are what it takes.
    a, b = world.pair(retry_cnt=7, rnr_retry=7, timeout=4, min_rnr_timer=1, sq_psn=psn, rq_psn=psn)
    mine, my_bytes = world.hcas[0].alloc(SIZE)
    his, his_bytes = world.hcas[1].alloc(SIZE)
    inbox, inbox_bytes = world.hcas[1].alloc(SIZE)
    my_bytes[:] = world.rng.randbytes(SIZE)
    his_bytes[:] = world.rng.randbytes(SIZE)
    words, word_bytes = world.hcas[1].alloc(8 * WORDS)
    returned, returned_bytes = world.hcas[0].alloc(8 * len(plan))
    window = world.hcas[0].engine.keys.windows.allocate(1, world.pds[1], 1)
    model_words, model_returned = [0] * WORDS, [0] * len(plan)
    model_mine, model_his, model_inbox = bytearray(my_bytes), bytearray(his_bytes), bytearray(SIZE)

    # READs fill the upper half of my memory from the upper half of his, everything else uses the lower halves: an
    # unfenced later request may overtake a READ, and a READ that is executed again sees newer data, as in life.
    for op in plan:
        if op.opcode == IBV_WR_RDMA_READ:
            op.offset, op.remote = op.offset % (SIZE // 4) + SIZE // 2, op.remote % (SIZE // 4) + SIZE // 2
            op.length = min(op.length, SIZE // 4)
        else:
            op.offset, op.remote = op.offset % (SIZE // 4), op.remote % (SIZE // 4)
            op.length = min(op.length, SIZE // 4)
    receives = [op for op in plan if op.opcode in WITH_RECEIVE]
    early = max(0, len(receives) - late_receives)
    for i in range(early):
        b.post_recv(100 + i, ((inbox.base, SIZE, inbox.lkey),))
    expected_receives: list[tuple[int, int, int]] = []
    for i, op in enumerate(plan):
        flags = (int(IBV_SEND_SIGNALED) if op.signaled else 0) | (int(IBV_SEND_FENCE) if op.fence else 0)
        a.qp.sq_sig_all = False
        if op.opcode == IBV_WR_BIND_MW:  # sends nothing, and completes in its turn all the same
            a.post_send(SendWqe(0, i, op.opcode, flags, rkey=window.rkey, handle=window.handle))
            continue
        if op.opcode in ATOMICS:
            # Few words and small operands, so that compares succeed and fail.
            which, operand, swap = op.remote % WORDS, op.offset % 3, op.length % 3
            model_returned[i] = model_words[which]
            if op.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD:
                operand -= 1
                model_words[which] = (model_words[which] + operand) % 2**64
            elif model_words[which] == operand:
                model_words[which] = swap
            sge = (returned.base + 8 * i, 8, returned.lkey)
            a.post_send(
                SendWqe(
                    0, i, op.opcode, flags, (sge,), words.base + 8 * which, words.rkey,
                    compare_add=operand % 2**64, swap=swap,
                )
            )  # fmt: skip
            continue
        half = op.length // 2 if op.split else op.length
        sges = ((mine.base + op.offset, half, mine.lkey), (mine.base + op.offset + half, op.length - half, mine.lkey))
        a.post_send(SendWqe(0, i, op.opcode, flags, sges, his.base + op.remote, his.rkey, imm=i))
        # The oracle: execute at once.
        here = slice(op.offset, op.offset + op.length)
        there = slice(op.remote, op.remote + op.length)
        if op.opcode in (IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM):
            model_his[there] = model_mine[here]
        elif op.opcode == IBV_WR_RDMA_READ:
            model_mine[here] = model_his[there]
        else:
            model_inbox[: op.length] = model_mine[here]
        if op.opcode == IBV_WR_RDMA_WRITE_WITH_IMM:
            expected_receives.append((IBV_WC_RECV_RDMA_WITH_IMM, op.length, i))
        elif op.opcode in (IBV_WR_SEND, IBV_WR_SEND_WITH_IMM):
            expected_receives.append((IBV_WC_RECV, op.length, i if op.opcode == IBV_WR_SEND_WITH_IMM else 0))
    for i in range(early, len(receives)):
        world.at(30_000 * (i + 1), lambda i=i: b.post_recv(100 + i, ((inbox.base, SIZE, inbox.lkey),)))
    world.run()
    assert [wc.status for wc in a.completions if wc.status] == [], world.trace[-20:]
    assert [wc.wr_id for wc in a.completions] == [i for i, op in enumerate(plan) if op.signaled]
    assert my_bytes == model_mine
    assert his_bytes == model_his
    assert inbox_bytes == model_inbox
    assert struct.unpack(f"={WORDS}Q", word_bytes) == tuple(model_words)
    assert struct.unpack(f"={len(plan)}Q", returned_bytes) == tuple(model_returned)
    got = [(wc.opcode, wc.byte_len, wc.imm_data) for wc in b.completions]
    assert got == expected_receives
    assert [wc.wr_id for wc in b.completions] == list(range(100, 100 + len(receives)))


@given(st.integers(0, 2**32), st.integers(1, 10), st.sampled_from([1, 2, 3, 5]))
def test_a_peer_that_dies_gives_one_error_then_flushes(seed: int, count: int, retries: int) -> None:
    world = World(2, seed=seed)
    a, b = world.pair(retry_cnt=retries, timeout=8)
    mine, _ = world.hcas[0].alloc(SIZE)
    his, _ = world.hcas[1].alloc(SIZE)
    for i in range(count):
        a.post_recv(50 + i)
        a.post_send(SendWqe(0, i, IBV_WR_RDMA_WRITE, 2, ((mine.base, SIZE, mine.lkey),), his.base, his.rkey))
    world.at(world.rng.randrange(1, 3_000 * count), lambda: world.kill(world.hcas[1]))
    world.run()
    sends = [wc for wc in a.completions if wc.wr_id < 50]
    assert [wc.wr_id for wc in sends] == list(range(count))
    statuses = [int(wc.status) for wc in sends]
    done = statuses.count(int(IBV_WC_SUCCESS))
    if done < count:
        assert statuses == [0] * done + [12] + [5] * (count - done - 1)
        assert [wc.status for wc in a.completions if wc.wr_id >= 50] == [5] * count
        # retry_cnt + 1 timeouts after the last progress, and no longer.
        assert world.now <= 3_000 * count + (retries + 2) * 4096 * 2**8
        assert "no acknowledgement from LID 2" in a.qp.last_error
    assert b.completions == []
