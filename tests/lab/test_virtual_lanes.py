"""The service levels that dfsssp gives paths, followed by connections and counted by virtual lane; over daemons."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fauxrdma.errors import RemoteProtocolError
from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.ib.attributes import AHAttr, QPAttr, lane_of_sl
from fauxrdma.ib.enums import (
    IBV_SEND_SIGNALED,
    IBV_WC_SUCCESS,
    IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE,
    IBV_WR_SEND,
    QpType,
)
from fauxrdma.lab.local import LocalLab
from fauxrdma.runtime.subnet_state import SubnetState
from fauxrdma.topology.loading import load_topology
from fauxrdma.verbs import AH, CQ, MR, PD, QP, SGE, CompChannel, Context, QPCap, QPInitAttr, RecvWR, SendWR
from fauxrdma.wire.fabric_messages import CONTROL_VERSION, Counters, NodeHello, PairCounter

LENGTH = 1 << 16


@pytest.fixture(scope="module", params=["none", "paced"])
def lab(request: pytest.FixtureRequest) -> Iterator[LocalLab]:
    """Two switches, hca1 of every node on the first, hca2 on the second."""
    clock = request.param
    dilation = 500 if clock == "paced" else 1
    with LocalLab("seed-two-switch,routing=dfsssp", nodes=2, gpus=2, clock=clock, dilation=dilation) as running:
        yield running


class Side:
    def __init__(self, lab: LocalLab, node: int, hca: str) -> None:
        self.ctx = Context(hca, str(lab.socket_path(node)))
        self.pd = PD(self.ctx)
        self.cq = CQ(self.ctx, 64, None, CompChannel(self.ctx))
        self.mr = MR(self.pd, LENGTH, 7)
        self.qp = self.queue_pair(QpType.IBV_QPT_RC)

    def queue_pair(self, kind: QpType) -> QP:
        return QP(self.pd, QPInitAttr(kind, scq=self.cq, rcq=self.cq, cap=QPCap(max_send_wr=16)))

    def do(self, opcode: int, to: Side, nbytes: int) -> None:
        sge = [SGE(self.mr.buf, nbytes, self.mr.lkey)]
        self.qp.post_send(SendWR(1, opcode, sge, 0, IBV_SEND_SIGNALED, to.mr.buf, to.mr.rkey))
        wcs = self.cq.wait(1, 60)
        assert [wc.status for wc in wcs] == [IBV_WC_SUCCESS]


@pytest.fixture
def sides(lab: LocalLab) -> Iterator[tuple[Side, Side]]:
    """Between switches 1 and 2, with different service levels there and back only if the LIDs' sums differ."""
    a, b = Side(lab, 0, "hca1"), Side(lab, 1, "hca2")
    lab.report(reset=True)
    yield a, b
    a.ctx.close()
    b.ctx.close()


def lanes(lab: LocalLab) -> dict[str, dict[int, int]]:
    """Bytes by lane of every cable that carried any."""
    return {link.name: link.vl_nbytes for link in lab.report().links if link.nbytes and link.kind == "cable"}


def test_a_connection_takes_the_lane_of_its_path(lab: LocalLab, sides: tuple[Side, Side]) -> None:
    a, b = sides
    routes = SubnetManager(lab.topology, lab.seed).routes
    there = routes.sl(a.ctx.hca.lid, b.ctx.hca.lid)
    back = routes.sl(b.ctx.hca.lid, a.ctx.hca.lid)
    assert there > 0  # dfsssp spreads over all lanes: 8 of them, by the sum of the LIDs
    path = a.ctx.path(b.ctx.hca.lid)
    assert path.sl == there
    for one, other in ((a, b), (b, a)):
        one.qp.connect(other.qp.endpoint(), timeout=20)
    assert a.qp.query()[0].ah_attr.sl == there
    a.do(IBV_WR_RDMA_WRITE, b, 5000)
    out = [name for name in path.links if lab.topology.nodes[name.split("->")[0]].kind != "gpu"]
    cables = {link.name for link in lab.topology.links if link.kind == "cable"}
    assert lanes(lab) == {name: {there: 5000} for name in out if name in cables}
    a.do(IBV_WR_RDMA_READ, b, 3000)  # the response comes on the lane that the responder's address names
    home = b.ctx.path(a.ctx.hca.lid).links
    assert {name: by for name, by in lanes(lab).items() if name in home} == {
        name: {back: 3000} for name in home if name in cables
    }


def test_an_address_without_the_service_level_goes_on_lane_0(lab: LocalLab, sides: tuple[Side, Side]) -> None:
    """As on hardware: a program that fills in addresses by hand and no SL forgoes what dfsssp computed. Levels beyond
    the lanes there are begin again at lane 0."""
    a, b = sides
    for sl, lane in ((0, 0), (11, 3)):
        one, other = a.queue_pair(QpType.IBV_QPT_RC), b.queue_pair(QpType.IBV_QPT_RC)
        a.qp, b.qp = one, other
        for near, far in ((a, b), (b, a)):
            remote = far.qp.endpoint()
            attr = QPAttr(
                qp_access_flags=7, path_mtu=5, dest_qp_num=remote["qpn"], rq_psn=remote["psn"],
                sq_psn=near.qp.endpoint()["psn"], timeout=20, ah_attr=AHAttr(far.ctx.hca.lid, sl=sl),
            )  # fmt: skip
            near.qp.to_rts(attr)
        lab.report(reset=True)
        a.do(IBV_WR_RDMA_WRITE, b, 5000)
        assert lane_of_sl(sl) == lane
        assert set(map(tuple, (by.items() for by in lanes(lab).values()))) == {((lane, 5000),)}


def test_a_datagram_takes_the_lane_of_its_address(lab: LocalLab, sides: tuple[Side, Side]) -> None:
    a, b = sides
    mine, theirs = a.queue_pair(QpType.IBV_QPT_UD), b.queue_pair(QpType.IBV_QPT_UD)
    for qp in (mine, theirs):
        qp.to_rts(QPAttr(qkey=7))
    address = mine.address_of(b.qp.endpoint())
    assert address.sl == a.ctx.path(b.ctx.hca.lid).sl > 0
    for sl in (address.sl, 0):
        theirs.post_recv(RecvWR(1, [SGE(b.mr.buf, 4096, b.mr.lkey)]))
        address.sl = sl
        send = SendWR(2, IBV_WR_SEND, [SGE(a.mr.buf, 100, a.mr.lkey)], send_flags=IBV_SEND_SIGNALED)
        send.set_wr_ud(AH(a.pd, attr=address), theirs.qp_num, 7)
        mine.post_send(send)
        assert a.cq.wait(1, 60)
        (got,) = b.cq.wait(1, 60)
        assert got.sl == sl
    first = f"{lab.topology.fabric_link(lab.topology.hca(0, 1)).name}"
    assert lanes(lab)[first] == {0: 100, a.ctx.path(b.ctx.hca.lid).sl: 100}


def test_a_lane_that_no_port_has_is_refused() -> None:
    state = SubnetState(SubnetManager(load_topology("fat-tree", 2)), "none", 1.0)
    state.join(NodeHello(CONTROL_VERSION, 0, "127.0.0.1", 1, "host", 1))
    with pytest.raises(RemoteProtocolError, match="counted bytes on lane 8: there are 8"):
        state.count(0, Counters([PairCounter(1, 10, 5, 1, 0, vl=8)], [], 0))
