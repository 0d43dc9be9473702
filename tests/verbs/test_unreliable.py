"""UC, UD and multicast over two daemons: the same rules as in the simulated world, through the whole stack."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from leaks import settles
from pairs import End, connect

from fauxrdma.errors import VerbsError
from fauxrdma.ib.enums import (
    IBV_EVENT_SQ_DRAINED,
    IBV_QP_EN_SQD_ASYNC_NOTIFY,
    IBV_QP_STATE,
    IBV_QPS_ERR,
    IBV_QPS_INIT,
    IBV_QPS_RESET,
    IBV_QPS_RTS,
    IBV_QPS_SQD,
    IBV_QPS_SQE,
    IBV_QPT_UC,
    IBV_QPT_UD,
    IBV_SEND_INLINE,
    IBV_SEND_SIGNALED,
    IBV_WC_GRH,
    IBV_WC_LOC_LEN_ERR,
    IBV_WC_LOC_PROT_ERR,
    IBV_WC_LOC_QP_OP_ERR,
    IBV_WC_RECV,
    IBV_WC_RECV_RDMA_WITH_IMM,
    IBV_WC_WITH_IMM,
    IBV_WC_WR_FLUSH_ERR,
    IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM,
    IBV_WR_SEND,
    IBV_WR_SEND_WITH_IMM,
)
from fauxrdma.lab.local import LocalLab
from fauxrdma.verbs import AH, GRH, PD, QP, AHAttr, QPAttr, QPCap, QPInitAttr, RecvWR, SendWR

QKEY = 0x1234
INBOX = 1 << 19  # offset of what is received
SIGNALED = int(IBV_SEND_SIGNALED)


class Peer(End):
    """An End whose queue pair is of UC or, in RTS already, of UD."""

    def __init__(self, lab: LocalLab, node: int, qp_type: int, hca: str = "hca1", qkey: int = QKEY) -> None:
        super().__init__(lab, node, hca)
        self.qp.close()
        cap = QPCap(max_send_wr=64, max_recv_wr=64, max_send_sge=4, max_recv_sge=4, max_inline_data=128)
        attr = QPAttr(qkey=qkey) if qp_type == IBV_QPT_UD else None
        self.qp = QP(self.pd, QPInitAttr(qp_type=qp_type, scq=self.cq, rcq=self.cq, cap=cap), attr)
        self.mr.write(os.urandom(INBOX), INBOX)

    def receive(self, wr_id: int, length: int = 1 << 19) -> None:
        self.qp.post_recv(RecvWR(wr_id, [self.sge(INBOX, length)]))

    def inbox(self, length: int, offset: int = 0) -> bytes:
        return self.mr.read(length, INBOX + offset)

    def ah(self, to: Peer, routed: bool = False, **fields: Any) -> AH:
        hca = to.ctx.hca
        return AH(self.pd, attr=AHAttr(hca.lid, is_global=routed, dgid=hca.gid, **fields))

    def datagram(self, ah: AH, qpn: int, length: int, wr_id: int = 1, qkey: int = QKEY, **fields: Any) -> SendWR:
        wr = SendWR(wr_id, sg=[self.sge(0, length)], **fields)
        wr.set_wr_ud(ah, qpn, qkey)
        return wr

    def send(self, to: Peer, length: int, wr_id: int = 1, **fields: Any) -> None:
        self.qp.post_send(self.datagram(self.ah(to), to.qp.qp_num, length, wr_id, **fields))


@pytest.fixture
def uc(unshaped: LocalLab) -> Iterator[tuple[Peer, Peer]]:
    a, b = Peer(unshaped, 0, IBV_QPT_UC), Peer(unshaped, 1, IBV_QPT_UC)
    connect(a, b)
    yield a, b
    a.close()
    b.close()


@pytest.fixture
def ud(unshaped: LocalLab) -> Iterator[tuple[Peer, Peer]]:
    a, b = Peer(unshaped, 0, IBV_QPT_UD), Peer(unshaped, 1, IBV_QPT_UD)
    yield a, b
    a.close()
    b.close()


# ---- UC ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 1, 4097, 500_000])
@pytest.mark.parametrize("opcode", [IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM])
def test_uc_operations(uc: tuple[Peer, Peer], opcode: int, length: int) -> None:
    a, b = uc
    b.receive(7)
    b.receive(8)
    wr = SendWR(1, opcode, [a.sge(0, length)], imm_data=99, remote_addr=b.mr.buf + INBOX, rkey=b.mr.rkey)
    # A plain WRITE tells nobody; the SEND behind it does.
    a.qp.post_send(wr, SendWR(2, IBV_WR_SEND_WITH_IMM, [], imm_data=5))
    assert [(wc.wr_id, wc.status) for wc in a.wait(2)] == [(1, 0), (2, 0)]
    if opcode == IBV_WR_RDMA_WRITE:
        (last,) = b.wait(1)
    else:
        wc, last = b.wait(2)
        is_send = opcode in (IBV_WR_SEND, IBV_WR_SEND_WITH_IMM)
        assert wc.opcode == (IBV_WC_RECV if is_send else IBV_WC_RECV_RDMA_WITH_IMM)
        assert (wc.wr_id, wc.byte_len) == (7, length)
        assert (wc.wc_flags, wc.imm_data) == ((0, 0) if opcode == IBV_WR_SEND else (IBV_WC_WITH_IMM, 99))
    assert last.imm_data == 5
    assert b.inbox(length) == a.mr.read(length, 0)


def test_uc_what_cannot_be_used_vanishes(uc: tuple[Peer, Peer]) -> None:
    a, b = uc
    a.qp.post_send(SendWR(1, IBV_WR_SEND, [a.sge(0, 10)]))  # no receive is posted
    a.qp.post_send(a.write(b, 100, 2, rkey=b.mr.rkey ^ 1))
    a.qp.post_send(a.write(b, 100, 3, remote_addr=b.mr.buf + b.mr.length - 99))
    assert [(wc.wr_id, wc.status) for wc in a.wait(3)] == [(1, 0), (2, 0), (3, 0)]
    a.qp.post_send(a.write(b, 100, 4))
    # The WRITE that is right arrives behind them; once it is there the others have been dropped.
    a.wait(1)
    while b.mr.read(100, 0) != a.mr.read(100, 0):
        pass
    assert "dropped a message" in b.qp.last_error()
    assert b.qp.qp_state == IBV_QPS_RTS
    assert b.cq.poll()[0] == 0
    assert b.ctx.get_async_event(0) is None


def test_uc_local_error_is_sqe_and_back(uc: tuple[Peer, Peer]) -> None:
    a, b = uc
    b.receive(7)
    bad = SendWR(1, IBV_WR_SEND, [a.sge(0, 10)])
    bad.sg[0].lkey ^= 1
    a.qp.post_send(bad, SendWR(2, IBV_WR_SEND, [a.sge(0, 10)]))
    assert [(wc.wr_id, wc.status) for wc in a.wait(2)] == [(1, IBV_WC_LOC_PROT_ERR), (2, IBV_WC_WR_FLUSH_ERR)]
    assert a.qp.qp_state == IBV_QPS_SQE
    a.qp.post_send(SendWR(3, IBV_WR_SEND, [a.sge(0, 10)]))
    assert [(wc.wr_id, wc.status) for wc in a.wait(1)] == [(3, IBV_WC_WR_FLUSH_ERR)]
    a.qp.modify(QPAttr(qp_state=IBV_QPS_RTS), IBV_QP_STATE)
    a.qp.post_send(SendWR(4, IBV_WR_SEND, [a.sge(0, 20)]))
    assert [(wc.wr_id, wc.status) for wc in a.wait(1)] == [(4, 0)]
    assert [(wc.wr_id, wc.byte_len) for wc in b.wait(1)] == [(7, 20)]


@pytest.mark.parametrize("opcode", [IBV_WR_RDMA_READ, 5, 6, 7, 9])
def test_uc_has_no_such_operation(uc: tuple[Peer, Peer], opcode: int) -> None:
    a, _ = uc
    with pytest.raises(VerbsError, match="is not an operation of IBV_QPT_UC") as caught:
        a.qp.post_send(SendWR(1, opcode, [a.sge(0, 8)]))
    assert caught.value.errno == errno.EINVAL


def test_sqd_says_that_it_is_drained(uc: tuple[Peer, Peer]) -> None:
    a, b = uc
    a.qp.modify(QPAttr(qp_state=IBV_QPS_SQD, en_sqd_async_notify=1), IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY)
    event = a.ctx.get_async_event(20)
    assert event is not None
    assert (event.event_type, event.element) == (IBV_EVENT_SQ_DRAINED, a.qp.qp_num)
    a.qp.post_send(a.write(b, 8))
    a.qp.modify(QPAttr(qp_state=IBV_QPS_RTS), IBV_QP_STATE)
    assert [wc.status for wc in a.wait(1)] == [0]


# ---- UD ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 1, 4096])
@pytest.mark.parametrize("routed", [False, True])
def test_ud_datagrams(ud: tuple[Peer, Peer], length: int, routed: bool) -> None:
    a, b = ud
    b.receive(7)
    ah = a.ah(b, routed, sl=3, traffic_class=9)
    a.qp.post_send(a.datagram(ah, b.qp.qp_num, length, opcode=IBV_WR_SEND_WITH_IMM, imm_data=5))
    assert [(wc.wr_id, wc.status) for wc in a.wait(1)] == [(1, 0)]
    (wc,) = b.wait(1)
    assert (wc.wr_id, wc.status, wc.opcode, wc.byte_len) == (7, 0, IBV_WC_RECV, length + 40)
    assert (wc.src_qp, wc.slid, wc.sl, wc.imm_data) == (a.qp.qp_num, a.ctx.hca.lid, 3, 5)
    assert wc.wc_flags == (IBV_WC_WITH_IMM | IBV_WC_GRH if routed else IBV_WC_WITH_IMM)
    assert b.inbox(length, 40) == a.mr.read(length, 0)
    # Answer the sender, who is known from the completion (and the header) alone.
    grh = GRH.from_bytes(b.inbox(40)) if routed else None
    if grh is not None:
        assert grh.traffic_class == 9
    a.receive(8)
    b.qp.post_send(b.datagram(AH(b.pd, wc=wc, grh=grh), wc.src_qp, 30))
    got = a.wait(1)[0]
    assert (got.wr_id, got.byte_len, got.src_qp) == (8, 70, b.qp.qp_num)
    assert bool(got.wc_flags & IBV_WC_GRH) == routed
    assert a.inbox(30, 40) == b.mr.read(30, 0)


def test_ud_to_oneself_to_a_neighbour_and_to_another_hca_of_the_node(unshaped: LocalLab) -> None:
    a, b, c = (Peer(unshaped, 0, IBV_QPT_UD, hca) for hca in ("hca1", "hca1", "hca2"))
    for to in (a, b, c):
        to.receive(7)
        a.send(to, 100)
        wcs = a.wait(2) if to is a else a.wait(1) + to.wait(1)
        assert sorted((wc.wr_id, wc.status, wc.byte_len) for wc in wcs if wc.opcode == IBV_WC_RECV) == [(7, 0, 140)]
        assert to.inbox(100, 40) == a.mr.read(100, 0)
    for peer in (a, b, c):
        peer.close()


def test_ud_one_queue_pair_alternates_between_destinations(unshaped: LocalLab) -> None:
    a = Peer(unshaped, 0, IBV_QPT_UD)
    others = [Peer(unshaped, 1, IBV_QPT_UD, "hca1"), Peer(unshaped, 1, IBV_QPT_UD, "hca2"), a]
    handles = [a.ah(to) for to in others]
    for to in others:
        for wr_id in range(16):
            to.receive(100 + wr_id)
    wrs = [a.datagram(handles[i % 3], others[i % 3].qp.qp_num, 100 + i, i) for i in range(48)]
    a.qp.post_send(*wrs)
    wcs = a.wait(48 + 16)
    assert [wc.wr_id for wc in wcs if wc.opcode != IBV_WC_RECV] == list(range(48))
    for at, to in enumerate(others):
        got = to.wait(16) if to is not a else [wc for wc in wcs if wc.opcode == IBV_WC_RECV]
        assert [wc.byte_len for wc in got] == [140 + i for i in range(48) if i % 3 == at]
    for peer in (a, others[0], others[1]):
        peer.close()


def test_ud_drops_are_counted(ud: tuple[Peer, Peer]) -> None:
    a, b = ud
    before = b.ctx.query_drop_counters()
    a.send(b, 100)  # no receive
    a.wait(1)
    while b.ctx.query_drop_counters()["no_receive"] == before["no_receive"]:
        pass
    b.receive(7, 139)
    a.send(b, 100, 2)  # too short by one
    a.send(b, 10, 3, qkey=QKEY + 1)
    a.qp.post_send(a.datagram(a.ah(b), 0x777777, 10, 4))
    a.send(b, 99, 5, qkey=0x80000000)  # our own Q_Key, which is theirs
    assert [(wc.wr_id, wc.status) for wc in a.wait(4)] == [(2, 0), (3, 0), (4, 0), (5, 0)]
    assert [(wc.wr_id, wc.byte_len) for wc in b.wait(1)] == [(7, 139)]
    after = b.ctx.query_drop_counters()
    gained = {name: after[name] - before[name] for name in after}
    assert gained == {
        "no_receive": 1, "receive_too_short": 1, "qkey_violations": 1, "no_queue_pair": 1, "wrong_address": 0,
    }  # fmt: skip


def test_ud_local_errors_are_sqe_and_back(ud: tuple[Peer, Peer]) -> None:
    a, b = ud
    gone = a.ah(b)
    gone.close()
    b.receive(7)
    for bad, status in (
        (a.datagram(a.ah(b), b.qp.qp_num, 4097), IBV_WC_LOC_LEN_ERR),
        (a.datagram(gone, b.qp.qp_num, 10), IBV_WC_LOC_QP_OP_ERR),
    ):
        a.qp.post_send(bad, a.datagram(a.ah(b), b.qp.qp_num, 10, 2))
        assert [(wc.wr_id, wc.status) for wc in a.wait(2)] == [(1, status), (2, IBV_WC_WR_FLUSH_ERR)]
        assert a.qp.qp_state == IBV_QPS_SQE
        a.qp.modify(QPAttr(qp_state=IBV_QPS_RTS), IBV_QP_STATE)
    a.send(b, 10)
    assert [wc.byte_len for wc in b.wait(1)] == [50]


def test_ud_requests_that_are_refused_when_posted(ud: tuple[Peer, Peer]) -> None:
    a, b = ud
    with pytest.raises(VerbsError, match="needs an address handle"):
        a.qp.post_send(SendWR(1, IBV_WR_SEND, [a.sge(0, 10)]))
    with pytest.raises(VerbsError, match="is not an operation of IBV_QPT_UD"):
        a.qp.post_send(a.write(b, 10))
    with pytest.raises(VerbsError, match="it is not connected"):
        a.qp.connect(b.qp.endpoint())


def test_ud_inline_and_many(ud: tuple[Peer, Peer]) -> None:
    a, b = ud
    ah = a.ah(b)
    for round_ in range(10):
        for wr_id in range(50):
            b.receive(wr_id)
        flags = SIGNALED | int(IBV_SEND_INLINE)
        a.qp.post_send(*(a.datagram(ah, b.qp.qp_num, 1 + wr_id, wr_id, send_flags=flags) for wr_id in range(50)))
        a.wait(50)
        assert [wc.byte_len for wc in b.wait(50)] == [41 + wr_id for wr_id in range(50)], round_


# ---- bringing up -------------------------------------------------------------------------------------------------


def test_a_queue_pair_moves_on_creation_as_in_pyverbs(unshaped: LocalLab) -> None:
    end = End(unshaped, 0)
    for qp_type, state in ((2, IBV_QPS_INIT), (IBV_QPT_UC, IBV_QPS_INIT), (IBV_QPT_UD, IBV_QPS_RTS)):
        qp = QP(end.pd, QPInitAttr(qp_type=qp_type, scq=end.cq, rcq=end.cq), QPAttr(qkey=77, qp_access_flags=3))
        assert qp.qp_state == state
        attr, init = qp.query()
        assert init.qp_type == qp_type
        assert (attr.qkey, attr.qp_access_flags) == ((77, 0) if qp_type == IBV_QPT_UD else (0, 3))
        qp.modify(QPAttr(qp_state=IBV_QPS_ERR), IBV_QP_STATE)
        qp.modify(QPAttr(qp_state=IBV_QPS_RESET), IBV_QP_STATE)
        qp.close()
    for number, text in ((8, "RAW_PACKET"), (9, "XRC_SEND")):
        with pytest.raises(VerbsError, match=text) as caught:
            QP(end.pd, QPInitAttr(qp_type=number, scq=end.cq, rcq=end.cq))
        assert caught.value.errno == errno.EOPNOTSUPP
    end.close()


def test_query_tells_the_whole_address_vector(unshaped: LocalLab) -> None:
    a = End(unshaped, 0)
    qp = QP(a.pd, QPInitAttr(qp_type=IBV_QPT_UC, scq=a.cq, rcq=a.cq))
    av = AHAttr(2, sl=4, dgid="fe80::5", is_global=True, flow_label=7, hop_limit=8, traffic_class=9)
    qp.to_rts(QPAttr(ah_attr=av, dest_qp_num=5, rq_psn=6, sq_psn=7, path_mtu=3))
    assert qp.qp_state == IBV_QPS_RTS
    got = qp.query()[0]
    assert got.ah_attr == av
    assert (got.dest_qp_num, got.rq_psn, got.sq_psn, got.path_mtu) == (5, 6, 7, 3)
    a.close()


@pytest.mark.parametrize(
    ("attr", "words"),
    [(AHAttr(0), "dlid 0 is not a unicast LID"), (AHAttr(0xC000), "needs is_global"), (AHAttr(1, sl=99), "sl is 99")],
)
def test_address_handles_that_are_refused(ud: tuple[Peer, Peer], attr: AHAttr, words: str) -> None:
    a, _ = ud
    with pytest.raises(VerbsError, match=words) as caught:
        AH(a.pd, attr=attr)
    assert caught.value.errno == errno.EINVAL


def test_an_address_handle_keeps_its_domain(unshaped: LocalLab) -> None:
    a = Peer(unshaped, 0, IBV_QPT_UD)

    pd = PD(a.ctx)
    with pytest.raises(VerbsError, match="give either attr, or wc"):
        AH(pd)
    ah = AH(pd, attr=AHAttr(1))
    with pytest.raises(VerbsError) as caught:
        pd.close()
    assert caught.value.errno == errno.EBUSY
    ah.close()
    ah.close()
    pd.close()
    a.close()


# ---- multicast ---------------------------------------------------------------------------------------------------

GROUP = "ff12:401b:ffff::77"


def shout(peer: Peer, length: int, lid: int, gid: str = GROUP) -> None:
    peer.qp.post_send(peer.datagram(AH(peer.pd, attr=AHAttr(lid, is_global=True, dgid=gid)), 0xFFFFFF, length))


def test_multicast_reaches_every_member_on_every_node(unshaped: LocalLab) -> None:
    sender, neighbour, other_hca = (Peer(unshaped, 0, IBV_QPT_UD, hca) for hca in ("hca1", "hca1", "hca2"))
    remote, second = Peer(unshaped, 1, IBV_QPT_UD), Peer(unshaped, 1, IBV_QPT_UD)
    outsider = Peer(unshaped, 1, IBV_QPT_UD, "hca2")
    members = [neighbour, other_hca, remote, second]
    for peer in (*members, outsider, sender):
        peer.receive(7)
        peer.receive(8)
    for peer in members:
        peer.qp.attach_mcast(GROUP, 0xC010)
    shout(sender, 300, 0xC010)
    assert [wc.status for wc in sender.wait(1)] == [0]
    for peer in members:
        (wc,) = peer.wait(1)
        assert (wc.wr_id, wc.status, wc.byte_len, wc.src_qp) == (7, 0, 340, sender.qp.qp_num)
        assert peer.inbox(300, 40) == sender.mr.read(300, 0)
        assert GRH.from_bytes(peer.inbox(40)).dgid[:2] == b"\xff\x12"
    # One leaves, the sender joins; then the queue pairs of the others go with their applications.
    second.qp.detach_mcast(GROUP, 0xC010)
    sender.qp.attach_mcast(GROUP, 0xC010)
    shout(sender, 10, 0xC010)
    assert sorted(wc.byte_len for wc in sender.wait(2)) == [0, 50]
    for peer in (neighbour, other_hca, remote):
        assert [wc.byte_len for wc in peer.wait(1)] == [50]
    assert second.cq.poll()[0] == outsider.cq.poll()[0] == 0
    with pytest.raises(VerbsError, match="is attached to 1 multicast groups") as caught:
        remote.qp.close()
    assert caught.value.errno == errno.EBUSY
    for peer in (*members, outsider):
        peer.close()
    sender.receive(9)
    shout(sender, 20, 0xC010)
    assert len(sender.wait(2)) == 2
    sender.close()


def test_an_application_that_crashes_leaves_its_groups(unshaped: LocalLab) -> None:
    lid = 0xC020
    sender, keeper = Peer(unshaped, 0, IBV_QPT_UD), Peer(unshaped, 1, IBV_QPT_UD, "hca2")
    program = f"""
import os
from fauxrdma.verbs import *
ctx = Context("hca1", {str(unshaped.socket_path(1))!r})
pd, cq = PD(ctx), CQ(ctx, 8)
qp = QP(pd, QPInitAttr(qp_type=4, scq=cq, rcq=cq), QPAttr(qkey={QKEY}))
qp.attach_mcast({GROUP!r}, {lid})
os.kill(os.getpid(), 9)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == -9
    keeper.qp.attach_mcast(GROUP, lid)

    def delivered() -> dict[str, int]:
        return {link.dst: link.nbytes for link in unshaped.report().links if ".hca" in link.dst and "leaf" in link.src}

    def reached() -> set[str]:
        """The HCAs that the fabric delivers to when a datagram is sent to the group."""
        before = delivered()
        keeper.receive(7)
        shout(sender, 10, lid)
        sender.wait(1)
        assert [wc.byte_len for wc in keeper.wait(1)] == [50]
        return {hca for hca, nbytes in delivered().items() if nbytes != before[hca]}

    # The daemon hears of the crash when it hears of it; until then hca1 may still be sent its copy.
    expected = {"n1.hca2"}
    assert settles(reached, expected) == expected
    sender.close()
    keeper.close()


def test_multicast_that_is_refused(ud: tuple[Peer, Peer], uc: tuple[Peer, Peer]) -> None:
    a, _ = ud
    for gid, lid, words in (
        ("fe80::1", 0xC001, "not a multicast GID"), (GROUP, 7, "not a multicast LID"), ("x", 0xC001, "not a GID"),
    ):  # fmt: skip
        with pytest.raises(VerbsError, match=words):
            a.qp.attach_mcast(gid, lid)
    with pytest.raises(VerbsError, match="is not attached"):
        a.qp.detach_mcast(GROUP, 0xC001)
    with pytest.raises(VerbsError, match="only IBV_QPT_UD"):
        uc[0].qp.attach_mcast(GROUP, 0xC001)
