"""Limits of a device that only a small profile meets: windows, address handles, groups, READs and locked memory."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pairs import End

from fauxrdma.errors import VerbsError
from fauxrdma.ib.enums import (
    IBV_MW_TYPE_1,
    IBV_QP_STATE,
    IBV_QPS_RESET,
    IBV_QPT_UD,
    IBV_REREG_MR_CHANGE_ACCESS,
    IBV_REREG_MR_CHANGE_TRANSLATION,
)
from fauxrdma.lab.local import LocalLab
from fauxrdma.verbs import AH, MR, MW, QP, AHAttr, QPAttr, QPCap, QPInitAttr

SMALL = (
    "ibta,max_mw=2,max_ah=2,max_mcast_grp=2,max_mcast_qp_attach=2,max_total_mcast_qp_attach=3,max_res_rd_atom=20,"
    "memlock_bytes=100000"
)


@pytest.fixture(scope="module")
def small() -> Iterator[LocalLab]:
    with LocalLab("seed-rail8", nodes=1, gpus=2, clock="none", profile=SMALL) as lab:
        yield lab


@pytest.fixture
def end(small: LocalLab, request: pytest.FixtureRequest) -> Iterator[End]:
    # Each test has a device of its own: what a program held is released a moment after it has gone.
    names = [item.name for item in request.session.items if item.path == request.path]
    end = End(small, 0, f"hca{1 + names.index(request.node.name)}", length=4096)
    yield end
    end.close()


def no_room(words: str, call: Callable[[], Any]) -> None:
    with pytest.raises(VerbsError, match=words) as caught:
        call()
    assert caught.value.errno == errno.ENOMEM


def test_memory_windows(end: End) -> None:
    windows = [MW(end.pd, IBV_MW_TYPE_1) for _ in range(2)]
    no_room("max_mw = 2", lambda: MW(end.pd, IBV_MW_TYPE_1))
    windows[0].close()
    MW(end.pd, IBV_MW_TYPE_1)


def test_address_handles(end: End) -> None:
    attr = AHAttr(dlid=end.ctx.hca.lid)
    handles = [AH(end.pd, attr=attr) for _ in range(2)]
    no_room("max_ah = 2", lambda: AH(end.pd, attr=attr))
    handles[0].close()
    AH(end.pd, attr=attr)


def test_multicast_groups_and_attachments(end: End) -> None:
    init = QPInitAttr(qp_type=IBV_QPT_UD, scq=end.cq, rcq=end.cq, cap=QPCap(1, 1))
    first, second, third = (QP(end.pd, init, QPAttr(qkey=1)) for _ in range(3))
    first.attach_mcast("ff12::1", 0xC001)
    first.attach_mcast("ff12::2", 0xC002)
    no_room("max_mcast_grp is 2", lambda: first.attach_mcast("ff12::3", 0xC003))
    second.attach_mcast("ff12::1", 0xC001)
    no_room("max_mcast_qp_attach is 2", lambda: third.attach_mcast("ff12::1", 0xC001))
    no_room("max_total_mcast_qp_attach is 3", lambda: third.attach_mcast("ff12::2", 0xC002))
    second.attach_mcast("ff12::1", 0xC001)  # once more is the same attachment
    second.detach_mcast("ff12::1", 0xC001)
    third.attach_mcast("ff12::2", 0xC002)


def test_reads_and_atomics_that_all_responders_hold(end: End) -> None:
    first, second = (QP(end.pd, QPInitAttr(scq=end.cq, rcq=end.cq)) for _ in range(2))

    def connect(qp: QP, reads: int) -> None:
        qp.connect(qp.endpoint(), max_rd_atomic=reads)

    def reset(qp: QP) -> None:
        qp.modify(QPAttr(qp_state=IBV_QPS_RESET), IBV_QP_STATE)

    connect(first, 16)
    no_room("max_dest_rd_atomic 5 and the 16 .* max_res_rd_atom 20", lambda: connect(second, 5))
    reset(second)
    connect(second, 4)
    reset(second)
    reset(first)
    connect(second, 16)
    second.close()
    connect(first, 16)


def test_locked_memory_of_a_region_that_changes(end: End) -> None:
    room = 100_000 - end.mr.length

    def registers_just(length: int) -> None:
        no_room("memlock_bytes 100000", lambda: MR(end.pd, length + 1, 1))
        MR(end.pd, length, 1).close()

    region = MR.over(end.pd, bytearray(50_000), 1)
    registers_just(room - 50_000)
    region.rereg(IBV_REREG_MR_CHANGE_ACCESS, access=3)
    registers_just(room - 50_000)
    region.rereg(IBV_REREG_MR_CHANGE_TRANSLATION, addr=bytearray(90_000))  # the old 50,000 B count no more
    registers_just(room - 90_000)
    no_room("memlock_bytes 100000", lambda: region.rereg(IBV_REREG_MR_CHANGE_TRANSLATION, addr=bytearray(room + 1)))
    registers_just(room - 90_000)
    region.rereg(IBV_REREG_MR_CHANGE_TRANSLATION, addr=bytearray(10))
    registers_just(room - 10)
    region.close()
    registers_just(room)
