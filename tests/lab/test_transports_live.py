"""Every transport over two real daemons: rates, latencies, and what crosses from one IP subnet into another."""

from __future__ import annotations

import errno
import math
from collections.abc import Iterator

import pytest

from fauxrdma.errors import VerbsError
from fauxrdma.fabric.transport import TRANSPORTS
from fauxrdma.ib.attributes import AHAttr, QPAttr
from fauxrdma.ib.enums import (
    IBV_SEND_SIGNALED,
    IBV_WC_RETRY_EXC_ERR,
    IBV_WC_SUCCESS,
    IBV_WR_RDMA_WRITE,
    GidType,
    LinkLayer,
)
from fauxrdma.lab.local import LocalLab
from fauxrdma.verbs import CQ, MR, PD, QP, SGE, WC, CompChannel, Context, QPCap, QPInitAttr, SendWR

LENGTH = 8 << 20


class Side:
    """A device with a region and a queue pair."""

    def __init__(self, lab: LocalLab, node: int, hca: str) -> None:
        self.ctx = Context(hca, str(lab.socket_path(node)))
        self.pd = PD(self.ctx)
        self.cq = CQ(self.ctx, 64, None, CompChannel(self.ctx))
        self.mr = MR(self.pd, LENGTH, 7, gpu=self.ctx.hca.gpus[0])
        self.qp = QP(self.pd, QPInitAttr(scq=self.cq, rcq=self.cq, cap=QPCap(max_send_wr=16)))

    def write(self, to: Side, nbytes: int) -> None:
        sge = [SGE(self.mr.buf, nbytes, self.mr.lkey)]
        self.qp.post_send(SendWR(1, IBV_WR_RDMA_WRITE, sge, 0, IBV_SEND_SIGNALED, to.mr.buf, to.mr.rkey))

    def wait(self) -> WC:
        wcs = self.cq.wait(1, 60)
        assert wcs, "no completion in a minute"
        return wcs[0]

    def attributes(self, peer: Side, gid: str, index: int) -> QPAttr:
        """What brings the queue pair to RTS towards a peer by one of its addresses."""
        remote = peer.qp.endpoint()
        return QPAttr(
            qp_access_flags=7, path_mtu=5, dest_qp_num=remote["qpn"], rq_psn=remote["psn"],
            sq_psn=self.qp.endpoint()["psn"], timeout=17, retry_cnt=1,
            ah_attr=AHAttr(is_global=True, dgid=gid, sgid_index=index, hop_limit=64),
        )  # fmt: skip


def sides(lab: LocalLab, near: str, far: str) -> tuple[Side, Side]:
    return Side(lab, 0, near), Side(lab, 1, far)


@pytest.mark.parametrize("transport", list(TRANSPORTS))
def test_a_message_takes_what_the_transport_makes_of_the_line_rate(transport: str) -> None:
    """seed-two-switch, n0.hca1 to n1.hca2: 200 Gb/s, cables of 3, 5 and 3 m, two switches. Whatever the host does, a
    message is never faster than the model."""
    profile = TRANSPORTS[transport]
    with LocalLab(f"seed-two-switch,transport={transport}", nodes=2, gpus=2, clock="paced", dilation=1000) as lab:
        a, b = sides(lab, "hca1", "hca2")
        for one, other in ((a, b), (b, a)):
            one.qp.connect(other.qp.endpoint(), timeout=20)
        path = a.ctx.path(b.ctx.hca.lid)
        store_ns = math.ceil((4096 + profile.packet_overhead) * 8 / 200) if profile.ethernet else 0
        assert path.latency_ns == 2 * profile.tx_ns + 2 * (profile.switch_latency_ns + store_ns) + 5 * 11
        assert path.rate_bps == 200_000_000_000 * 4096 // (4096 + profile.packet_overhead)
        begun = a.ctx.fabric_now_ns()
        a.write(b, LENGTH)
        assert a.wait().status == IBV_WC_SUCCESS
        took = a.ctx.fabric_now_ns() - begun
        assert took >= path.latency_ns + LENGTH * 8 * 1e9 / path.rate_bps
        a.ctx.close()
        b.ctx.close()


@pytest.mark.parametrize(
    ("transport", "kinds"),
    [
        ("rocev1", [GidType.IBV_GID_TYPE_ROCE_V1] * 2),
        ("rocev2", [GidType.IBV_GID_TYPE_ROCE_V1, GidType.IBV_GID_TYPE_ROCE_V2] * 2),
    ],
)
def test_between_subnets(transport: str, kinds: list[GidType]) -> None:
    """seed-rail8 with routing spines: hca1 is in subnet 0 of leaf1, hca2 in subnet 1 of leaf2."""
    with LocalLab(f"seed-rail8,transport={transport},routed=spine", nodes=2, gpus=2, clock="none") as lab:
        a = Side(lab, 0, "hca1")
        assert a.ctx.query_port().link_layer == LinkLayer.IBV_LINK_LAYER_ETHERNET
        assert [entry.gid_type for entry in a.ctx.query_gid_table(16)] == kinds
        last = len(kinds) - 1
        for index in range(last + 1):  # within the subnet every address will do
            one, other = sides(lab, "hca1", "hca1")
            one.qp.to_rts(one.attributes(other, other.ctx.query_gid(1, index), index))
            other.qp.to_rts(other.attributes(one, one.ctx.query_gid(1, index), index))
            one.write(other, 64)
            assert one.wait().status == IBV_WC_SUCCESS
        across = Side(lab, 1, "hca2")
        assert a.ctx.query_gid(1, last).startswith("::ffff:10.64.")
        assert across.ctx.query_gid(1, last).startswith("::ffff:10.65.")
        if transport == "rocev2":
            for index, words in (
                (0, "whose frames no router forwards"),
                (1, "link-local addresses end"),
                (2, "RoCE v1"),
            ):
                with pytest.raises(VerbsError, match=words) as refused:
                    a.qp.to_rtr(a.attributes(across, across.ctx.query_gid(1, index), index))
                assert refused.value.errno == errno.ENETUNREACH
        a.qp.to_rts(a.attributes(across, across.ctx.query_gid(1, last), last))
        across.qp.to_rts(across.attributes(a, a.ctx.query_gid(1, last), last))
        lab.report(reset=True)
        a.write(across, 64)
        assert a.wait().status == (IBV_WC_SUCCESS if transport == "rocev2" else IBV_WC_RETRY_EXC_ERR)
        carried = {link.name for link in lab.report().links if link.nbytes}
        assert any(name.startswith("leaf1->spine") for name in carried)  # up to the router it gets
        assert any(name.startswith("spine") for name in carried) == (transport == "rocev2")


@pytest.fixture(scope="module")
def pods() -> Iterator[LocalLab]:
    """k-ary of four-port switches: two hosts of one HCA on each leaf, two leaves in each pod; cores route."""
    with LocalLab("k-ary,k=4,gpus=1,storage_hcas=0,transport=rocev1,routed=core", nodes=5, gpus=1, clock="none") as lab:
        yield lab


@pytest.mark.parametrize(("node", "status"), [(1, IBV_WC_SUCCESS), (3, IBV_WC_SUCCESS), (4, IBV_WC_RETRY_EXC_ERR)])
def test_rocev1_gets_to_every_leaf_of_its_pod_and_no_further(pods: LocalLab, node: int, status: int) -> None:
    a, b = Side(pods, 0, "hca1"), Side(pods, node, "hca1")
    for one, other in ((a, b), (b, a)):
        one.qp.connect(other.qp.endpoint(), timeout=17, retry_cnt=1)
    a.write(b, 64)
    assert a.wait().status == status
    a.ctx.close()
    b.ctx.close()
