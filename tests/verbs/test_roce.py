"""A fabric of Ethernet links: ports without LIDs, addresses that are GIDs, and a GRH in every address."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pairs import End, connect

from fauxrdma.errors import RemoteProtocolError, VerbsError
from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.ib.attributes import AHAttr, QPAttr
from fauxrdma.ib.enums import IBV_QP_AV, IBV_SEND_SIGNALED, IBV_WR_SEND, GidType, LinkLayer, QpType, WcFlags
from fauxrdma.ib.gids import multicast_lid_of_gid, short_gid
from fauxrdma.lab.local import LocalLab
from fauxrdma.runtime.subnet_state import SubnetState
from fauxrdma.topology.loading import load_topology
from fauxrdma.verbs import AH, GRH, QP, SGE, QPCap, QPInitAttr, RecvWR, SendWR
from fauxrdma.wire.fabric_messages import CONTROL_VERSION, GidsChanged, NodeHello
from fauxrdma.wire.grh import gid_text

ROOT = Path(__file__).parents[2]
FABRIC = str(ROOT / "examples" / "fabrics" / "roce-two-tier.yaml")
ETHERNET = LinkLayer.IBV_LINK_LAYER_ETHERNET


@pytest.fixture(scope="module")
def roce() -> Iterator[LocalLab]:
    with LocalLab(FABRIC, nodes=4, gpus=2, clock="none") as lab:
        yield lab


@pytest.fixture
def ends(roce: LocalLab) -> Iterator[tuple[End, End]]:
    a, b = End(roce, 0), End(roce, 3, "hca2")
    yield a, b
    a.close()
    b.close()


def gid_of(end: End, index: int = 3) -> str:
    return str(end.ctx.query_gid(1, index))


def attributes(end: End, peer: End, address: AHAttr) -> QPAttr:
    remote = peer.qp.endpoint()
    return QPAttr(
        qp_access_flags=7, path_mtu=5, dest_qp_num=remote["qpn"], rq_psn=remote["psn"],
        sq_psn=end.qp.endpoint()["psn"], ah_attr=address,
    )  # fmt: skip


def test_a_port_is_ethernet_has_no_lid_and_two_addresses_in_both_versions(ends: tuple[End, End]) -> None:
    a, b = ends
    port = a.ctx.query_port(1)
    assert (port.link_layer, port.lid, port.sm_lid) == (ETHERNET, 0, 0)
    entries = a.ctx.query_gid_table(16)
    assert [entry.gid_type for entry in entries] == [
        GidType.IBV_GID_TYPE_ROCE_V1, GidType.IBV_GID_TYPE_ROCE_V2
    ] * 2  # fmt: skip
    assert entries[0].gid == entries[1].gid
    assert entries[0].gid.startswith("fe80::")
    assert entries[2].gid == entries[3].gid == f"::ffff:10.64.0.{a.ctx.hca.lid}"
    assert {gid_of(a, i) for i in range(4)}.isdisjoint(gid_of(b, i) for i in range(4))


def test_rtr_without_a_grh_is_refused_with_the_reason(ends: tuple[End, End]) -> None:
    a, b = ends
    for address, words in (
        (AHAttr(b.ctx.hca.lid), "is_global is False, but the port's link layer is Ethernet"),
        (AHAttr(b.ctx.hca.lid, dgid=gid_of(b)), "set is_global, dgid to the peer's GID"),
        (AHAttr(is_global=True, dgid=gid_of(b), sgid_index=4), "sgid_index is 4, legal are 0 to 3"),
        (AHAttr(is_global=True), "dgid :: is not the address of a port"),
        (AHAttr(is_global=True, dgid="ff0e::1"), "dgid ff0e::1 is not the address of a port"),
    ):
        with pytest.raises(VerbsError, match="Failed to modify QP") as refused:
            a.qp.to_rtr(attributes(a, b, address))
        assert refused.value.errno == errno.EINVAL
        assert words in str(refused.value)
    for stranger in ("::ffff:10.64.200.1", "::ffff:192.168.0.1", "fe80::1"):
        with pytest.raises(VerbsError) as refused:
            a.qp.to_rtr(attributes(a, b, AHAttr(is_global=True, dgid=stranger)))
        assert refused.value.errno == errno.ENETUNREACH


@pytest.mark.parametrize("index", range(4))
def test_connected_with_a_grh_a_write_arrives(ends: tuple[End, End], index: int) -> None:
    for one, other in (ends, ends[::-1]):
        address = AHAttr(is_global=True, dgid=gid_of(other, index), sgid_index=index, hop_limit=64)
        one.qp.to_rts(attributes(one, other, address))
        seen = one.qp.query()[0].ah_attr
        assert (seen.dlid, seen.is_global, seen.sgid_index, seen.dgid) == (0, True, index, gid_of(other, index))
    a, b = ends
    a.mr.write(b"over Ethernet", 13)
    a.qp.post_send(a.write(b, 13))
    a.wait()
    assert bytes(b.mr.read(13, 0)) == b"over Ethernet"
    assert IBV_QP_AV  # the mask that carried the address


def test_connect_does_all_that_by_itself(ends: tuple[End, End]) -> None:
    a, b = ends
    connect(a, b)
    a.mr.write(b"by itself", 9)
    a.qp.post_send(a.write(b, 9))
    a.wait()
    assert bytes(b.mr.read(9, 0)) == b"by itself"


def datagram_qp(end: End) -> QP:
    cap = QPCap(max_send_wr=8, max_recv_wr=8, max_send_sge=1, max_recv_sge=1)
    qp = QP(end.pd, QPInitAttr(QpType.IBV_QPT_UD, scq=end.cq, rcq=end.cq, cap=cap))
    qp.to_rts(QPAttr(qkey=7))
    return qp


def test_datagrams_need_a_grh_bring_one_and_can_be_answered(ends: tuple[End, End]) -> None:
    a, b = ends
    mine, theirs = datagram_qp(a), datagram_qp(b)
    with pytest.raises(VerbsError, match="is_global is False") as refused:
        AH(a.pd, attr=AHAttr(b.ctx.hca.lid))
    assert refused.value.errno == errno.EINVAL
    theirs.post_recv(RecvWR(1, [b.sge(0, 128)]))
    mine.post_recv(RecvWR(2, [a.sge(0, 128)]))
    there = AH(a.pd, attr=AHAttr(is_global=True, dgid=gid_of(b), sgid_index=3))
    send = SendWR(3, IBV_WR_SEND, [SGE(a.mr.buf + 512, 5, a.mr.lkey)], send_flags=IBV_SEND_SIGNALED)
    send.set_wr_ud(there, theirs.qp_num, 7)
    a.mr.write(b"hello", 5, 512)
    mine.post_send(send)
    a.wait()
    (got,) = b.wait()
    assert got.wc_flags & WcFlags.IBV_WC_GRH
    assert got.slid == 0
    assert bytes(b.mr.read(5, 40)) == b"hello"
    grh = GRH.from_bytes(bytes(b.mr.read(40, 0)))
    back = SendWR(4, IBV_WR_SEND, [SGE(b.mr.buf + 40, 5, b.mr.lkey)], send_flags=IBV_SEND_SIGNALED)
    back.set_wr_ud(AH(b.pd, wc=got, grh=grh), mine.qp_num, 7)
    theirs.post_send(back)
    b.wait()
    a.wait()
    assert bytes(a.mr.read(5, 40)) == b"hello"


def test_multicast_goes_by_the_groups_gid(ends: tuple[End, End]) -> None:
    a, b = ends
    mine, theirs = datagram_qp(a), datagram_qp(b)
    theirs.attach_mcast("ff0e::4:2", 0)
    theirs.post_recv(RecvWR(1, [b.sge(0, 128)]))
    send = SendWR(2, IBV_WR_SEND, [a.sge(512, 4)], send_flags=IBV_SEND_SIGNALED)
    send.set_wr_ud(AH(a.pd, attr=AHAttr(is_global=True, dgid="ff0e::4:2", sgid_index=3)), 0xFFFFFF, 7)
    a.mr.write(b"all!", 4, 512)
    mine.post_send(send)
    a.wait()
    b.wait()
    assert bytes(b.mr.read(4, 40)) == b"all!"
    theirs.detach_mcast("ff0e::4:2", 0)


def test_multicast_addresses_have_lids_of_groups() -> None:
    assert 0xC000 <= multicast_lid_of_gid("ff0e::ffff:ffff") <= 0xFFFE


def test_a_collective_runs_over_it() -> None:
    script = ROOT / "examples" / "ring_allreduce_numpy.py"
    command = [
        sys.executable,
        "-m",
        "fauxrdma.cli.main",
        "run",
        FABRIC,
        "--nodes",
        "2",
        "--gpus",
        "2",
        "--clock",
        "none",
    ]
    done = subprocess.run([*command, "--", str(script)], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr


def added(end: End, *gids: str) -> list[str]:
    """Give a port these addresses besides its own; its table."""
    end.ctx.set_port(gids=list(gids))
    return [f"{entry.gid} {entry.gid_type.name[13:]}" for entry in end.ctx.query_gid_table(16)]


@pytest.mark.parametrize("gid", ["2001:db8::b", "::ffff:192.168.7.9"])
@pytest.mark.parametrize("version", [0, 1])
def test_an_added_address_is_found_by_every_peer(ends: tuple[End, End], gid: str, version: int) -> None:
    a, b = ends
    assert added(b, gid)[4:] == [f"{gid} ROCE_V1", f"{gid} ROCE_V2"]
    assert added(a, "2001:db8::a")[4:] == ["2001:db8::a ROCE_V1", "2001:db8::a ROCE_V2"]
    for one, other, to in ((a, b, gid), (b, a, "2001:db8::a")):
        one.qp.to_rts(attributes(one, other, AHAttr(is_global=True, dgid=to, sgid_index=4 + version, hop_limit=64)))
        assert one.qp.query()[0].ah_attr.dgid == to
    a.mr.write(gid.encode(), len(gid))
    a.qp.post_send(a.write(b, len(gid)))
    a.wait()
    assert bytes(b.mr.read(len(gid), 0)).decode() == gid


def test_a_datagram_from_an_added_address_can_be_answered(ends: tuple[End, End]) -> None:
    a, b = ends
    added(a, "2001:db8::a")
    mine, theirs = datagram_qp(a), datagram_qp(b)
    theirs.post_recv(RecvWR(1, [b.sge(0, 128)]))
    mine.post_recv(RecvWR(2, [a.sge(0, 128)]))
    send = SendWR(3, IBV_WR_SEND, [a.sge(512, 5)], send_flags=IBV_SEND_SIGNALED)
    send.set_wr_ud(AH(a.pd, attr=AHAttr(is_global=True, dgid=gid_of(b), sgid_index=5)), theirs.qp_num, 7)
    mine.post_send(send)
    a.wait()
    (got,) = b.wait()
    grh = GRH.from_bytes(bytes(b.mr.read(40, 0)))
    assert short_gid(gid_text(grh.sgid)) == "2001:db8::a"
    back = SendWR(4, IBV_WR_SEND, [b.sge(40, 5)], send_flags=IBV_SEND_SIGNALED)
    back.set_wr_ud(AH(b.pd, wc=got, grh=grh), mine.qp_num, 7)
    theirs.post_send(back)
    b.wait()
    a.wait()


def test_a_taken_address_is_refused_and_one_given_up_is_free(ends: tuple[End, End]) -> None:
    a, b = ends
    before = added(a)
    added(b, "2001:db8::1")
    for taken in ("2001:db8::1", gid_of(b)):
        with pytest.raises(VerbsError, match="another port has that address") as refused:
            added(a, "2001:db8::2", taken)
        assert refused.value.errno == errno.EADDRINUSE
        assert [f"{entry.gid} {entry.gid_type.name[13:]}" for entry in a.ctx.query_gid_table(16)] == before
    nobody = AHAttr(is_global=True, dgid="2001:db8::2", sgid_index=3)
    with pytest.raises(VerbsError, match="no port that can be reached has the GID 2001:db8::2"):
        a.qp.to_rtr(attributes(a, b, nobody))
    added(b)
    assert len(added(a, "2001:db8::1")) == len(before) + 2


def test_addresses_end_with_their_daemon_and_are_checked() -> None:
    state = SubnetState(SubnetManager(load_topology("fat-tree,transport=rocev2", 2)), "none", 1.0)
    node1 = state.hcas(1)[0]
    assert state.neighbours.set_added(node1.lid, ["2001:db8::1", node1.gid]) in ("", node1.gid)
    assert state.neighbours.find("2001:DB8:0::1") == (node1.lid, 0)
    assert state.neighbours.find("no address") == (0, 0)
    state.join(NodeHello(CONTROL_VERSION, 1, "127.0.0.1", 1, "host", 1))
    with pytest.raises(RemoteProtocolError, match="may only speak for its own"):
        state.gids_changed(0, GidsChanged(node1.lid, [], 1))
    with pytest.raises(RemoteProtocolError, match="what is no address"):
        state.gids_changed(1, GidsChanged(node1.lid, ["x"], 1))
    state.leave(1, 0)
    assert state.neighbours.find("2001:db8::1") == (0, 0)
