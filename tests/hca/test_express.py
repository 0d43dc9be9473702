"""The express lane is the general way, shorter: same frames, memory, completions and state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fauxrdma.abi.layout import QpLayout
from fauxrdma.abi.rings import QueuePairRings
from fauxrdma.hca.work_queue import SendWqe
from fauxrdma.ib.enums import (
    IBV_SEND_FENCE,
    IBV_SEND_INLINE,
    IBV_SEND_SIGNALED,
    IBV_SEND_SOLICITED,
    IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM,
)
from fauxrdma.memory.location import HOST_MEMORY
from fauxrdma.sim.world import SimQp, World
from fauxrdma.wire.headers import (
    WRITE_ONLY_BYTES,
    Frame,
    decode_header,
    decode_write_only,
    encode_header,
    encode_write_only,
)

SIZE = 8192


@dataclass
class Write:
    opcode: int
    length: int
    inline: bool
    flags: int
    remote: int
    bad: str  # "", "lkey", "rkey" or "range"
    pause_ns: int


writes = st.builds(
    Write,
    st.sampled_from([IBV_WR_RDMA_WRITE] * 6 + [IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ]),
    st.one_of(st.integers(0, 64), st.sampled_from([4095, 4096, 4097])),
    st.booleans(),
    st.builds(
        lambda signaled, solicited, fence: signaled | solicited | fence,
        st.sampled_from([0, int(IBV_SEND_SIGNALED)]),
        st.sampled_from([0, int(IBV_SEND_SOLICITED)]),
        st.sampled_from([0, 0, int(IBV_SEND_FENCE)]),
    ),
    st.integers(0, SIZE - 4097),
    st.sampled_from([""] * 12 + ["lkey", "rkey", "range"]),
    st.sampled_from([100, 300, 5000]),
)


def _state(qp: SimQp) -> dict[str, Any]:
    """Everything both halves of the engine know, but for what `place` leaves for `finish`."""
    engine = qp.hca.engine
    out: dict[str, Any] = {"state": qp.qp.state, "last_error": qp.qp.last_error}
    requester, responder = engine._requesters[qp.qp.qpn], engine._responders[qp.qp.qpn]
    for half in (requester, responder):
        for name in type(half).__slots__:
            if name not in ("keys", "qp", "wqes", "choices", "_placed", "_view", "_verdict"):
                out[name] = getattr(half, name)
    out["choices"] = responder.choices.getstate()
    out["wqes"] = [
        (w.index, w.wr_id, w.first_psn, w.last_psn, w.sent, w.cut, w.length, w.flags) for w in requester.wqes
    ]
    return out


def _run(plan: list[Write], seed: int, express: bool, sig_all: bool, timeout: int) -> tuple[Any, ...]:
    world = World(2, seed=seed, express=express)
    a, b = world.pair(timeout=timeout, retry_cnt=1)
    a.qp.sq_sig_all = sig_all
    mine, my_bytes = world.hcas[0].alloc(SIZE)
    his, his_bytes = world.hcas[1].alloc(SIZE)
    my_bytes[:] = world.rng.randbytes(SIZE)
    for i in range(len(plan)):
        b.post_recv(1000 + i)
    when = 0
    states = []
    for i, write in enumerate(plan):
        rkey = his.rkey ^ (write.bad == "rkey")
        remote = his.base + (SIZE - 1 if write.bad == "range" else write.remote)
        sges = ((mine.base, write.length, mine.lkey ^ (write.bad == "lkey")),)
        inline = bytes(my_bytes[: write.length]) if write.inline and write.opcode != IBV_WR_RDMA_READ else None
        flags = write.flags | (int(IBV_SEND_INLINE) if inline is not None else 0)
        wqe = SendWqe(0, i, write.opcode, flags, () if inline is not None else sges, remote, rkey, i, inline)
        world.at(when, lambda wqe=wqe: a.post_send(wqe))
        world.at(when + 50, lambda: states.append((_state(a), _state(b))))
        when += write.pause_ns
    world.run()
    return world.trace, bytes(my_bytes), bytes(his_bytes), states, _state(a), _state(b)


@given(st.lists(writes, min_size=1, max_size=10), st.integers(0, 1000), st.booleans(), st.sampled_from([4, 14, 0]))
def test_both_ways_do_the_same(plan: list[Write], seed: int, sig_all: bool, timeout: int) -> None:
    general, express = (_run(plan, seed, lane, sig_all, timeout) for lane in (False, True))
    # Of two things at the same nanosecond either may be first.
    assert sorted(express[0]) == sorted(general[0])
    assert express[1:] == general[1:]


def test_the_lane_is_taken() -> None:
    """Or the test above would compare the general way with itself."""
    world = World(2, express=True)
    a, b = world.pair()
    mine, _ = world.hcas[0].alloc(SIZE)
    his, _ = world.hcas[1].alloc(SIZE)
    sent, landed = [], []
    send, receive = a.hca.engine.express_send, b.hca.engine.express_receive
    a.hca.engine.express_send = lambda *args: sent.append(send(*args)) or sent[-1]  # type: ignore
    b.hca.engine.express_receive = lambda *args: landed.append(receive(*args)) or landed[-1]  # type: ignore
    a.post_send(SendWqe(0, 1, IBV_WR_RDMA_WRITE, 2, ((mine.base, 64, mine.lkey),), his.base, his.rkey))
    world.run()
    assert len(sent) == 1
    assert sent[0] is not None
    assert landed == [HOST_MEMORY]
    assert [wc.status for wc in a.completions] == [0]


@given(
    st.integers(0, 0xFFFFFF), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.binary(max_size=100),
    st.booleans(), st.booleans(),
)  # fmt: skip
def test_the_header_is_the_general_one(
    psn: int, va: int, rkey: int, payload: bytes, patient: bool, solicited: bool
) -> None:
    frame = Frame(
        0x0A, 3, 7, 0x123456, psn, True, solicited, va, rkey, len(payload), nbytes=len(payload), patient=patient
    )
    data = encode_write_only(3, 7, 0x123456, psn, va, rkey, len(payload), patient, solicited)
    assert data == encode_header(frame)
    whole = bytearray(b"xx" + data + payload)
    assert decode_header(whole, 2) == frame
    write = decode_write_only(whole, 2, len(whole))
    assert write == (3, 7, 0x123456, psn, True, patient, va, rkey, len(payload))
    # Not whole, or not this kind: the general way says what is to be said.
    assert decode_write_only(whole, 2, len(whole) - 1) is None
    for at in (2, 3, 2 + 24):
        wrong = bytearray(whole)
        wrong[at] ^= 1
        assert decode_write_only(wrong, 2, len(wrong)) is None
    assert WRITE_ONLY_BYTES == 52


@pytest.mark.parametrize("sge_room", [0, 1, 2])
def test_a_ring_offers_only_a_lone_plain_write(sge_room: int) -> None:
    layout = QpLayout(4, 1, sge_room, 1, 32)
    rings = QueuePairRings(memoryview(bytearray(layout.total_bytes)), layout)
    assert rings.peek_lone_write(4096) is None
    rings.put_send(0, 9, 0, 8, 0x1000, 77, 0, [], b"hello")
    rings.publish_sends(1)
    assert rings.peek_lone_write(4) is None
    assert rings.peek_lone_write(5) == (0, 9, 8, 0x1000, 77, b"hello")
    assert rings.pending_sends() == 1
    rings.put_send(1, 9, 0, 8, 0x1000, 77, 0, [], b"hello")
    rings.publish_sends(2)
    assert rings.peek_lone_write(4096) is None  # two wait
    rings.advance_sends(1)
    assert rings.peek_lone_write(4096) == (1, 9, 8, 0x1000, 77, b"hello")
    rings.advance_sends(2)
    for opcode, sges in ((1, [(1, 2, 3)]), (0, []), (0, [(1, 2, 3)] * 2)):
        if len(sges) > sge_room:
            continue
        rings.put_send(2, 9, opcode, 0, 0x1000, 77, 0, sges, None)
        rings.publish_sends(3)
        assert rings.peek_lone_write(4096) is None, (opcode, sges)
    if sge_room:
        rings.put_send(2, 9, 0, 0, 0x1000, 77, 0, [(1, 2, 3)], None)
        assert rings.peek_lone_write(4096) == (2, 9, 0, 0x1000, 77, (1, 2, 3))
        assert rings.peek_lone_write(1) is None
