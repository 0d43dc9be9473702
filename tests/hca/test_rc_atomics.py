"""Atomics over RC: values, alignment, rights, order, and executed once whatever the link does."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from rc_rig import ADD, CMP, MASK, READ, SIZE, WRITE, RcRig

from fauxrdma.hca.work_queue import SendWqe
from fauxrdma.ib.enums import (
    IBV_EVENT_QP_ACCESS_ERR,
    IBV_EVENT_QP_REQ_ERR,
    IBV_QPS_ERR,
    IBV_SEND_FENCE,
    IBV_WC_COMP_SWAP,
    IBV_WC_FETCH_ADD,
    IBV_WC_LOC_LEN_ERR,
    IBV_WC_LOC_PROT_ERR,
    IBV_WC_LOC_QP_OP_ERR,
    IBV_WC_REM_ACCESS_ERR,
    IBV_WC_REM_INV_REQ_ERR,
    IBV_WC_SUCCESS,
    IBV_WC_WR_FLUSH_ERR,
    BthOpcode,
)
from fauxrdma.sim.world import LinkFaults, World
from fauxrdma.wire.headers import Frame


@pytest.mark.parametrize(
    ("before", "opcode", "compare_add", "swap", "after"),
    [
        (7, CMP, 7, 99, 99),
        (7, CMP, 8, 99, 7),
        (MASK, CMP, MASK, 0, 0),
        (7, ADD, 5, 0, 12),
        (MASK, ADD, 1, 0, 0),
        (5, ADD, MASK, 0, 4),  # adding -1
        (0x0102030405060708, ADD, 0, 0, 0x0102030405060708),
    ],
)
def test_values(before: int, opcode: int, compare_add: int, swap: int, after: int) -> None:
    rig = RcRig()
    rig.set_word(before, 16)
    rig.post(opcode, 3, at=40, remote_addr=rig.his.base + 16, compare_add=compare_add, swap=swap)
    rig.run()
    (wc,) = rig.a.completions
    assert (wc.wr_id, wc.status, wc.byte_len) == (3, IBV_WC_SUCCESS, 8)
    assert wc.opcode == (IBV_WC_COMP_SWAP if opcode == CMP else IBV_WC_FETCH_ADD)
    assert rig.word(16) == after
    assert rig.returned(40) == before
    assert bytes(rig.my_bytes[:40] + rig.my_bytes[48:]) == bytes(SIZE - 8)
    assert bytes(rig.his_bytes[:16] + rig.his_bytes[24:]) == bytes(SIZE - 8)


@pytest.mark.parametrize("opcode", [CMP, ADD])
@pytest.mark.parametrize(
    ("fields", "attributes", "his_access", "status", "words"),
    [
        ({"remote_addr": 0x10004}, {}, 31, IBV_WC_REM_INV_REQ_ERR, "not 8-byte aligned"),
        ({"remote_addr": 0x10001}, {}, 31, IBV_WC_REM_INV_REQ_ERR, "not 8-byte aligned"),
        ({"rkey": 77}, {}, 31, IBV_WC_REM_ACCESS_ERR, "rkey 0x4d is not registered"),
        ({"remote_addr": 0x10000 + SIZE}, {}, 31, IBV_WC_REM_ACCESS_ERR, "leaves region"),
        ({}, {}, 7, IBV_WC_REM_ACCESS_ERR, "does not grant IBV_ACCESS_REMOTE_ATOMIC"),
        ({}, {"qp_access_flags": 7}, 31, IBV_WC_REM_ACCESS_ERR, "was not given IBV_ACCESS_REMOTE_ATOMIC"),
    ],
)
def test_what_the_responder_refuses(
    opcode: int, fields: dict[str, int], attributes: dict[str, int], his_access: int, status: int, words: str
) -> None:
    rig = RcRig(his_access=his_access, **attributes)
    rig.post(opcode, 1, compare_add=0, swap=5, **fields)
    rig.post(WRITE, 2)
    rig.run()
    assert rig.statuses() == [status, IBV_WC_WR_FLUSH_ERR]
    assert words in rig.a.qp.last_error == rig.b.qp.last_error
    assert rig.b.qp.state is IBV_QPS_ERR
    kind = IBV_EVENT_QP_REQ_ERR if status == IBV_WC_REM_INV_REQ_ERR else IBV_EVENT_QP_ACCESS_ERR
    assert [event.kind for event in rig.b.hca.async_events] == [kind]
    assert rig.his_bytes == rig.my_bytes == bytes(SIZE)


@pytest.mark.parametrize("opcode", [CMP, ADD])
@pytest.mark.parametrize(
    ("case", "status"),
    [
        ("short", IBV_WC_LOC_LEN_ERR),
        ("long", IBV_WC_LOC_LEN_ERR),
        ("two SGEs", IBV_WC_LOC_QP_OP_ERR),
        ("none", IBV_WC_LOC_QP_OP_ERR),
        ("inline", IBV_WC_LOC_QP_OP_ERR),
        ("no credit", IBV_WC_LOC_QP_OP_ERR),
        ("lkey", IBV_WC_LOC_PROT_ERR),
        ("read-only", IBV_WC_LOC_PROT_ERR),
    ],
)
def test_what_is_wrong_with_the_request_itself(opcode: int, case: str, status: int) -> None:
    rig = RcRig(max_rd_atomic=0 if case == "no credit" else 4)
    base, lkey = rig.mine.base, rig.mine.lkey
    fields: dict[str, Any] = {}
    if case == "read-only":
        region, _ = rig.world.hcas[0].alloc(8, 0)
        fields["sges"] = ((region.base, 8, region.lkey),)
    elif case == "inline":
        fields = {"sges": (), "inline": bytes(8)}
    else:
        sges = {
            "short": ((base, 4, lkey),),
            "long": ((base, 16, lkey),),
            "two SGEs": ((base, 4, lkey), (base + 4, 4, lkey)),
            "none": (),
            "lkey": ((base, 8, 0x55),),
        }
        fields["sges"] = sges.get(case, ((base, 8, lkey),))
    rig.post(WRITE, 1)
    rig.post(opcode, 2, compare_add=0, swap=5, **fields)
    rig.run()
    assert rig.statuses() == [IBV_WC_SUCCESS, status]
    assert rig.word() == 0


def test_last_word_of_the_region() -> None:
    rig = RcRig()
    rig.post(ADD, compare_add=3, remote_addr=rig.his.base + SIZE - 8)
    rig.run()
    assert rig.word(SIZE - 8) == 3


def lose(opcode: int, times: int) -> Any:
    left = [times]

    def fate(frame: Frame) -> str:
        if frame.opcode == opcode and left[0]:
            left[0] -= 1
            return "lost"
        return "ok"

    return fate


@pytest.mark.parametrize("opcode", [BthOpcode.RC_ATOMIC_ACKNOWLEDGE, BthOpcode.RC_FETCH_ADD])
@pytest.mark.parametrize("times", [1, 3, 7])
def test_a_lost_request_or_answer_is_repaired_and_nothing_is_added_twice(opcode: int, times: int) -> None:
    rig = RcRig(World(2, seed=1, fault_rule=lose(opcode, times)), timeout=4)
    rig.set_word(100)
    for i in range(4):
        rig.post(ADD, i, compare_add=1 + i, at=8 * i)
    rig.run()
    assert rig.statuses() == [IBV_WC_SUCCESS] * 4
    assert rig.word() == 110
    assert [rig.returned(8 * i) for i in range(4)] == [100, 101, 103, 106]


def test_the_answer_comes_from_memory_even_if_the_word_has_changed_since() -> None:
    rig = RcRig(World(2, seed=1, fault_rule=lose(BthOpcode.RC_ATOMIC_ACKNOWLEDGE, 1)), timeout=4)
    rig.set_word(5)
    rig.post(CMP, compare_add=5, swap=6)
    rig.world.at(30_000, lambda: rig.set_word(5))  # the requester asks again after 65 us: it must not swap again
    rig.run()
    assert rig.returned() == 5
    assert rig.word() == 5


def test_results_of_the_last_max_dest_rd_atomic_are_remembered() -> None:
    """A duplicate within that many is answered, an older one is not, and neither is executed."""
    rig = RcRig(max_rd_atomic=2, max_dest_rd_atomic=2)
    requests: list[Frame] = []
    answers: list[int] = []

    def watch(frame: Frame) -> str:
        if frame.opcode == BthOpcode.RC_FETCH_ADD:
            requests.append(frame)
        elif frame.opcode == BthOpcode.RC_ATOMIC_ACKNOWLEDGE:
            answers.append(frame.original)
        return "ok"

    rig.world.fault_rule = watch
    for i in range(3):
        rig.post(ADD, i, compare_add=10)
    rig.run()
    assert answers == [0, 10, 20]
    for again in requests[1:], requests[:1]:
        answers.clear()
        for frame in again:
            rig.world._deliver(2, *_encoded(frame))()
        rig.run()
        assert answers == ([10, 20] if len(again) == 2 else [])
    assert rig.word() == 30


def _encoded(frame: Frame) -> tuple[bytes, bytes]:
    from fauxrdma.wire.headers import encode_header

    return encode_header(frame), b""


def test_a_later_acknowledgement_does_not_retire_it_early() -> None:
    """The WRITE behind the atomic is acknowledged while the atomic's own answer is lost."""
    rig = RcRig(World(2, seed=1, fault_rule=lose(BthOpcode.RC_ATOMIC_ACKNOWLEDGE, 1)), timeout=6)
    rig.set_word(41)
    rig.post(ADD, 1, compare_add=1)
    rig.post(WRITE, 2, 100, at=100, remote_addr=rig.his.base + 100)
    rig.world.run(lambda: any("RC_ACKNOWLEDGE" in line for line in rig.world.trace))
    rig.world.run(lambda: rig.world.now > 20_000)
    assert rig.statuses() == []
    rig.run()
    assert [wc.wr_id for wc in rig.a.completions] == [1, 2]
    assert rig.returned() == 41


def test_reads_and_atomics_share_the_credits_of_both_sides() -> None:
    rig = RcRig(max_rd_atomic=1, max_dest_rd_atomic=1)
    outstanding = 0
    most = 0

    def count(frame: Frame) -> str:
        nonlocal outstanding, most
        if frame.opcode in (BthOpcode.RC_RDMA_READ_REQUEST, BthOpcode.RC_FETCH_ADD):
            outstanding += 1
        elif frame.opcode in (
            BthOpcode.RC_RDMA_READ_RESPONSE_ONLY, BthOpcode.RC_RDMA_READ_RESPONSE_LAST, BthOpcode.RC_ATOMIC_ACKNOWLEDGE,
        ):  # fmt: skip
            outstanding -= 1
        most = max(most, outstanding)
        return "ok"

    rig.world.fault_rule = count
    for i in range(6):
        rig.post(READ if i % 2 else ADD, i, 8, compare_add=1)
    rig.run()
    assert rig.statuses() == [IBV_WC_SUCCESS] * 6
    assert most == 1


@pytest.mark.parametrize("limit", [0, 2])
def test_more_than_the_responder_has_room_for_is_an_invalid_request(limit: int) -> None:
    rig = RcRig(max_rd_atomic=8, max_dest_rd_atomic=limit)
    rig.post(READ, 0, SIZE)
    for i in range(1, 6):
        rig.post(ADD, i, compare_add=1)
    rig.run()
    assert IBV_WC_REM_INV_REQ_ERR in rig.statuses()
    assert f"max_dest_rd_atomic {limit}" in rig.a.qp.last_error


def test_responses_come_in_the_order_of_the_requests() -> None:
    responses: list[int] = []

    def watch(frame: Frame) -> str:
        if frame.slid == 2 and frame.opcode != BthOpcode.RC_ACKNOWLEDGE:
            responses.append(frame.opcode)
        return "ok"

    rig = RcRig(World(2, fault_rule=watch))
    rig.post(READ, 1, SIZE)
    rig.post(ADD, 2, compare_add=1)
    rig.post(READ, 3, 8)
    rig.run()
    assert responses == [
        BthOpcode.RC_RDMA_READ_RESPONSE_FIRST,
        BthOpcode.RC_RDMA_READ_RESPONSE_LAST,
        BthOpcode.RC_ATOMIC_ACKNOWLEDGE,
        BthOpcode.RC_RDMA_READ_RESPONSE_ONLY,
    ]
    assert [wc.wr_id for wc in rig.a.completions] == [1, 2, 3]
    assert rig.returned() == 1  # the last READ saw the sum


def test_a_fence_waits_for_the_atomic_and_its_absence_does_not() -> None:
    for flags, waits in ((2 | int(IBV_SEND_FENCE), True), (2, False)):
        rig = RcRig()
        rig.post(ADD, 1, compare_add=9)
        rig.post(WRITE, 2, 8, flags=flags, remote_addr=rig.his.base + 8)  # sends what the atomic returns
        rig.set_word(1234)
        rig.run()
        assert rig.word(8) == (1234 if waits else 0)


def test_two_queue_pairs_count_on_one_word_without_losing_any() -> None:
    world = World(2, seed=9, faults=LinkFaults(0.05, 0.05, 0.1))
    rig = RcRig(world, timeout=5)
    c, d = world.hcas[0].create_qp(), world.hcas[1].create_qp()
    world.connect(c, d, timeout=5)
    for i in range(100):
        for qp in (rig.a, c):
            rig.post(ADD, i, qp=qp, compare_add=1, at=8 * i + (800 if qp is c else 0))
    rig.run()
    assert rig.word() == 200
    assert sorted(rig.returned(8 * i) for i in range(200)) == list(range(200))


def test_one_atomic_lock_has_one_owner() -> None:
    world = World(3, seed=3)
    ends = []
    word, _ = world.hcas[2].alloc(8)
    for i in range(2):
        a, b = world.hcas[i].create_qp(), world.hcas[2].create_qp()
        world.connect(a, b)
        mine, my_bytes = world.hcas[i].alloc(8)
        a.post_send(SendWqe(0, i, CMP, 2, ((mine.base, 8, mine.lkey),), word.base, word.rkey, swap=i + 1))
        ends.append(my_bytes)
    world.run()
    seen = [int.from_bytes(data, sys.byteorder) for data in ends]
    assert sorted(seen)[0] == 0  # the winner saw the free lock
    assert sorted(seen)[1] in (1, 2)  # the other the winner's name


def test_memory_that_goes_before_the_answer_comes_is_not_written() -> None:
    rig = RcRig()
    rig.set_word(77)
    rig.post(ADD, 1, compare_add=1)
    rig.world.at(1_500, lambda: rig.world.hcas[0].engine.keys.deregister(rig.mine))
    rig.run()
    assert rig.statuses() == [IBV_WC_LOC_PROT_ERR]
    assert "has no place to go" in rig.a.qp.last_error
    assert rig.my_bytes == bytes(SIZE)
