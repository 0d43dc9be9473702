"""UC: what arrives whole is delivered, what does not vanishes, and nobody is told (REFERENCE A2, A3, A6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fauxrdma.hca.work_queue import SendWqe
from fauxrdma.ib.attributes import AHAttr, QPAttr
from fauxrdma.ib.enums import (
    IBV_EVENT_SQ_DRAINED,
    IBV_MW_TYPE_2,
    IBV_QP_ACCESS_FLAGS,
    IBV_QP_EN_SQD_ASYNC_NOTIFY,
    IBV_QP_STATE,
    IBV_QPS_ERR,
    IBV_QPS_RESET,
    IBV_QPS_RTS,
    IBV_QPS_SQD,
    IBV_QPS_SQE,
    IBV_QPT_UC,
    IBV_SEND_SIGNALED,
    IBV_SEND_SOLICITED,
    IBV_WC_BIND_MW,
    IBV_WC_LOC_LEN_ERR,
    IBV_WC_LOC_PROT_ERR,
    IBV_WC_LOC_QP_OP_ERR,
    IBV_WC_MW_BIND_ERR,
    IBV_WC_RDMA_WRITE,
    IBV_WC_RECV,
    IBV_WC_RECV_RDMA_WITH_IMM,
    IBV_WC_SEND,
    IBV_WC_SUCCESS,
    IBV_WC_WITH_IMM,
    IBV_WC_WR_FLUSH_ERR,
    IBV_WR_ATOMIC_FETCH_AND_ADD,
    IBV_WR_BIND_MW,
    IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM,
    IBV_WR_SEND,
    IBV_WR_SEND_WITH_IMM,
    BthOpcode,
)
from fauxrdma.sim.world import LinkFaults, SimQp, World
from fauxrdma.wire.headers import Frame

SIZE = 60_000
SIGNALED = int(IBV_SEND_SIGNALED)


class Rig:
    """Two connected UC queue pairs, `a` to `b`; `his` may be given other rights."""

    def __init__(self, his_access: int = 7, **options: Any) -> None:
        self.world = World(2, seed=3, **options)
        self.a, self.b = self.world.pair(IBV_QPT_UC)
        self.mine, self.my_bytes = self.world.hcas[0].alloc(SIZE)
        self.his, self.his_bytes = self.world.hcas[1].alloc(SIZE, his_access)
        self.my_bytes[:] = self.world.rng.randbytes(SIZE)

    def send(self, opcode: int, length: int = 100, wr_id: int = 1, **fields: Any) -> None:
        values: dict[str, Any] = {"remote_addr": self.his.base, "rkey": self.his.rkey, **fields}
        flags = values.pop("flags", SIGNALED)
        sges = values.pop("sges", ((self.mine.base, length, self.mine.lkey),))
        self.a.post_send(SendWqe(0, wr_id, opcode, flags, sges, **values))

    def receive(self, wr_id: int, length: int = SIZE, offset: int = 0) -> None:
        self.b.post_recv(wr_id, ((self.his.base + offset, length, self.his.lkey),))


def statuses(qp: SimQp) -> list[tuple[int, int]]:
    return [(wc.wr_id, int(wc.status)) for wc in qp.completions]


@pytest.mark.parametrize("length", [0, 1, 4095, 4096, 4097, 50_000])
@pytest.mark.parametrize(
    ("opcode", "sent", "received"),
    [
        (IBV_WR_SEND, IBV_WC_SEND, IBV_WC_RECV),
        (IBV_WR_SEND_WITH_IMM, IBV_WC_SEND, IBV_WC_RECV),
        (IBV_WR_RDMA_WRITE, IBV_WC_RDMA_WRITE, None),
        (IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WC_RDMA_WRITE, IBV_WC_RECV_RDMA_WITH_IMM),
    ],
)
def test_every_operation_at_every_length(opcode: int, sent: int, received: int | None, length: int) -> None:
    rig = Rig()
    rig.receive(7)
    rig.send(opcode, length, imm=0xDEADBEEF)
    rig.world.run()
    (done,) = rig.a.completions
    assert (done.wr_id, done.status, done.opcode) == (1, IBV_WC_SUCCESS, sent)
    assert rig.his_bytes[:length] == rig.my_bytes[:length]
    assert rig.his_bytes[length:] == bytes(SIZE - length)
    if received is None:
        assert rig.b.completions == []
        return
    (wc,) = rig.b.completions
    assert (wc.wr_id, wc.status, wc.opcode, wc.byte_len, wc.slid) == (7, IBV_WC_SUCCESS, received, length, 1)
    with_imm = opcode in (IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE_WITH_IMM)
    assert (wc.wc_flags, wc.imm_data) == ((IBV_WC_WITH_IMM, 0xDEADBEEF) if with_imm else (0, 0))


def test_nothing_is_acknowledged_and_psns_count_packets() -> None:
    frames: list[Frame] = []
    rig = Rig(fault_rule=lambda frame: frames.append(frame) or "ok")  # type: ignore[func-returns-value]
    for wr_id in range(3):
        rig.send(IBV_WR_RDMA_WRITE, 50_000, wr_id)
    rig.world.run()
    assert {frame.slid for frame in frames} == {1}
    assert not any(frame.ack_req for frame in frames)
    assert {frame.opcode for frame in frames} == {
        BthOpcode.UC_RDMA_WRITE_FIRST,
        BthOpcode.UC_RDMA_WRITE_MIDDLE,
        BthOpcode.UC_RDMA_WRITE_LAST,
    }
    psn = rig.a.qp.attr.sq_psn
    for frame in frames:
        assert frame.psn == psn
        psn = (psn + -(-frame.nbytes // 4096)) % 2**24


def test_the_completion_means_that_the_memory_is_the_senders_again() -> None:
    rig = Rig()
    sent = bytes(rig.my_bytes[:50_000])

    def scribble(_: object) -> None:
        rig.my_bytes[:50_000] = bytes(50_000)

    rig.a.hca.on_completion = scribble
    rig.send(IBV_WR_RDMA_WRITE, 50_000)
    rig.world.run()
    assert rig.a.completions[0].timestamp_ns < rig.world.now  # before the last frame arrived
    assert rig.his_bytes[:50_000] == sent


def test_unsignaled_requests_complete_silently() -> None:
    rig = Rig()
    rig.a.qp.sq_sig_all = False
    rig.send(IBV_WR_RDMA_WRITE, 10, 1, flags=0)
    rig.send(IBV_WR_RDMA_WRITE, 10, 2)
    rig.world.run()
    assert statuses(rig.a) == [(2, 0)]


def test_solicited_is_carried() -> None:
    frames: list[Frame] = []
    rig = Rig(fault_rule=lambda frame: frames.append(frame) or "ok")  # type: ignore[func-returns-value]
    rig.receive(1)
    rig.send(IBV_WR_SEND, 10, flags=SIGNALED | int(IBV_SEND_SOLICITED))
    rig.world.run()
    assert [frame.solicited for frame in frames] == [True]


@pytest.mark.parametrize("lost", [0, 1, 2, 3])
def test_a_message_with_a_lost_packet_vanishes_and_the_next_one_arrives(lost: int) -> None:
    seen: list[Frame] = []

    def lose_one(frame: Frame) -> str:
        seen.append(frame)
        return "lost" if len(seen) == 1 + lost else "ok"

    rig = Rig(fault_rule=lose_one)
    rig.receive(7)
    rig.receive(8)
    rig.send(IBV_WR_SEND, 60_000, 1)  # four frames
    rig.send(IBV_WR_SEND, 20_000, 2, sges=((rig.mine.base + 1000, 20_000, rig.mine.lkey),))
    rig.world.run()
    assert statuses(rig.a) == [(1, 0), (2, 0)]
    # The receive that the first message had begun to fill serves the second.
    assert [(wc.wr_id, wc.byte_len) for wc in rig.b.completions] == [(7, 20_000)]
    assert rig.his_bytes[:20_000] == rig.my_bytes[1000:21_000]
    assert rig.b.qp.state == IBV_QPS_RTS
    assert len(rig.b.rq) == 1


def test_a_missing_receive_and_a_receive_too_small_make_the_message_vanish() -> None:
    rig = Rig()
    rig.send(IBV_WR_SEND, 10, 1)
    rig.world.run()
    assert "no receive was posted" in rig.b.qp.last_error
    rig.receive(7, 50)
    rig.send(IBV_WR_SEND, 51, 2)
    rig.send(IBV_WR_SEND, 50, 3)
    rig.world.run()
    assert "needs 51 B or more, the posted receive has 50 B" in rig.b.qp.last_error
    rig.send(IBV_WR_RDMA_WRITE_WITH_IMM, 10, 4)
    rig.world.run()
    assert statuses(rig.a) == [(1, 0), (2, 0), (3, 0), (4, 0)]
    assert [(wc.wr_id, wc.byte_len) for wc in rig.b.completions] == [(7, 50)]
    assert rig.b.hca.async_events == []
    assert rig.b.qp.state == IBV_QPS_RTS


@pytest.mark.parametrize("wrong", ["rkey", "range", "region access", "qp access", "pd"])
def test_an_access_violation_vanishes(wrong: str) -> None:
    rig = Rig(his_access=1 if wrong == "region access" else 7)
    fields: dict[str, Any] = {}
    if wrong == "rkey":
        fields["rkey"] = rig.his.rkey ^ 1
    elif wrong == "range":
        fields["remote_addr"] = rig.his.base + SIZE - 99
    elif wrong == "qp access":
        rig.world.modify(rig.b, QPAttr(qp_access_flags=1), IBV_QP_ACCESS_FLAGS)
    elif wrong == "pd":
        fields["rkey"] = rig.world.hcas[1].alloc(SIZE, pd=type(rig.his.pd)(99))[0].rkey
    rig.send(IBV_WR_RDMA_WRITE, 100, **fields)
    rig.world.run()
    assert statuses(rig.a) == [(1, 0)]
    assert rig.his_bytes == bytes(SIZE)
    assert rig.b.qp.state == IBV_QPS_RTS
    assert rig.b.hca.async_events == []
    assert rig.b.completions == []
    assert "dropped a message" in rig.b.qp.last_error


def test_a_broken_receive_is_told_to_its_owner_alone() -> None:
    rig = Rig()
    rig.b.post_recv(7, ((rig.his.base, 100, rig.his.lkey ^ 1),))
    rig.receive(8)
    rig.send(IBV_WR_SEND, 10)
    rig.world.run()
    assert statuses(rig.a) == [(1, 0)]
    assert statuses(rig.b) == [(7, IBV_WC_LOC_PROT_ERR), (8, IBV_WC_WR_FLUSH_ERR)]
    assert rig.b.qp.state == IBV_QPS_ERR


@pytest.mark.parametrize(
    ("opcode", "fields", "status"),
    [
        (IBV_WR_RDMA_READ, {}, IBV_WC_LOC_QP_OP_ERR),
        (IBV_WR_ATOMIC_FETCH_AND_ADD, {}, IBV_WC_LOC_QP_OP_ERR),
        (IBV_WR_SEND, {"sges": ((0x10000, 10, 0xBAD),)}, IBV_WC_LOC_PROT_ERR),
        (IBV_WR_SEND, {"sges": "long"}, IBV_WC_LOC_LEN_ERR),
    ],
)
def test_a_local_error_is_sqe_and_sqe_to_rts_recovers(opcode: int, fields: dict[str, Any], status: int) -> None:
    rig = Rig()
    rig.receive(7)
    if fields.get("sges") == "long":
        part = (rig.mine.base, SIZE, rig.mine.lkey)
        fields = {"sges": (part,) * (2**31 // SIZE + 1)}
    rig.send(IBV_WR_SEND, 10, 1)
    rig.send(opcode, wr_id=2, **fields)
    rig.send(IBV_WR_SEND, 10, 3)
    rig.a.post_recv(50, ((rig.mine.base, 100, rig.mine.lkey),))
    rig.world.run()
    assert rig.a.qp.state == IBV_QPS_SQE
    assert statuses(rig.a) == [(1, 0), (2, status), (3, IBV_WC_WR_FLUSH_ERR)]
    # Posted in SQE: flushed. Receives go on.
    rig.send(IBV_WR_SEND, 10, 4)
    rig.b.post_send(SendWqe(0, 9, IBV_WR_SEND, SIGNALED, ((rig.his.base, 10, rig.his.lkey),)))
    rig.world.run()
    assert statuses(rig.a)[3:] == [(4, IBV_WC_WR_FLUSH_ERR), (50, 0)]
    assert rig.a.qp.state == IBV_QPS_SQE
    rig.world.modify(rig.a, QPAttr(qp_state=IBV_QPS_RTS), IBV_QP_STATE)
    rig.receive(8)
    rig.send(IBV_WR_SEND, 11, 5)
    rig.world.run()
    assert statuses(rig.a)[5:] == [(5, 0)]
    assert [(wc.wr_id, wc.byte_len) for wc in rig.b.completions if wc.wr_id < 9] == [(7, 10), (8, 11)]


def test_windows_are_bound_and_a_bind_that_is_refused_is_sqe() -> None:
    rig = Rig(his_access=7 | 16)
    mw = rig.b.hca.engine.keys.windows.allocate(500, rig.world.pds[2], IBV_MW_TYPE_2)
    key = mw.rkey ^ 1
    bind = {"rkey": key, "handle": mw.handle, "imm": rig.his.lkey, "remote_addr": rig.his.base + 1000}
    rig.b.post_send(SendWqe(0, 1, IBV_WR_BIND_MW, SIGNALED, compare_add=100, swap=2, **bind))
    rig.world.run()
    assert [(wc.wr_id, wc.status, wc.opcode) for wc in rig.b.completions] == [(1, 0, IBV_WC_BIND_MW)]
    rig.send(IBV_WR_RDMA_WRITE, 100, remote_addr=rig.his.base + 1000, rkey=key)
    rig.send(IBV_WR_RDMA_WRITE, 101, remote_addr=rig.his.base + 1000, rkey=key)
    rig.world.run()
    assert rig.his_bytes[1000:1101] == rig.my_bytes[:100] + b"\0"
    rig.b.post_send(SendWqe(0, 2, IBV_WR_BIND_MW, SIGNALED, compare_add=100, swap=2, **{**bind, "rkey": key ^ 1}))
    rig.world.run()
    assert statuses(rig.b)[1:] == [(2, IBV_WC_MW_BIND_ERR)]
    assert rig.b.qp.state == IBV_QPS_SQE


def test_err_flushes_both_queues_in_order_and_reset_forgets() -> None:
    rig = Rig()
    for wr_id in range(3):
        rig.a.post_recv(10 + wr_id)
    rig.world.modify(rig.a, QPAttr(qp_state=IBV_QPS_SQD), IBV_QP_STATE)
    for wr_id in range(3):
        rig.send(IBV_WR_SEND, 10, wr_id)
    rig.world.run()
    assert rig.a.completions == []  # SQD queues sends and starts none
    rig.world.modify(rig.a, QPAttr(qp_state=IBV_QPS_ERR), IBV_QP_STATE)
    assert statuses(rig.a) == [(n, IBV_WC_WR_FLUSH_ERR) for n in (0, 1, 2, 10, 11, 12)]
    rig.world.modify(rig.a, QPAttr(qp_state=IBV_QPS_RESET), IBV_QP_STATE)
    rig.world.modify(rig.b, QPAttr(qp_state=IBV_QPS_RESET), IBV_QP_STATE)
    rig.world.connect(rig.a, rig.b)
    rig.receive(7)
    rig.send(IBV_WR_SEND, 20, 9)
    rig.world.run()
    assert statuses(rig.a)[6:] == [(9, 0)]
    assert statuses(rig.b) == [(7, 0)]


def test_sqd_finishes_the_message_begun_says_so_once_and_goes_on() -> None:
    rig = Rig()
    rig.send(IBV_WR_RDMA_WRITE, SIZE, 1)
    rig.send(IBV_WR_RDMA_WRITE, 10, 2)
    drain = QPAttr(qp_state=IBV_QPS_SQD, en_sqd_async_notify=1)
    rig.world.at(1, lambda: rig.world.modify(rig.a, drain, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY))
    rig.world.run()
    assert statuses(rig.a) == [(1, 0)]
    assert [event.kind for event in rig.a.hca.async_events] == [IBV_EVENT_SQ_DRAINED]
    rig.world.modify(rig.a, QPAttr(qp_state=IBV_QPS_RTS), IBV_QP_STATE)
    rig.world.run()
    assert statuses(rig.a) == [(1, 0), (2, 0)]
    assert len(rig.a.hca.async_events) == 1


def test_packets_of_another_size_are_dropped() -> None:
    rig = Rig()
    rig.world.modify(rig.b, QPAttr(qp_state=IBV_QPS_RESET), IBV_QP_STATE)
    attr = QPAttr(path_mtu=3, dest_qp_num=rig.a.qp.qpn, ah_attr=AHAttr(1), qp_access_flags=7)
    rig.world.bring_up(rig.b, attr)
    rig.receive(7)
    rig.send(IBV_WR_SEND, 1025, 1)  # one packet here, two there
    rig.send(IBV_WR_SEND, 9000, 2)
    rig.send(IBV_WR_SEND, 1024, 3)
    rig.world.run()
    assert [wc.byte_len for wc in rig.b.completions] == [1024]
    assert "path MTU 1024" in rig.b.qp.last_error


def test_frames_of_other_transports_and_strangers_are_not_heard() -> None:
    rig = Rig()
    rig.receive(7)
    engine = rig.b.hca.engine
    for opcode, slid in ((BthOpcode.RC_SEND_ONLY, 1), (BthOpcode.RC_ACKNOWLEDGE, 1), (BthOpcode.UC_SEND_ONLY, 9)):
        frame = Frame(opcode, slid, 2, rig.b.qp.qpn, rig.b.qp.attr.rq_psn, nbytes=4)
        assert engine.place(frame) is None
    assert rig.b.completions == []


@dataclass
class Op:
    opcode: int
    remote: int
    length: int
    signaled: bool


ops = st.builds(
    Op,
    st.sampled_from([IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM]),
    st.integers(0, 5_000),
    st.one_of(st.integers(0, 200), st.integers(4000, 4200), st.integers(0, 25_000)),
    st.booleans(),
)
chance = st.floats(0, 0.3)


@given(
    st.lists(ops, min_size=1, max_size=10), st.integers(0, 2**32), chance, chance, chance,
    st.sampled_from([4096, 8192]), st.sampled_from([0, 0xFFFFFE]), st.integers(0, 10),
)  # fmt: skip
def test_whatever_the_link_does_messages_are_whole_or_absent(
    plan: list[Op], seed: int, loss: float, duplicate: float, delay: float, burst: int, psn: int, receives: int
) -> None:
    """The sender always succeeds, in order. The receiver gets whole messages, under loss alone a subsequence; a byte
    of its memory is the initial one or one that a WRITE brought to that very place."""
    world = World(2, seed=seed, burst=burst, faults=LinkFaults(loss, duplicate, delay))
    a, b = world.pair(IBV_QPT_UC, sq_psn=psn, rq_psn=psn)
    a.qp.sq_sig_all = False
    his, his_bytes = world.hcas[1].alloc(SIZE)
    inbox, inbox_bytes = world.hcas[1].alloc(SIZE)
    arrived: list[tuple[int, bytes, int]] = []

    def note(wc: Any) -> None:
        if wc.qp_num == b.qp.qpn:
            assert wc.status == 0
            is_send = wc.opcode == IBV_WC_RECV
            arrived.append((wc.imm_data, bytes(inbox_bytes[: wc.byte_len]) if is_send else b"", wc.byte_len))

    b.hca.on_completion = note
    for i in range(receives):
        b.post_recv(100 + i, ((inbox.base, SIZE, inbox.lkey),))
    sent: list[tuple[int, bytes, int]] = []
    possible: list[set[int]] = [{0} for _ in range(SIZE)]
    for i, op in enumerate(plan):
        mine, my_bytes = world.hcas[0].alloc(max(1, op.length))
        my_bytes[:] = bytes([1 + i]) * len(my_bytes)
        flags = SIGNALED if op.signaled else 0
        sges = ((mine.base, op.length, mine.lkey),)
        a.post_send(SendWqe(0, i, op.opcode, flags, sges, his.base + op.remote, his.rkey, imm=1000 + i))
        is_send = op.opcode in (IBV_WR_SEND, IBV_WR_SEND_WITH_IMM)
        if not is_send:
            for at in range(op.remote, op.remote + op.length):
                possible[at].add(1 + i)
        if op.opcode != IBV_WR_RDMA_WRITE:
            imm = 0 if op.opcode == IBV_WR_SEND else 1000 + i
            sent.append((imm, bytes([1 + i]) * op.length if is_send else b"", op.length))
    world.run()
    assert [(wc.wr_id, wc.status) for wc in a.completions] == [(i, 0) for i, op in enumerate(plan) if op.signaled]
    assert a.qp.state == b.qp.state == IBV_QPS_RTS
    assert all(message in sent for message in arrived)
    assert all(byte in allowed for byte, allowed in zip(his_bytes, possible, strict=True))
    if not duplicate and not delay:
        rest = iter(sent)
        assert all(message in rest for message in arrived)
        if not loss:
            assert arrived == sent[:receives] or len(sent) > receives
            assert len(arrived) == min(receives, len(sent))
