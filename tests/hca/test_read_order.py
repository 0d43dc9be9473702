"""What may overtake a READ: an unfenced WRITE behind it, now and then, by seed; nothing behind a fence (A6)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fauxrdma.hca.events import Doorbell
from fauxrdma.hca.responses import HELD_NS
from fauxrdma.hca.work_queue import SendWqe
from fauxrdma.ib.enums import IBV_SEND_FENCE, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE
from fauxrdma.ib.profiles import PROFILES, HcaProfile
from fauxrdma.sim.world import SimQp, World

STRICT = PROFILES["ibta"]
LENIENT = replace(STRICT, writes_overtake_reads=False)


def post_chain(qp: SimQp, *work: SendWqe) -> None:
    """Post several requests with one doorbell."""
    for wqe in work:
        wqe.index = qp.posted_sends
        qp.posted_sends += 1
        qp.sq.append(wqe)
    qp.hca.run(Doorbell(qp.qp.qpn))


def read_then_write(
    seed: int, *, fence: bool = False, profile: HcaProfile = STRICT, size: int = 64, express: bool = False
) -> bytes:
    """What a READ of old bytes brings when a WRITE of new ones to the same place is posted right behind it."""
    world = World(2, seed=seed, profile=profile, express=express)
    a, _ = world.pair()
    mine, here = world.hcas[0].alloc(3 * size)
    his, there = world.hcas[1].alloc(size)
    here[size : 2 * size] = b"n" * size
    there[:] = b"o" * size
    flags = 2 | (int(IBV_SEND_FENCE) if fence else 0)
    post_chain(
        a,
        SendWqe(0, 1, IBV_WR_RDMA_READ, 2, ((mine.base, size, mine.lkey),), his.base, his.rkey),
        SendWqe(0, 2, IBV_WR_RDMA_WRITE, flags, ((mine.base + size, size, mine.lkey),), his.base, his.rkey),
    )
    world.run()
    assert [(wc.wr_id, wc.status) for wc in a.completions] == [(1, 0), (2, 0)]
    assert bytes(there) == b"n" * size
    return bytes(here[:size])


@pytest.mark.parametrize("express", [False, True])
def test_an_unfenced_write_overtakes_by_seed(express: bool) -> None:
    got = [read_then_write(seed, express=express) for seed in range(40)]
    assert set(got) == {b"o" * 64, b"n" * 64}
    assert got == [read_then_write(seed, express=express) for seed in range(40)]


def test_nothing_overtakes_behind_a_fence() -> None:
    assert {read_then_write(seed, fence=True) for seed in range(40)} == {b"o" * 64}


def test_a_profile_may_be_lenient() -> None:
    assert {read_then_write(seed, profile=LENIENT) for seed in range(40)} == {b"o" * 64}


def read_time_ns(seed: int, fenced_behind: bool) -> int:
    """How long a READ takes, alone or with a fenced request behind it that keeps silent until it is answered."""
    world = World(2, seed=seed)
    a, _ = world.pair()
    mine, _ = world.hcas[0].alloc(64)
    his, _ = world.hcas[1].alloc(64)
    sges = ((mine.base, 64, mine.lkey),)
    work = [SendWqe(0, 1, IBV_WR_RDMA_READ, 2, sges, his.base, his.rkey)]
    if fenced_behind:
        work.append(SendWqe(0, 2, IBV_WR_RDMA_WRITE, int(IBV_SEND_FENCE), sges, his.base, his.rkey))
    post_chain(a, *work)
    world.run()
    return a.completions[0].timestamp_ns


def test_an_answer_is_held_no_longer_than_said_and_never_when_nothing_follows() -> None:
    alone = {read_time_ns(seed, fenced_behind=False) for seed in range(20)}
    followed = {read_time_ns(seed, fenced_behind=True) for seed in range(20)}
    assert len(alone) == 1
    (usual,) = alone
    assert followed == {usual, usual + HELD_NS}
