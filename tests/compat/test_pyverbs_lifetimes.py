"""Order of closing, closing twice, what nobody holds any more, and what a refusal says."""

from __future__ import annotations

import errno
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyverbs import enums as e
from pyverbs.addr import AH, AHAttr, GlobalRoute
from pyverbs.cq import CQ, CQEX, CompChannel, CqInitAttrEx
from pyverbs.device import DM, AllocDmAttr, Context
from pyverbs.mr import DMMR, MR, MW, MWBind, MWBindInfo
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError, PyverbsUserError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr, QPInitAttrEx
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR
from pyverbs_world import ACCESS, World

from fauxrdma.lab.local import LocalLab


@pytest.fixture
def ctx(lab: LocalLab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Context]:
    monkeypatch.setenv("FAUXRDMA_SOCKET", str(lab.socket_path(0)))
    with Context(name="hca3") as opened:
        yield opened


def everything(ctx: Context) -> dict[str, Any]:
    pd = PD(ctx)
    channel = CompChannel(ctx)
    cq = CQ(ctx, 16, None, channel, 0)
    cqex = CQEX(ctx, CqInitAttrEx(cqe=16))
    srq = SRQ(pd, SrqInitAttr(SrqAttr(max_wr=4)))
    qp = QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cqex, srq=srq))
    mr = MR(pd, 4096, ACCESS)
    dm = DM(ctx, AllocDmAttr(64))
    dmmr = DMMR(pd, 64, ACCESS, dm, 0)
    mw = MW(pd, e.IBV_MW_TYPE_2)
    ah = AH(pd, attr=AHAttr(dlid=ctx.query_port(1).lid))
    return {
        "pd": pd, "channel": channel, "cq": cq, "cqex": cqex, "srq": srq, "qp": qp, "mr": mr, "dm": dm, "dmmr": dmmr,
        "mw": mw, "ah": ah,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("closed", "with_it"),
    [
        ("pd", {"srq", "qp", "mr", "dmmr", "mw", "ah"}),
        ("channel", {"cq", "qp"}),
        ("cq", {"qp"}),
        ("cqex", {"qp"}),
        ("srq", {"qp"}),
        ("dm", {"dmmr"}),
        ("qp", set()),
        ("mr", set()),
    ],
)
def test_a_parent_closes_what_lives_in_it(ctx: Context, closed: str, with_it: set[str]) -> None:
    things = everything(ctx)
    things[closed].close()
    assert {name for name, thing in things.items() if thing._closed} == {closed, *with_it}
    for _ in range(2):
        for thing in things.values():
            thing.close()


def test_closing_the_context_closes_all_of_it(ctx: Context) -> None:
    things = everything(ctx)
    ctx.close()
    assert all(thing._closed for thing in things.values())
    for thing in (*things.values(), ctx):
        thing.close()


def test_what_nobody_holds_is_closed(ctx: Context) -> None:
    limit = ctx.query_device().max_dm_size
    for _ in range(3):
        DM(ctx, AllocDmAttr(limit))  # all there is, each time
    pd = PD(ctx)
    region = weakref.ref(MR(pd, 64, 1))
    gc.collect()
    assert region() is None
    pd.close()


def test_a_child_keeps_its_parents(ctx: Context) -> None:
    region = MR(PD(ctx), 64, 1)
    gc.collect()
    region.write("still there", 11)
    assert region.read(11, 0) == b"still there"


def test_a_region_with_a_bound_window_is_busy(lab: LocalLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAUXRDMA_SOCKET", str(lab.socket_path(0)))
    world = World("hca4")
    window = MW(world.pd, e.IBV_MW_TYPE_1)
    bind = MWBind(MWBindInfo(world.mr, world.mr.buf, 64, e.IBV_ACCESS_REMOTE_WRITE), e.IBV_SEND_SIGNALED)
    world.a.bind_mw(window, bind)
    world.completions()
    with pytest.raises(PyverbsRDMAError, match=r"Failed to dereg MR.*Errno: 16, Device or resource busy") as caught:
        world.mr.close()
    assert caught.value.error_code == errno.EBUSY
    world.pd.close()  # windows first
    world.ctx.close()


def test_unacknowledged_events_do_not_hold_up_closing(lab: LocalLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAUXRDMA_SOCKET", str(lab.socket_path(0)))
    world = World("hca4")
    world.cq.req_notify()
    world.b.post_recv(world.recv())
    world.a.post_send(world.send())
    world.channel.get_cq_event(world.cq)
    world.cq.close()
    world.ctx.close()


def failing(ctx: Context) -> dict[str, tuple[Callable[[], Any], int]]:
    """By the words that pyverbs begins with: a call that is refused, and its errno."""
    things = everything(ctx)
    pd, cq, qp, srq, dm = (things[name] for name in ("pd", "cq", "qp", "srq", "dm"))
    sge = SGE(things["mr"].buf, 8, things["mr"].lkey)
    plain = QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(max_recv_wr=1)), QPAttr())
    window = MW(pd, e.IBV_MW_TYPE_2)
    bind = MWBind(MWBindInfo(things["mr"], things["mr"].buf, 8, 0), 2)
    kept = (things, plain, window)
    return {
        "Failed to find device mlx5_0": (lambda: Context(name="mlx5_0"), errno.ENODEV),
        "Failed to query port": (lambda: ctx.query_port(2), errno.EINVAL),
        "Failed to query gid": (lambda: ctx.query_gid(1, 1000), errno.EINVAL),
        "Failed to query pkey": (lambda: ctx.query_pkey(1, 1000), errno.EINVAL),
        "Failed to get pkey index": (lambda: ctx.get_pkey_index(1, 0x1234), errno.ENOENT),
        "Failed to create a CQ": (lambda: CQ(ctx, 1 << 30, None, None, 0), errno.EINVAL),
        "Failed to create extended CQ": (lambda: CQEX(ctx, CqInitAttrEx(wc_flags=1 << 9)), errno.EOPNOTSUPP),
        "Failed to register a MR": (lambda: MR(pd, 64, e.IBV_ACCESS_REMOTE_WRITE), errno.EINVAL),
        "Failed to allocate MW": (lambda: MW(pd, 3), errno.EINVAL),
        "Failed to allocate device memory of size": (lambda: DM(ctx, AllocDmAttr(1 << 30)), errno.ENOMEM),
        "Failed to copy to dm": (lambda: dm.copy_to_dm(1, b"1234", 4), errno.EINVAL),
        "Failed to copy from dm": (lambda: dm.copy_from_dm(0, 3), errno.EINVAL),
        "Failed to create QP": (lambda: QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RAW_PACKET, scq=cq, rcq=cq)), 95),
        "Failed to create QP: no PD": (lambda: QP(ctx, QPInitAttrEx(scq=cq, rcq=cq)), errno.EINVAL),
        "Failed to modify QP state to RTR": (lambda: plain.to_rtr(QPAttr()), errno.EINVAL),
        "Failed to modify QP": (lambda: plain.modify(QPAttr(qp_state=e.IBV_QPS_RTS), e.IBV_QP_STATE), errno.EINVAL),
        "Failed to post send": (lambda: plain.post_send(SendWR(num_sge=1, sg=[sge])), errno.EINVAL),
        "Failed to post recv": (lambda: [plain.post_recv(RecvWR(1, 1, [sge])) for _ in range(2)], errno.ENOMEM),
        "Failed to post receive to SRQ": (lambda: [srq.post_recv(RecvWR(1, 1, [sge])) for _ in range(9)], errno.ENOMEM),
        "Failed to modify SRQ": (lambda: srq.modify(SrqAttr(srq_limit=1 << 20), e.IBV_SRQ_LIMIT), errno.EINVAL),
        "Failed to Bind MW": (lambda: plain.bind_mw(window, bind), errno.EINVAL),
        "Failed to create AH": (lambda: AH(pd, attr=AHAttr(dlid=0)), errno.EINVAL),
        "Request notify CQ": (lambda: CQ(ctx, 4).req_notify(), errno.EINVAL),
        "Failed to resize CQ": (lambda: cq.resize(1 << 30), errno.EINVAL),
        "": (lambda: kept and qp.post_recv(RecvWR(1, 1, [sge])), errno.EINVAL),
    }


def test_refusals_begin_with_pyverbs_words_and_end_with_the_errno(ctx: Context) -> None:
    for words, (call, code) in failing(ctx).items():
        with pytest.raises(PyverbsRDMAError) as caught:
            call()
        error = caught.value
        assert str(error).startswith(words), (words, str(error))
        assert error.error_code == code, (words, str(error))
        assert f". Errno: {code}, " in str(error), str(error)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (Context, "Device name must be provided"),
        (lambda: SendWR(), "A WR needs at least one SGE"),
        (lambda: RecvWR(), "A WR needs at least one SGE"),
        (lambda: AHAttr(is_global=1), "Global AH Attr is created but gr parameter is None"),
        (lambda: QPInitAttr(scq=5), "Expected CQ/CQEX, got <class 'int'>"),
        (lambda: GlobalRoute(dgid=None).dgid and PD(None), "Cannot create PD from"),
    ],
)
def test_what_the_caller_got_wrong_is_a_user_error(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(PyverbsUserError, match=words) as caught:
        call()
    assert isinstance(caught.value, PyverbsError)


def test_requests_and_addresses_are_copied(ctx: Context) -> None:
    sge = SGE(1, 2, 3)
    wr = SendWR(num_sge=1, sg=[sge, sge])
    sge.addr = 9
    assert [(each.addr, each.length) for each in wr.sg] == [(1, 2)]
    attr, ah = QPAttr(), AHAttr(dlid=7)
    attr.ah_attr = ah
    ah.dlid = 8
    assert attr.ah_attr.dlid == 7


def test_a_bad_request_is_copied_out(ctx: Context) -> None:
    pd, cq = PD(ctx), CQ(ctx, 8)
    qp = QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(max_recv_wr=1)), QPAttr())
    sge = SGE(0, 0, 0)
    bad = RecvWR(0, 1, [sge])
    with pytest.raises(PyverbsRDMAError):
        qp.post_recv(RecvWR(1, 1, [sge], next_wr=RecvWR(2, 1, [sge])), bad)
    assert bad.wr_id == 2


def test_without_a_node_it_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FAUXRDMA_SOCKET", raising=False)
    with pytest.raises(PyverbsRDMAError, match=r"Failed to get devices list: .*fauxrdma run"):
        Context(name="hca1")
