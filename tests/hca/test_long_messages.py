"""Messages of 2^31 bytes at the smallest path MTU: each takes half of all PSNs.

The regions are a file of 64 MiB that is mapped over and over, so that they take no more memory than that.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from looped_memory import looped

from fauxrdma.hca.work_queue import SendWqe
from fauxrdma.ib.enums import (
    IBV_MTU_256,
    IBV_WC_REM_ACCESS_ERR,
    IBV_WC_SUCCESS,
    IBV_WC_WR_FLUSH_ERR,
    IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE,
)
from fauxrdma.memory.regions import MemoryRegion
from fauxrdma.sim.world import SimHca, World
from fauxrdma.wire.headers import Frame

MOST = 1 << 31
PART = 1 << 26
BURST = 4 << 20
WRITE, READ = int(IBV_WR_RDMA_WRITE), int(IBV_WR_RDMA_READ)


@pytest.fixture(scope="module")
def memory() -> memoryview:
    return looped(MOST, PART)


def register(hca: SimHca, memory: memoryview) -> MemoryRegion:
    keys = hca.engine.keys
    return keys.register(len(keys), hca.world.pds[hca.lid], 1 << 40, len(memory), 31, memory)


def run(
    memory: memoryview, requests: list[tuple[int, int, bool]], fault_rule: Callable[[Frame], str] | None = None
) -> list[int]:
    """Statuses of requests (opcode, length, whether the remote key is right), posted at once at path MTU 256."""
    world = World(2, seed=3, burst=BURST, fault_rule=fault_rule)
    a, _ = world.pair(path_mtu=IBV_MTU_256, timeout=0 if fault_rule is None else 18)
    mine, his = (register(hca, memory) for hca in world.hcas)
    for wr_id, (opcode, length, right) in enumerate(requests):
        sges = ((mine.base, length, mine.lkey),)
        rkey = his.rkey if right else his.rkey ^ 0x5500
        a.post_send(SendWqe(0, wr_id, opcode, sges=sges, flags=2, remote_addr=his.base, rkey=rkey))
    world.run()
    assert [wc.wr_id for wc in a.completions] == list(range(len(requests)))
    return [int(wc.status) for wc in a.completions]


def test_a_refusal_of_its_first_packet_is_heard(memory: memoryview) -> None:
    assert run(memory, [(WRITE, MOST, False), (WRITE, 1, True)]) == [IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR]


@pytest.mark.parametrize("behind", [WRITE, READ])
def test_no_more_than_half_of_all_psns_is_outstanding(memory: memoryview, behind: int) -> None:
    """The first is under a quarter of the PSNs, so that the second is begun beside it if that fits."""
    requests = [(WRITE, 1000 << 20, True), (behind, MOST, True), (WRITE, 5, True)]
    frames: list[tuple[int, int]] = []

    def rule(frame: Frame) -> str:
        frames.append((frame.slid, frame.psn))
        return "ok"

    assert run(memory, requests, rule) == [IBV_WC_SUCCESS] * 3
    second = (frames[0][1] + (1000 << 20) // 256) & 0xFFFFFF
    before = frames[: frames.index((1, second))]
    assert (2, (second - 1) & 0xFFFFFF) in before, "the second was begun before the first was acknowledged"


def test_an_acknowledgement_of_its_last_packet_alone_is_enough(memory: memoryview) -> None:
    """All others are lost."""
    sent: list[int] = []
    answered: list[str] = []

    def rule(frame: Frame) -> str:
        if frame.slid == 1:
            sent.append(frame.psn)
            return "ok"
        answered.append("ok" if frame.psn == (sent[0] + (1 << 23) - 1) & 0xFFFFFF else "lost")
        return answered[-1]

    assert run(memory, [(WRITE, MOST, True)], rule) == [IBV_WC_SUCCESS]
    assert set(answered) == {"ok", "lost"}
