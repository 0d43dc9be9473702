"""Cables of a running fabric fail and come back: what applications see of it, over real daemons."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fauxrdma.errors import ConfigError
from fauxrdma.ib.enums import (
    IBV_EVENT_PORT_ACTIVE,
    IBV_EVENT_PORT_ERR,
    IBV_PORT_ACTIVE,
    IBV_PORT_DOWN,
    IBV_SEND_SIGNALED,
    IBV_WC_RETRY_EXC_ERR,
    IBV_WC_SUCCESS,
    IBV_WR_RDMA_WRITE,
    PortState,
)
from fauxrdma.lab.local import LocalLab
from fauxrdma.verbs import CQ, MR, PD, QP, SGE, WC, CompChannel, Context, QPCap, QPInitAttr, SendWR

LENGTH = 1 << 20
CLOCKS = {"none": 1, "paced": 200}


@pytest.fixture(scope="module", params=list(CLOCKS))
def lab(request: pytest.FixtureRequest) -> Iterator[LocalLab]:
    """Two leaves joined by four cables; n0.hca1 and n1.hca2 are on different ones."""
    clock = request.param
    with LocalLab("seed-two-switch", nodes=2, gpus=2, clock=clock, dilation=CLOCKS[clock]) as running:
        yield running


class Writer:
    """n0.hca1 writes to n1.hca2."""

    def __init__(self, lab: LocalLab, *, timeout: int, retry_cnt: int = 7) -> None:
        self.ctx = [Context("hca1", str(lab.socket_path(0))), Context("hca2", str(lab.socket_path(1)))]
        pds = [PD(ctx) for ctx in self.ctx]
        self.channel = CompChannel(self.ctx[0])
        self.cqs = [CQ(self.ctx[0], 256, None, self.channel), CQ(self.ctx[1], 16)]
        self.mrs = [MR(pd, LENGTH, 7) for pd in pds]
        self.qps = [
            QP(pd, QPInitAttr(scq=cq, rcq=cq, cap=QPCap(max_send_wr=64))) for pd, cq in zip(pds, self.cqs, strict=True)
        ]
        for one, other in (self.qps, self.qps[::-1]):
            one.connect(other.endpoint(), timeout=timeout, retry_cnt=retry_cnt)

    @property
    def lid(self) -> int:
        return self.ctx[1].hca.lid

    def trunk(self) -> str:
        """The cable between the switches that the requests take now."""
        return next(name for name in self.ctx[0].path(self.lid).links if name.startswith("leaf1->leaf2"))

    def post(self, messages: int = 1) -> None:
        local, remote = self.mrs
        sge = SGE(local.buf, LENGTH, local.lkey)
        wr = SendWR(1, IBV_WR_RDMA_WRITE, [sge], 0, IBV_SEND_SIGNALED, remote.buf, remote.rkey)
        self.qps[0].post_send(*[wr] * messages)

    def wait(self, count: int = 1) -> list[WC]:
        got: list[WC] = []
        while len(got) < count:
            wcs = self.cqs[0].wait(count - len(got), 60)
            assert wcs, f"{len(got)} of {count} completions in a minute"
            got += wcs
        return got

    def close(self) -> None:
        for ctx in self.ctx:
            ctx.close()


def patient(lab: LocalLab) -> Writer:
    """Seven retries of 4 ms of fabric time (67 ms where that is this host's time): longer than any sweep here."""
    return Writer(lab, timeout=10 if lab.clock == "paced" else 14)


@pytest.fixture
def writer(lab: LocalLab) -> Iterator[Writer]:
    made = patient(lab)
    yield made
    made.close()


def links(lab: LocalLab, *, reset: bool = False) -> dict[str, int]:
    """Bytes by link, of those that carried any."""
    return {link.name: link.nbytes for link in lab.report(reset).links if link.nbytes}


def test_a_transfer_outlasts_an_outage_that_a_sweep_ends(lab: LocalLab, writer: Writer) -> None:
    trunk = writer.trunk()
    before = lab.swept()
    lab.report(reset=True)
    writer.post()
    assert writer.wait()[0].status == IBV_WC_SUCCESS
    assert links(lab)[trunk] == LENGTH
    assert lab.link_down(trunk) == trunk
    writer.post(8)
    if lab.clock == "paced":  # otherwise the sweep is over sooner than we can look
        lost = writer.ctx[0].path(writer.lid)
        assert (lost.reachable, lost.lost_at) == (True, trunk)
    assert [wc.status for wc in writer.wait(8)] == [IBV_WC_SUCCESS] * 8
    swept = lab.swept()
    assert swept.sweeps == before.sweeps + 1
    assert swept.changed > 0
    assert trunk in (swept.down[0], swept.down[0].replace("leaf2->leaf1", "leaf1->leaf2"))
    other = writer.trunk()
    assert other != trunk
    carried = links(lab)
    # The dead cable has only what crossed it before; all that arrived since went by the new one.
    assert carried[trunk] == LENGTH
    assert carried[other] >= 8 * LENGTH
    if lab.clock == "paced":
        assert lab.report().retransmits > 0
        assert carried["n0.hca1->leaf1"] > 9 * LENGTH  # what was lost left the HCA, too
    lab.link_up(trunk)
    assert lab.swept().down == []
    assert writer.trunk() == trunk  # the tables of the start
    lab.report(reset=True)
    writer.post()
    writer.wait()
    assert links(lab)[trunk] == LENGTH
    assert other not in links(lab)


def test_an_outage_that_outlasts_the_retries_is_retry_exceeded(lab: LocalLab) -> None:
    """All cables between the leaves: no sweep can help."""
    writer = Writer(lab, timeout=8, retry_cnt=1)  # 1 ms, twice
    cables = sorted({link.name for link in lab.topology.links if (link.src, link.dst) == ("leaf1", "leaf2")})
    try:
        for cable in cables:
            lab.link_down(cable)
        writer.post()
        assert writer.wait()[0].status == IBV_WC_RETRY_EXC_ERR
        lab.swept()
        nowhere = writer.ctx[0].path(writer.lid)
        assert (nowhere.reachable, nowhere.lost_at) == (False, "leaf1")
    finally:
        for cable in cables:
            lab.link_up(cable)
        lab.swept()
        writer.close()
    again = patient(lab)
    again.post()
    assert again.wait()[0].status == IBV_WC_SUCCESS
    again.close()


def test_an_hcas_own_cable(lab: LocalLab, writer: Writer) -> None:
    a, b = writer.ctx
    lid, gid = b.hca.lid, b.hca.gid
    assert lab.link_down("n1.hca2") == "n1.hca2->leaf2"
    down = b.get_async_event(20)
    assert down is not None
    assert down.event_type == IBV_EVENT_PORT_ERR
    down.ack()
    port = b.query_port(1)
    assert (port.state, port.phys_state, port.lid) == (IBV_PORT_DOWN, 2, lid)
    assert a.query_port(1).state == IBV_PORT_ACTIVE
    writer.post(2)
    lab.swept()
    assert not a.path(lid).reachable
    lab.link_up("n1.hca2")
    assert b.query_port(1).state in (PortState.IBV_PORT_INIT, IBV_PORT_ACTIVE)
    lab.swept()
    up = b.get_async_event(20)
    assert up is not None
    assert up.event_type == IBV_EVENT_PORT_ACTIVE
    up.ack()
    assert b.query_port(1).state == IBV_PORT_ACTIVE
    assert b.query_port(1).lid == lid
    assert b.query_gid(1, 0) == gid or str(b.query_gid(1, 0).gid) == gid
    assert [wc.status for wc in writer.wait(2)] == [IBV_WC_SUCCESS] * 2


def test_what_is_no_cable_is_refused_and_the_lab_goes_on(lab: LocalLab) -> None:
    with pytest.raises(ConfigError, match="no cable 'leaf1->leaf3'"):
        lab.link_down("leaf1->leaf3")
    lab.swept()
