"""REFERENCE A2, A3 and A6, the UD rows: one MTU, 40 bytes in front, Q_Keys, and what cannot be used vanishes."""

from __future__ import annotations

from typing import Any

import pytest
from stages import QKEY, Memory, Queue, Stage, attributes, bring_up

from fauxrdma.ib.attributes import AHAttr
from fauxrdma.ib.enums import (
    IBV_QP_STATE,
    IBV_QPS_RTS,
    IBV_QPS_SQE,
    IBV_SEND_SIGNALED,
    IBV_WC_GRH,
    IBV_WC_LOC_LEN_ERR,
    IBV_WC_LOC_PROT_ERR,
    IBV_WC_RECV,
    IBV_WC_SEND,
    IBV_WC_SUCCESS,
    IBV_WC_WITH_IMM,
    IBV_WC_WR_FLUSH_ERR,
    IBV_WR_SEND,
    IBV_WR_SEND_WITH_IMM,
    QpType,
)
from fauxrdma.ib.work import RecvWR, SendWR

UD = QpType.IBV_QPT_UD
SIGNALED = int(IBV_SEND_SIGNALED)
SIZE = 8192


class Scene:
    """A sender on `a`, a receiver on `b`, and an address handle from one to the other."""

    def __init__(self, stage: Stage, *, to_self: bool = False, **changes: Any) -> None:
        self.stage = stage
        self.a = stage.a.queue(UD)
        self.b = self.a if to_self else stage.b.queue(UD)
        for queue in {id(q): q for q in (self.a, self.b)}.values():
            bring_up(queue, None, **changes)
        self.mine, self.his = stage.a.memory(SIZE), (stage.a if to_self else stage.b).memory(SIZE)
        self.mine.data[:] = bytes(i * 7 % 251 for i in range(SIZE))
        self.ah = stage.a.ah(AHAttr(self.b.end.lid))

    def wr(self, length: int, wr_id: int = 1, opcode: int = IBV_WR_SEND, qkey: int = QKEY, **fields: Any) -> SendWR:
        wr = SendWR(wr_id, opcode, fields.pop("sg", [self.mine.sge(length)] if length else []), 0xABCD, SIGNALED)
        wr.set_wr_ud(fields.pop("ah", self.ah), fields.pop("qpn", self.b.qpn), qkey)
        return wr

    def still_works(self) -> None:
        """A good datagram behind what vanished arrives in the receive that is posted first."""
        self.a.post_send(self.wr(10, 99))
        assert self.a.wait()[0].status == IBV_WC_SUCCESS
        (wc,) = self.b.wait()
        assert (wc.status, wc.byte_len) == (IBV_WC_SUCCESS, 50)


def arrived(memory: Memory, length: int, offset: int = 40) -> bytes:
    return bytes(memory.data[offset : offset + length])


@pytest.mark.parametrize("length", [0, 1, 64, 4096])
@pytest.mark.parametrize("opcode", [IBV_WR_SEND, IBV_WR_SEND_WITH_IMM], ids=lambda o: o.name)
def test_a_datagram(stage: Stage, opcode: int, length: int) -> None:
    scene = Scene(stage)
    scene.b.post_recv(RecvWR(7, [scene.his.sge(40 + length)]))
    scene.a.post_send(scene.wr(length, opcode=opcode))
    (sent,) = scene.a.wait()
    assert (sent.wr_id, sent.status, sent.opcode) == (1, IBV_WC_SUCCESS, IBV_WC_SEND)
    (wc,) = scene.b.wait()
    assert (wc.wr_id, wc.status, wc.opcode) == (7, IBV_WC_SUCCESS, IBV_WC_RECV)
    assert (wc.byte_len, wc.src_qp, wc.slid) == (40 + length, scene.a.qpn, stage.a.lid)
    assert bool(wc.wc_flags & IBV_WC_WITH_IMM) == (opcode == IBV_WR_SEND_WITH_IMM)
    assert not wc.wc_flags & IBV_WC_GRH
    assert arrived(scene.his, length) == bytes(scene.mine.data[:length])
    assert not any(scene.his.data[40 + length :])


def test_a_routed_datagram_brings_its_header(stage: Stage) -> None:
    scene = Scene(stage)
    gid = "fe80::2" if stage.name == "sim" else stage.b.ctx.hca.gid  # type: ignore[attr-defined]
    ah = stage.a.ah(AHAttr(stage.b.lid, dgid=gid, is_global=True, hop_limit=3))
    scene.b.post_recv(RecvWR(7, [scene.his.sge()]))
    scene.a.post_send(scene.wr(8, ah=ah))
    assert scene.a.wait()[0].status == IBV_WC_SUCCESS
    (wc,) = scene.b.wait()
    assert wc.wc_flags & IBV_WC_GRH
    assert scene.his.data[0] >> 4 == 6  # IP version
    assert scene.his.data[7] == 3  # hop limit
    assert arrived(scene.his, 8) == bytes(scene.mine.data[:8])


def test_the_first_forty_bytes_are_the_headers(stage: Stage) -> None:
    """They may be scattered apart from the payload."""
    scene = Scene(stage)
    scene.b.post_recv(RecvWR(7, [scene.his.sge(40, 1000), scene.his.sge(100, 0)]))
    scene.a.post_send(scene.wr(100))
    scene.a.wait()
    assert scene.b.wait()[0].byte_len == 140
    assert arrived(scene.his, 100, 0) == bytes(scene.mine.data[:100])


@pytest.mark.parametrize("case", ["q_key", "no receive", "receive too short", "no such queue pair"])
def test_what_vanishes(stage: Stage, case: str) -> None:
    """No completion at the receiver, SUCCESS at the sender, and both go on."""
    scene = Scene(stage)
    if case == "receive too short":
        scene.b.post_recv(RecvWR(7, [scene.his.sge(40 + 63)]))
    elif case != "no receive":
        scene.b.post_recv(RecvWR(7, [scene.his.sge()]))
    wr = scene.wr(64, qkey=QKEY ^ 1 if case == "q_key" else QKEY)
    if case == "no such queue pair":
        wr.remote_qpn = scene.b.qpn ^ 1
    scene.a.post_send(wr)
    assert scene.a.wait()[0].status == IBV_WC_SUCCESS
    if case in ("no receive", "receive too short"):
        scene.a.pending()
        scene.b.pending()
        if case == "no receive":
            _settle(scene)
            scene.b.post_recv(RecvWR(8, [scene.his.sge()]))
        else:
            # The receive is used up or not, as the adapter likes; it never reports success for a cut datagram.
            scene.b.post_recv(RecvWR(8, [scene.his.sge()]), RecvWR(9, [scene.his.sge()]))
    if case == "receive too short":
        scene.a.post_send(scene.wr(10, 99))
        (wc,) = scene.b.wait()
        assert (wc.status, wc.byte_len) == (IBV_WC_SUCCESS, 50)
        assert wc.byte_len != 104
    else:
        scene.still_works()
    assert scene.a.state == scene.b.state == IBV_QPS_RTS


def _settle(scene: Scene) -> None:
    """Whatever was under way has arrived: a second queue pair pair's datagram behind it has."""
    c, d = scene.stage.a.queue(UD), scene.stage.b.queue(UD)
    bring_up(c, None)
    bring_up(d, None)
    d.post_recv(RecvWR(1, [scene.his.sge(100, 4096)]))
    c.post_send(scene.wr(10, 5, qpn=d.qpn))
    c.wait()
    d.wait()


def test_the_top_bit_of_a_q_key_means_the_sender_s_own(stage: Stage) -> None:
    scene = Scene(stage)
    scene.b.post_recv(RecvWR(7, [scene.his.sge()]))
    scene.a.post_send(scene.wr(10, qkey=0x80000001))
    scene.a.wait()
    assert scene.b.wait()[0].byte_len == 50


@pytest.mark.parametrize("case", ["over the MTU", "bad lkey"])
def test_a_local_error_stops_the_send_queue_alone(stage: Stage, case: str) -> None:
    """SQE: later sends are flushed, receives go on, a modify to RTS and it sends again."""
    scene = Scene(stage)
    wr = scene.wr(4097) if case == "over the MTU" else scene.wr(64)
    if case == "bad lkey":
        wr.sg[0].lkey ^= 0x10000
    a: Queue = scene.a
    a.post_send(wr, scene.wr(10, 2))
    assert [(wc.wr_id, wc.status) for wc in a.wait(2)] == [
        (1, IBV_WC_LOC_LEN_ERR if case == "over the MTU" else IBV_WC_LOC_PROT_ERR),
        (2, IBV_WC_WR_FLUSH_ERR),
    ]
    assert a.state == IBV_QPS_SQE
    # Receives go on.
    back = stage.b.ah(AHAttr(stage.a.lid))
    a.post_recv(RecvWR(30, [scene.mine.sge()]))
    reply = SendWR(31, IBV_WR_SEND, [scene.his.sge(16)], 0, SIGNALED)
    reply.set_wr_ud(back, a.qpn, QKEY)
    scene.b.post_send(reply)
    scene.b.wait()
    assert [(wc.wr_id, wc.status) for wc in a.wait()] == [(30, IBV_WC_SUCCESS)]
    attr = attributes(a, None)
    attr.qp_state = IBV_QPS_RTS
    a.modify(attr, IBV_QP_STATE)
    scene.b.post_recv(RecvWR(7, [scene.his.sge()]))
    scene.still_works()


def test_to_itself(stage: Stage) -> None:
    scene = Scene(stage, to_self=True)
    scene.b.post_recv(RecvWR(7, [scene.his.sge()]))
    scene.a.post_send(scene.wr(100))
    got = {wc.opcode: wc for wc in scene.a.wait(2)}
    assert got[IBV_WC_SEND].status == got[IBV_WC_RECV].status == IBV_WC_SUCCESS
    assert arrived(scene.his, 100) == bytes(scene.mine.data[:100])


def test_one_queue_pair_hears_many_and_answers_each(stage: Stage) -> None:
    scene = Scene(stage)
    senders = [scene.a, *(stage.a.queue(UD) for _ in range(3))]
    for sender in senders[1:]:
        bring_up(sender, None)
    scene.b.post_recv(*(RecvWR(i, [scene.his.sge(100, 100 * i)]) for i in range(4)))
    for i, sender in enumerate(senders):
        sender.post_send(scene.wr(10 + i, i))
        sender.wait()
    got = scene.b.wait(4)
    assert [(wc.wr_id, wc.byte_len, wc.src_qp) for wc in got] == [
        (i, 50 + i, sender.qpn) for i, sender in enumerate(senders)
    ]


def test_a_signal_is_only_what_was_asked_for(stage: Stage) -> None:
    scene = Scene(stage)
    scene.b.post_recv(*(RecvWR(i, [scene.his.sge()]) for i in range(3)))
    quiet = scene.wr(10, 1)
    quiet.send_flags = 0
    scene.a.post_send(quiet, scene.wr(10, 2), quiet)
    assert [wc.wr_id for wc in scene.a.wait()] == [2]
    scene.b.wait(3)
    assert scene.a.pending() == []
