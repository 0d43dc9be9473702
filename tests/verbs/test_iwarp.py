"""A fabric of iWARP adapters: reliable connections only, no atomics, one GID that is the MAC address."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator

import pytest
from pairs import End, connect

from fauxrdma.cli.device_fields import device_fields, port_fields
from fauxrdma.errors import VerbsError
from fauxrdma.ib.attributes import AHAttr
from fauxrdma.ib.enums import (
    IBV_SEND_SIGNALED,
    IBV_WC_SUCCESS,
    IBV_WR_ATOMIC_CMP_AND_SWP,
    IBV_WR_ATOMIC_FETCH_AND_ADD,
    IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE_WITH_IMM,
    IBV_WR_SEND,
    IBV_WR_SEND_WITH_IMM,
    AtomicCap,
    GidType,
    LinkLayer,
    QpType,
    WcOpcode,
)
from fauxrdma.lab.local import LocalLab
from fauxrdma.verbs import AH, QP, QPCap, QPInitAttr, RecvWR, SendWR


@pytest.fixture(scope="module")
def lab() -> Iterator[LocalLab]:
    """Two leaves, a subnet each."""
    with LocalLab("seed-rail8,transport=iwarp,routed=spine", nodes=2, gpus=2, clock="none") as running:
        yield running


@pytest.fixture
def ends(lab: LocalLab) -> Iterator[tuple[End, End]]:
    a, b = End(lab, 0), End(lab, 1, "hca2")
    yield a, b
    a.close()
    b.close()


def refused(code: int, call: Callable[[], object], words: str) -> None:
    with pytest.raises(VerbsError, match=words) as caught:
        call()
    assert caught.value.errno == code


def test_the_device_says_what_it_is(ends: tuple[End, End]) -> None:
    a, b = ends
    device, port = a.ctx.query_device(), a.ctx.query_port()
    assert device.atomic_caps == AtomicCap.IBV_ATOMIC_NONE
    assert (device.max_ah, device.max_mcast_grp, device.max_sge_rd) == (0, 0, 1)
    assert (port.link_layer, port.lid, port.sm_lid) == (LinkLayer.IBV_LINK_LAYER_ETHERNET, 0, 0)
    (entry,) = a.ctx.query_gid_table()
    assert entry.gid_type == GidType.IBV_GID_TYPE_IB
    assert entry.gid.endswith("::")  # six bytes of MAC address, then zeros
    assert entry.gid != b.ctx.query_gid_table()[0].gid
    assert dict(device_fields(a.ctx, verbose=True))["transport"] == "iWARP (1)"
    assert dict(device_fields(a.ctx, verbose=True))["atomic_cap"] == "ATOMIC_NONE (0)"
    assert dict(port_fields(a.ctx, verbose=True))["link_layer"] == "Ethernet"


@pytest.mark.parametrize("qp_type", [QpType.IBV_QPT_UD, QpType.IBV_QPT_UC])
def test_only_reliable_connections_can_be_made(ends: tuple[End, End], qp_type: QpType) -> None:
    a, _ = ends
    init = QPInitAttr(qp_type, scq=a.cq, rcq=a.cq, cap=QPCap())
    refused(errno.EOPNOTSUPP, lambda: QP(a.pd, init), rf"reliable connections \(RC\) only, no {qp_type.name}")


def test_there_are_no_address_handles_and_no_multicast(ends: tuple[End, End]) -> None:
    a, b = ends
    to = AHAttr(is_global=True, dgid=b.ctx.query_gid(1, 0))
    refused(errno.EOPNOTSUPP, lambda: AH(a.pd, attr=to), "no address handles")
    refused(errno.EOPNOTSUPP, lambda: a.qp.attach_mcast("ff0e::1", 0), "no multicast")
    refused(errno.EOPNOTSUPP, lambda: a.ctx.set_port(gids=["2001:db8::1"]), "has one entry, the MAC")


@pytest.mark.parametrize("opcode", [IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_SEND_WITH_IMM])
def test_what_no_rnic_posts_is_einval_and_the_queue_pair_goes_on(ends: tuple[End, End], opcode: int) -> None:
    a, b = ends
    connect(a, b)
    wr = SendWR(1, opcode, [a.sge(0, 8)], remote_addr=b.mr.buf, rkey=b.mr.rkey, send_flags=IBV_SEND_SIGNALED)
    refused(errno.EINVAL, lambda: a.qp.post_send(wr), "is not an operation of IBV_QPT_RC queue pairs on iWARP")
    a.qp.post_send(a.write(b, 8))
    assert a.wait()[0].status == IBV_WC_SUCCESS


def test_a_read_has_one_place_to_land_in(ends: tuple[End, End]) -> None:
    a, b = ends
    connect(a, b)
    two = SendWR(1, IBV_WR_RDMA_READ, [a.sge(0, 8), a.sge(64, 8)], remote_addr=b.mr.buf, rkey=b.mr.rkey)
    refused(errno.EINVAL, lambda: a.qp.post_send(two), "max_sge_rd 1")


def test_writes_reads_and_sends_cross_the_routers(ends: tuple[End, End]) -> None:
    """hca1 and hca2 are on different leaves, so in different subnets; TCP does not mind."""
    a, b = ends
    connect(a, b)
    assert any("spine" in link for link in a.ctx.path(b.ctx.hca.lid).links)
    a.mr.write(b"over TCP", 8)
    a.qp.post_send(a.write(b, 8))
    a.wait()
    assert bytes(b.mr.read(8, 0)) == b"over TCP"
    back = SendWR(2, IBV_WR_RDMA_READ, [a.sge(128, 8)], remote_addr=b.mr.buf, rkey=b.mr.rkey, send_flags=2)
    a.qp.post_send(back)
    a.wait()
    assert bytes(a.mr.read(8, 128)) == b"over TCP"
    b.qp.post_recv(RecvWR(3, [b.sge(256, 64)]), RecvWR(4, []))
    a.qp.post_send(SendWR(5, IBV_WR_SEND, [a.sge(0, 8)]))
    noticed = a.write(b, 8, imm_data=7)
    noticed.opcode = IBV_WR_RDMA_WRITE_WITH_IMM
    a.qp.post_send(noticed)
    first, second = b.wait(2)
    assert (first.wr_id, first.byte_len) == (3, 8)
    assert second.opcode == WcOpcode.IBV_WC_RECV_RDMA_WITH_IMM
