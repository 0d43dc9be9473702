"""HCA profiles: limits that hold, and the habits in which adapters differ."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pairs import End

from fauxrdma.errors import ConfigError, VerbsError
from fauxrdma.hca.work_queue import SendWqe
from fauxrdma.ib.attributes import QPAttr
from fauxrdma.ib.enums import (
    IBV_WR_ATOMIC_FETCH_AND_ADD,
    IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE,
    AsyncEventType,
    QpAttrMask,
    QpState,
    WcStatus,
)
from fauxrdma.ib.profiles import PROFILES, parse_profile
from fauxrdma.lab.local import LocalLab
from fauxrdma.sim.world import World
from fauxrdma.verbs import CQ, MR, PD, QP, SGE, SRQ, Context, QPCap, QPInitAttr, RecvWR, SendWR, SrqAttr, SrqInitAttr

SMALL = (
    "cx6-hdr,max_qp=4,max_mr=3,max_cq=5,max_cqe=64,max_qp_wr=8,max_sge=2,max_sge_rd=1,max_inline_data=32,max_pd=3,"
    "max_srq=1,max_srq_wr=6,max_srq_sge=2,max_qp_rd_atom=2,max_qp_init_rd_atom=1,max_mr_size=65536,"
    "memlock_bytes=100000,num_comp_vectors=2"
)


@pytest.fixture(scope="module")
def small() -> Iterator[LocalLab]:
    """Two nodes of HCAs with hardly any room."""
    with LocalLab("seed-rail8", nodes=2, gpus=2, clock="none", profile=SMALL) as lab:
        yield lab


_devices = itertools.cycle(itertools.product((0, 1), range(1, 10)))


@pytest.fixture
def ctx(small: LocalLab) -> Iterator[Context]:
    # Each test has a device of its own: what a program held is released a moment after it has gone.
    node, hca = next(_devices)
    with Context(f"hca{hca}", str(small.socket_path(node))) as ctx:
        yield ctx


def refused(code: int, words: str, call: Callable[[], Any]) -> None:
    with pytest.raises(VerbsError, match=words) as caught:
        call()
    assert caught.value.errno == code


# ---- every limit -----------------------------------------------------------------------------------------------------


def test_the_limits_are_reported(ctx: Context) -> None:
    attr = ctx.query_device()
    assert (attr.max_qp, attr.max_mr, attr.max_cq, attr.max_cqe, attr.max_qp_wr) == (4, 3, 5, 64, 8)
    assert (attr.vendor_id, attr.vendor_part_id) == (0x02C9, 4123)
    assert ctx.num_comp_vectors == 2


def test_max_pd_is_of_the_device_not_of_one_program(ctx: Context, small: LocalLab) -> None:
    with Context(ctx.name, str(small.socket_path(ctx.node))) as other:
        pds = [PD(ctx), PD(ctx), PD(other)]
        refused(errno.ENOMEM, "max_pd = 3", lambda: PD(ctx))
        pds[0].close()
        pds[2].close()
        PD(ctx)
        PD(ctx)
        refused(errno.ENOMEM, "max_pd = 3", lambda: PD(ctx))


def test_max_mr_and_max_mr_size(ctx: Context) -> None:
    pd = PD(ctx)
    mrs = [MR(pd, 64, 1) for _ in range(3)]
    refused(errno.ENOMEM, "max_mr = 3", lambda: MR(pd, 64, 1))
    mrs[0].close()
    refused(errno.EINVAL, "max_mr_size", lambda: MR(pd, 65537, 1))
    MR(pd, 64, 1)


def test_memlock(ctx: Context) -> None:
    pd = PD(ctx)
    first = MR(pd, 60000, 1)
    refused(errno.ENOMEM, "memlock_bytes 100000", lambda: MR(pd, 40001, 1))
    second = MR(pd, 40000, 1)
    first.close()
    second.close()
    MR(pd, 65536, 1)


def test_max_cq_and_max_cqe(ctx: Context) -> None:
    refused(errno.EINVAL, "legal are 1 to 64", lambda: CQ(ctx, 65))
    cqs = [CQ(ctx, 64) for _ in range(5)]
    refused(errno.ENOMEM, "max_cq = 5", lambda: CQ(ctx, 1))
    refused(errno.EINVAL, "legal are 1 to 64", lambda: cqs[0].resize(65))
    refused(errno.EINVAL, "comp_vector is 2, legal are 0 to 1", lambda: CQ(ctx, 1, None, None, 2))


def test_max_qp(ctx: Context) -> None:
    pd, cq = PD(ctx), CQ(ctx, 8)
    qps = [QP(pd, QPInitAttr(scq=cq, rcq=cq, cap=QPCap(1, 1))) for _ in range(4)]
    refused(errno.ENOMEM, "max_qp = 4", lambda: QP(pd, QPInitAttr(scq=cq, rcq=cq, cap=QPCap(1, 1))))
    qps[0].close()
    QP(pd, QPInitAttr(scq=cq, rcq=cq, cap=QPCap(1, 1)))


@pytest.mark.parametrize(
    ("cap", "words"),
    [
        (QPCap(max_send_wr=9), "max_send_wr is 9, this device takes 0 to 8"),
        (QPCap(max_recv_wr=9), "max_recv_wr is 9"),
        (QPCap(max_recv_wr=1, max_send_sge=3), "max_send_sge is 3, this device takes 0 to 2"),
        (QPCap(max_recv_wr=1, max_recv_sge=3), "max_recv_sge is 3"),
        (QPCap(max_recv_wr=1, max_inline_data=33), "max_inline_data is 33, this device takes 0 to 32"),
    ],
)
def test_capacities_of_a_queue_pair(ctx: Context, cap: QPCap, words: str) -> None:
    pd, cq = PD(ctx), CQ(ctx, 8)
    refused(errno.EINVAL, words, lambda: QP(pd, QPInitAttr(scq=cq, rcq=cq, cap=cap)))


def test_shared_receive_queues(ctx: Context) -> None:
    pd = PD(ctx)
    refused(errno.EINVAL, "max_wr is 7", lambda: SRQ(pd, SrqInitAttr(SrqAttr(7))))
    refused(errno.EINVAL, "max_sge is 3", lambda: SRQ(pd, SrqInitAttr(SrqAttr(6, 3))))
    srq = SRQ(pd, SrqInitAttr(SrqAttr(6, 2)))
    refused(errno.ENOMEM, "max_srq = 1", lambda: SRQ(pd, SrqInitAttr(SrqAttr(1))))
    srq.close()
    SRQ(pd, SrqInitAttr(SrqAttr(1)))


def test_reads_and_atomics_at_a_time(ctx: Context) -> None:
    pd, cq = PD(ctx), CQ(ctx, 8)
    cap = QPCap(4, 4, 2, 2)
    qp = QP(pd, QPInitAttr(scq=cq, rcq=cq, cap=cap))
    remote = qp.endpoint()
    refused(errno.EINVAL, "max_dest_rd_atomic is 3, legal are 0 to 2", lambda: qp.connect(remote, max_rd_atomic=3))
    other = QP(pd, QPInitAttr(scq=cq, rcq=cq, cap=cap))
    refused(errno.EINVAL, "max_rd_atomic is 2, legal are 0 to 1", lambda: other.connect(remote, max_rd_atomic=2))
    last = QP(pd, QPInitAttr(scq=cq, rcq=cq, cap=cap))
    last.connect(remote)  # takes what the device has
    assert last.query()[0].max_rd_atomic == 1
    read = SendWR(1, IBV_WR_RDMA_READ, [SGE(0, 8, 0), SGE(8, 8, 0)], remote_addr=0, rkey=0)
    refused(errno.EINVAL, "into 2 SGEs, this device has max_sge_rd 1", lambda: last.post_send(read))


def test_reported_capacities_really_hold(ctx: Context) -> None:
    pd, cq = PD(ctx), CQ(ctx, 64)
    qp = QP(pd, QPInitAttr(scq=cq, rcq=cq, cap=QPCap(8, 5, 2, 2, 32)))
    qp.connect(qp.endpoint())
    cap = qp.query()[1].cap
    assert (cap.max_send_wr, cap.max_recv_wr, cap.max_inline_data) == (8, 5, 32)
    qp.post_recv(*[RecvWR(i) for i in range(cap.max_recv_wr)])
    refused(errno.ENOMEM, "all 5 receives", lambda: qp.post_recv(RecvWR(9)))
    mr = MR(pd, 64, 7)
    write = SendWR(1, IBV_WR_RDMA_WRITE, [SGE(mr.buf, 33, 0)], send_flags=8 | 2, remote_addr=mr.buf, rkey=mr.rkey)
    refused(errno.ENOMEM, "33 B inline, this QP has max_inline_data 32", lambda: qp.post_send(write))


def test_the_errno_of_too_much_inline_data_is_the_profiles(pair: tuple[End, End]) -> None:
    a, b = pair
    refused(errno.EINVAL, "129 B inline", lambda: a.qp.post_send(a.write(b, 129, send_flags=8)))


# ---- habits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROFILES)
def test_an_operation_the_queue_pair_does_not_allow(name: str) -> None:
    profile = parse_profile(name)
    world = World(profile=profile)
    a, b = world.pair(qp_access_flags=1)
    region, _ = b.hca.alloc(64)
    a.post_send(SendWqe(0, 1, int(IBV_WR_RDMA_WRITE), 2 | 8, (), region.base, region.rkey, 0, b"x"))
    world.run()
    expected = WcStatus.IBV_WC_REM_ACCESS_ERR if name == "ibta" else WcStatus.IBV_WC_REM_INV_REQ_ERR
    assert [wc.status for wc in a.completions] == [expected]
    kinds = [event.kind for event in b.hca.async_events]
    assert kinds == [AsyncEventType.IBV_EVENT_QP_ACCESS_ERR if name == "ibta" else AsyncEventType.IBV_EVENT_QP_REQ_ERR]


@pytest.mark.parametrize("name", PROFILES)
def test_a_bad_key_is_an_access_error_with_every_profile(name: str) -> None:
    world = World(profile=parse_profile(name))
    a, b = world.pair()
    region, _ = b.hca.alloc(64)
    a.post_send(SendWqe(0, 1, int(IBV_WR_RDMA_WRITE), 2 | 8, (), region.base, region.rkey ^ 1, 0, b"x"))
    world.run()
    assert [wc.status for wc in a.completions] == [WcStatus.IBV_WC_REM_ACCESS_ERR]


@pytest.mark.parametrize("name", PROFILES)
def test_the_byte_order_of_an_atomics_reply(name: str) -> None:
    world = World(profile=parse_profile(name))
    a, b = world.pair(qp_access_flags=15)
    mine, my_bytes = a.hca.alloc(8)
    his, his_bytes = b.hca.alloc(8, 15)
    his_bytes[:] = (0x0102030405060708).to_bytes(8, "little")
    a.post_send(
        SendWqe(
            0, 1, int(IBV_WR_ATOMIC_FETCH_AND_ADD), 2, ((mine.base, 8, mine.lkey),), his.base, his.rkey, compare_add=1
        )
    )
    world.run()
    assert [wc.status for wc in a.completions] == [WcStatus.IBV_WC_SUCCESS]
    assert int.from_bytes(my_bytes, "big" if name == "cx4-edr" else "little") == 0x0102030405060708
    assert int.from_bytes(his_bytes, "little") == 0x0102030405060709


@pytest.mark.parametrize("name", PROFILES)
def test_the_last_receive_of_a_shared_queue_is_told_or_not(name: str) -> None:
    world = World(profile=parse_profile(name))
    srq = world.hcas[1].create_srq()
    a, b = world.hcas[0].create_qp(), world.hcas[1].create_qp(srq=srq.srq)
    world.connect(a, b)
    attr = QPAttr(qp_state=QpState.IBV_QPS_ERR)
    world.perform(b.hca, b.hca.engine.modify_qp(b.qp.qpn, attr, QpAttrMask.IBV_QP_STATE, world.now))
    told = [event.kind for event in b.hca.async_events]
    assert told == ([] if name == "rxe-like" else [AsyncEventType.IBV_EVENT_QP_LAST_WQE_REACHED])


def test_the_habits_of_a_daemons_profile(ctx: Context) -> None:
    pd, cq = PD(ctx), CQ(ctx, 8)
    mr = MR(pd, 64, 7)
    a, b = (QP(pd, QPInitAttr(scq=cq, rcq=cq, cap=QPCap(4, 4))) for _ in range(2))
    a.connect(b.endpoint(), access=1)
    b.connect(a.endpoint(), access=1)
    a.post_send(SendWR(1, IBV_WR_RDMA_WRITE, [SGE(mr.buf, 8, mr.lkey)], remote_addr=mr.buf, rkey=mr.rkey))
    while not (got := cq.poll(1)[1]):
        pass
    assert got[0].status == WcStatus.IBV_WC_REM_INV_REQ_ERR


# ---- descriptions ----------------------------------------------------------------------------------------------------


def test_a_profile_can_be_changed_field_by_field() -> None:
    profile = parse_profile("rxe-like, max_qp = 0x10, last_wqe_event=yes, inline_errno=ENOMEM, fw_ver=9.9")
    assert profile.attributes.max_qp == 16
    assert profile.attributes.max_sge == 32
    assert profile.attributes.fw_ver == "9.9"
    assert profile.last_wqe_event is True
    assert profile.inline_errno == errno.ENOMEM
    assert parse_profile(profile.spec) == profile


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("cx9", "there is no HCA profile 'cx9': choose ibta, cx4-edr"),
        ("ibta,max_qp", "'max_qp' is not FIELD=VALUE"),
        ("ibta,max_qps=3", "'max_qps=3' is not FIELD=VALUE"),
        ("ibta,max_qp=many", "max_qp cannot be 'many'"),
        ("ibta,last_wqe_event=perhaps", "last_wqe_event cannot be 'perhaps'"),
        ("ibta,inline_errno=EIO", "inline_errno cannot be 'EIO'"),
    ],
)
def test_a_bad_description_says_what_is_wrong(spec: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_profile(spec)
    with pytest.raises(ConfigError, match=words):
        LocalLab("seed-rail8", nodes=1, gpus=1, profile=spec)


def test_every_profile_is_consistent() -> None:
    for name, profile in PROFILES.items():
        assert profile.spec == name
        attr = profile.device_attributes(5)
        assert (attr.node_guid, attr.sys_image_guid) == (5, 5)
        assert attr.max_srq_wr <= attr.max_qp_wr or name == "rxe-like"
        assert attr.max_sge_rd <= attr.max_sge
