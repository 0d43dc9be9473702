"""Asynchronous events that are not about a failed request: ports, tables, the subnet manager, the daemon (A5)."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator

import pytest
from pairs import End, connect

from fauxrdma.errors import VerbsError
from fauxrdma.ib.enums import (
    IBV_EVENT_COMM_EST,
    IBV_EVENT_DEVICE_FATAL,
    IBV_EVENT_GID_CHANGE,
    IBV_EVENT_PKEY_CHANGE,
    IBV_EVENT_PORT_ACTIVE,
    IBV_EVENT_PORT_ERR,
    IBV_EVENT_SM_CHANGE,
    IBV_PORT_ACTIVE,
    IBV_PORT_DOWN,
    IBV_WC_RETRY_EXC_ERR,
    IBV_WC_SUCCESS,
    AsyncEventType,
    PortState,
)
from fauxrdma.lab.local import LocalLab
from fauxrdma.verbs import QP, AsyncEvent, QPAttr, QPInitAttr


@pytest.fixture(scope="module")
def lab() -> Iterator[LocalLab]:
    """A lab of our own: other tests' devices must not hear of these events."""
    with LocalLab("seed-rail8", nodes=2, gpus=1, clock="none") as lab:
        yield lab


@pytest.fixture
def ends(lab: LocalLab) -> Iterator[tuple[End, End]]:
    a, b = End(lab, 0), End(lab, 1)
    yield a, b
    a.close()
    b.close()


def event(end: End, kind: AsyncEventType) -> AsyncEvent:
    """The next event, which must be of this kind; acknowledged."""
    got = end.ctx.get_async_event(20)
    assert got is not None, f"no {kind.name} in 20 s"
    assert got.event_type == kind
    got.ack()
    return got


def test_a_port_goes_down_and_up(lab: LocalLab, ends: tuple[End, End]) -> None:
    """Every application of the device hears of it; frames vanish both ways, and the protocol finds out by itself."""
    a, b = ends
    other = End(lab, 0)
    connect(a, b, timeout=14, retry_cnt=1)
    a.qp.post_send(a.write(b, 64))
    assert a.wait()[0].status == IBV_WC_SUCCESS
    a.ctx.set_port(IBV_PORT_DOWN)
    for end in (a, other):
        assert event(end, IBV_EVENT_PORT_ERR).element == 1
    port = a.ctx.query_port()
    assert (port.state, port.phys_state) == (PortState.IBV_PORT_DOWN, 3)
    assert b.ctx.query_port().state == PortState.IBV_PORT_ACTIVE
    a.qp.post_send(a.write(b, 64))
    assert a.wait()[0].status == IBV_WC_RETRY_EXC_ERR
    b.qp.post_send(b.write(a, 64))
    assert b.wait()[0].status == IBV_WC_RETRY_EXC_ERR
    a.ctx.set_port(IBV_PORT_ACTIVE)
    for end in (a, other):
        event(end, IBV_EVENT_PORT_ACTIVE)
    one, two = (QP(end.pd, QPInitAttr(scq=end.cq, rcq=end.cq)) for end in (a, b))
    one.connect(two.endpoint())
    two.connect(one.endpoint())
    one.post_send(a.write(b, 64))
    assert a.wait()[0].status == IBV_WC_SUCCESS
    # Saying again what is so already is no event.
    a.ctx.set_port(IBV_PORT_ACTIVE)
    assert a.ctx.get_async_event(0) is None
    other.close()


@pytest.mark.parametrize("state", [0, 2, 3, 5])
def test_a_port_has_two_states(ends: tuple[End, End], state: int) -> None:
    with pytest.raises(VerbsError, match=f"state {state}") as caught:
        ends[0].ctx.set_port(state)  # type: ignore[arg-type]
    assert caught.value.errno == errno.EINVAL
    assert ends[0].ctx.get_async_event(0) is None


def test_tables_that_change(ends: tuple[End, End]) -> None:
    a, _ = ends
    a.ctx.set_port(pkeys=[0xFFFF, 0x8001])
    event(a, IBV_EVENT_PKEY_CHANGE)
    assert a.ctx.query_pkey(1, 1) == 0x8001
    assert a.ctx.get_pkey_index(1, 0x8001) == 1
    a.ctx.set_port(gids=["fe80::77"])
    event(a, IBV_EVENT_GID_CHANGE)
    assert "fe80::77" in {entry.gid for entry in a.ctx.query_gid_table(64)}
    a.ctx.set_port(pkeys=[0xFFFF], gids=[])
    event(a, IBV_EVENT_PKEY_CHANGE)
    event(a, IBV_EVENT_GID_CHANGE)
    with pytest.raises(VerbsError, match="no-gid"):
        a.ctx.set_port(gids=["no-gid"])


def test_the_first_packet_on_a_queue_pair_in_rtr(ends: tuple[End, End]) -> None:
    a, b = ends
    a.qp.connect(b.qp.endpoint())
    remote = a.qp.endpoint()
    attr = QPAttr(
        qp_access_flags=7, path_mtu=5, dest_qp_num=remote["qpn"], rq_psn=remote["psn"], max_dest_rd_atomic=1,
        min_rnr_timer=12,
    )  # fmt: skip
    attr.ah_attr.dlid = remote["lid"]
    b.qp.to_init(attr)
    b.qp.to_rtr(attr)
    for _ in range(2):
        a.qp.post_send(a.write(b, 64))
        assert a.wait()[0].status == IBV_WC_SUCCESS
    assert event(b, IBV_EVENT_COMM_EST).element == b.qp.qp_num
    b.qp.query()
    assert b.ctx.get_async_event(0) is None  # once


def test_the_subnet_manager_and_the_daemon_die() -> None:
    with LocalLab("seed-rail8", nodes=2, gpus=1, clock="none") as lab:
        a, b = End(lab, 0), End(lab, 1)
        connect(a, b)
        os.kill(lab.subnet_manager_pid, signal.SIGKILL)
        event(a, IBV_EVENT_SM_CHANGE)
        assert a.ctx.query_port().sm_lid == 0
        a.qp.post_send(a.write(b, 64))  # forwarding goes on
        assert a.wait()[0].status == IBV_WC_SUCCESS
        os.kill(lab.daemons[0], signal.SIGKILL)
        event(a, IBV_EVENT_DEVICE_FATAL)
        a.close()
        b.close()
