"""UC, UD and multicast on a shaped fabric: arrivals are as late and as far apart as the model says, per destination."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from test_unreliable import GROUP, INBOX, Peer, shout

from fauxrdma.ib.enums import IBV_QPT_UC, IBV_QPT_UD, IBV_WC_RECV
from fauxrdma.lab.local import LocalLab
from fauxrdma.verbs import SendWR

pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def paced() -> Iterator[LocalLab]:
    with LocalLab("seed-rail8", nodes=2, gpus=2, clock="paced", dilation=2000, seed=7) as lab:
        yield lab


def test_a_datagram_takes_the_latency_of_its_own_path(paced: LocalLab) -> None:
    a = Peer(paced, 0, IBV_QPT_UD)
    near, far = Peer(paced, 1, IBV_QPT_UD, "hca1"), Peer(paced, 1, IBV_QPT_UD, "hca2")
    latencies = [a.ctx.path(to.ctx.hca.lid).latency_ns for to in (near, far)]
    assert latencies[0] < latencies[1]  # the second is on another rail
    for to, latency in zip((near, far), latencies, strict=True):
        to.receive(7)
        start = a.ctx.fabric_now_ns()
        a.send(to, 64)
        (wc,) = to.wait(1)
        assert wc.byte_len == 104
        assert start + latency <= wc.timestamp_ns
        assert a.wait(1)[0].timestamp_ns < wc.timestamp_ns
    for peer in (a, near, far):
        peer.close()


def test_a_stream_of_datagrams_has_the_rate_of_its_path(paced: LocalLab) -> None:
    a, b = Peer(paced, 0, IBV_QPT_UD), Peer(paced, 1, IBV_QPT_UD)
    count, length = 60, 4096
    for wr_id in range(count):
        b.receive(wr_id)
    ah = a.ah(b)
    start = a.ctx.fabric_now_ns()
    a.qp.post_send(*(a.datagram(ah, b.qp.qp_num, length, wr_id) for wr_id in range(count)))
    a.wait(count)
    got = b.wait(count)
    assert [wc.wr_id for wc in got] == list(range(count))
    rate = a.ctx.path(b.ctx.hca.lid).rate_bps
    # From the post, since a busy host may see the first ones late; it can make nothing earlier.
    assert got[-1].timestamp_ns - start >= count * length * 8 * 1e9 / rate
    a.close()
    b.close()


def test_a_group_is_reached_over_every_members_own_path(paced: LocalLab) -> None:
    sender = Peer(paced, 0, IBV_QPT_UD)
    members = [Peer(paced, 0, IBV_QPT_UD), Peer(paced, 1, IBV_QPT_UD, "hca1"), Peer(paced, 1, IBV_QPT_UD, "hca2")]
    for peer in members:
        peer.receive(7)
        peer.qp.attach_mcast(GROUP, 0xC123)
    start = sender.ctx.fabric_now_ns()
    shout(sender, 256, 0xC123)
    assert sender.wait(1)[0].status == 0
    for peer in members:
        (wc,) = peer.wait(1)
        assert wc.timestamp_ns >= start + sender.ctx.path(peer.ctx.hca.lid).latency_ns
        assert peer.inbox(256, 40) == sender.mr.read(256, 0)
    for peer in (sender, *members):
        peer.close()


def test_a_long_uc_write_with_immediate_takes_its_time(paced: LocalLab) -> None:
    a, b = Peer(paced, 0, IBV_QPT_UC), Peer(paced, 1, IBV_QPT_UC)
    a.qp.connect(b.qp.endpoint())
    b.qp.connect(a.qp.endpoint())
    b.receive(7)
    length = 400_000
    path = a.ctx.path(b.ctx.hca.lid)
    start = a.ctx.fabric_now_ns()
    a.qp.post_send(
        SendWR(1, 1, [a.sge(0, length)], imm_data=3, remote_addr=b.mr.buf + INBOX, rkey=b.mr.rkey)
    )  # fmt: skip
    (wc,) = b.wait(1)
    assert (wc.opcode != IBV_WC_RECV, wc.byte_len, wc.imm_data) == (True, length, 3)
    assert wc.timestamp_ns >= start + path.latency_ns + 0.9 * length * 8 * 1e9 / path.rate_bps
    assert b.inbox(length) == a.mr.read(length, 0)
    assert a.wait(1)[0].status == 0
    a.close()
    b.close()
