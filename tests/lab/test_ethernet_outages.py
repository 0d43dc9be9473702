"""Outages on RoCE under traffic: a flapping cable, an HCA's own, READs and atomics whose answers are lost."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator

import pytest
from ethernet_streams import HERE, MTU, SPINES, THERE, Streams, four_spines, spine_of

from fauxrdma.errors import VerbsError
from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.ib.enums import (
    IBV_EVENT_PORT_ACTIVE,
    IBV_EVENT_PORT_ERR,
    IBV_PORT_ACTIVE,
    IBV_PORT_DOWN,
    IBV_SEND_SIGNALED,
    IBV_WC_RETRY_EXC_ERR,
    IBV_WC_SUCCESS,
    IBV_WC_WR_FLUSH_ERR,
    IBV_WR_ATOMIC_FETCH_AND_ADD,
    IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE,
)
from fauxrdma.lab.local import LocalLab
from fauxrdma.verbs import SGE, SendWR

DILATION = {"none": 1, "paced": 500}
ATOMICS = 16
TRUNKS = [f"leaf1->spine{n}" for n in range(1, SPINES + 1)]


@pytest.fixture(scope="module", params=list(DILATION))
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalLab]:
    fabric = four_spines(tmp_path_factory.mktemp("fabric"), "ecmp")
    clock = request.param
    with LocalLab(fabric, nodes=2, gpus=1, clock=clock, dilation=DILATION[clock], seed=5) as running:
        yield running


def patient(lab: LocalLab, count: int) -> Streams:
    """Seven retries of 17 ms of fabric time when paced (60 s of this host's in all), else of 268 ms."""
    made = Streams(lab, count, timeout=12 if lab.clock == "paced" else 16)
    lab.report(reset=True)
    return made


def restore(lab: LocalLab, cables: list[str]) -> None:
    for cable in cables:
        lab.link_up(cable)
    lab.swept()


def until_repeated(lab: LocalLab) -> None:
    """Until something was lost and sent again. A report takes a round trip to every daemon."""
    while not lab.report().retransmits:
        pass


def post(streams: Streams, stream: int, opcode: int, local: int, remote: int, nbytes: int, **operands: int) -> None:
    """One request between offsets of both regions."""
    near, far = streams.mrs
    sge = [SGE(near.buf + local, nbytes, near.lkey)]
    wr = SendWR(1, opcode, sge, send_flags=IBV_SEND_SIGNALED, remote_addr=far.buf + remote, rkey=far.rkey, **operands)
    streams.qps[stream].post_send(wr)


def test_a_flapping_cable_loses_nothing_that_retries_do_not_repeat(lab: LocalLab) -> None:
    streams = patient(lab, 1)
    cable = f"leaf1->{spine_of(SubnetManager(lab.topology, lab.seed), streams.flow(0))}"
    data = random.Random(1).randbytes(12 * 10_000)
    streams.mrs[0].write(data, len(data))
    before = lab.swept().sweeps
    try:
        for flap in range(6):
            lab.link_down(cable)
            post(streams, 0, IBV_WR_RDMA_WRITE, flap * 20_000, flap * 20_000, 10_000)
            lab.link_up(cable)
            post(streams, 0, IBV_WR_RDMA_WRITE, flap * 20_000 + 10_000, flap * 20_000 + 10_000, 10_000)
        assert [wc.status for wc in streams.wait(0, 12)] == [IBV_WC_SUCCESS] * 12
        assert bytes(streams.mrs[1].read(len(data), 0)) == data
        swept = lab.swept()
        assert swept.sweeps > before
        assert swept.down == []
        # Up and swept, the flow is back on the way that its hash gives.
        lab.report(reset=True)
        post(streams, 0, IBV_WR_RDMA_WRITE, 0, 0, 777)
        streams.done([0])
        assert {link.name: link.nbytes for link in lab.report().links}[cable] == 777
    finally:
        restore(lab, [cable])
        streams.close()


def test_reads_and_atomics_outlast_an_outage_and_are_executed_once(lab: LocalLab) -> None:
    """All spines are cut off, so that no sweep helps, until something was sent again."""
    streams = patient(lab, 2)
    data = random.Random(2).randbytes(3 * MTU + 5)
    streams.mrs[1].write(data, len(data), 64)
    streams.mrs[1].write(bytes(8), 8)
    try:
        for cable in TRUNKS:
            lab.link_down(cable)
        for number in range(ATOMICS):
            post(streams, 0, IBV_WR_ATOMIC_FETCH_AND_ADD, 8 * number, 0, 8, compare_add=1)
        post(streams, 1, IBV_WR_RDMA_READ, 4096, 64, len(data))
        until_repeated(lab)
        assert bytes(streams.mrs[1].read(8, 0)) == bytes(8)
    finally:
        restore(lab, TRUNKS)
    streams.done([0], ATOMICS)
    streams.done([1])
    check_atomics(streams)
    assert bytes(streams.mrs[0].read(len(data), 4096)) == data
    streams.close()


def check_atomics(streams: Streams) -> None:
    """Each was executed once, in order: each has what the one before left."""
    originals = [int.from_bytes(bytes(streams.mrs[0].read(8, 8 * n)), "little") for n in range(ATOMICS)]
    assert originals == list(range(ATOMICS))
    assert int.from_bytes(bytes(streams.mrs[1].read(8, 0)), "little") == ATOMICS


def test_answers_that_are_lost_are_given_again_and_not_executed_again(lab: LocalLab) -> None:
    """The requests' way is whole, that of the answers is dead until the sweep: the responder has done all and is asked
    again. Unshaped, the sweep may be over first."""
    streams = patient(lab, 12)
    manager = SubnetManager(lab.topology, lab.seed)
    ways = {n: (spine_of(manager, streams.flow(n)), spine_of(manager, streams.flow(n, back=True))) for n in range(12)}
    stream = next(n for n, (there, back) in ways.items() if there != back)
    cable = f"leaf2->{ways[stream][1]}"
    data = random.Random(3).randbytes(2 * MTU)
    streams.mrs[1].write(data, len(data), 64)
    streams.mrs[1].write(bytes(8), 8)
    try:
        lab.link_down(cable)
        for number in range(ATOMICS):
            post(streams, stream, IBV_WR_ATOMIC_FETCH_AND_ADD, 8 * number, 0, 8, compare_add=1)
        post(streams, stream, IBV_WR_RDMA_READ, 4096, 64, len(data))
        streams.done([stream], ATOMICS + 1)
        check_atomics(streams)
        assert bytes(streams.mrs[0].read(len(data), 4096)) == data
        if lab.clock == "paced":
            assert lab.report().retransmits > 0
    finally:
        restore(lab, [cable])
        streams.close()


@pytest.mark.parametrize("opcode", [IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD])
def test_one_that_runs_out_of_retries_says_so_and_flushes_the_rest(lab: LocalLab, opcode: int) -> None:
    streams = Streams(lab, 1, timeout=8, retry_cnt=1)
    try:
        for cable in TRUNKS:
            lab.link_down(cable)
        for _ in range(3):
            post(streams, 0, opcode, 0, 0, 8, compare_add=1)
        assert [wc.status for wc in streams.wait(0, 3)] == [IBV_WC_RETRY_EXC_ERR, *[IBV_WC_WR_FLUSH_ERR] * 2]
    finally:
        restore(lab, TRUNKS)
        streams.close()


def test_an_hcas_own_cable(lab: LocalLab) -> None:
    """The port goes down at once, and with it what others know of its addresses after the sweep; what is under way
    waits for it, as long as retries last."""
    streams, short = patient(lab, 1), Streams(lab, 1, timeout=8, retry_cnt=1)
    near, far = streams.ctx
    gids = [str(entry.gid) for entry in far.query_gid_table()]
    data = random.Random(4).randbytes(5000)
    streams.mrs[0].write(data, len(data))
    lost = far.get_async_event
    try:
        assert lab.link_down(THERE) == f"{THERE}->leaf2"
        down = lost(20)
        assert down is not None
        assert down.event_type == IBV_EVENT_PORT_ERR
        down.ack()
        port = far.query_port()
        assert (port.state, port.phys_state, port.lid) == (IBV_PORT_DOWN, 2, 0)
        assert near.query_port().state == IBV_PORT_ACTIVE
        post(streams, 0, IBV_WR_RDMA_WRITE, 0, 0, len(data))
        post(short, 0, IBV_WR_RDMA_WRITE, 0, 0, 8)
        assert short.wait(0)[0].status == IBV_WC_RETRY_EXC_ERR
        lab.swept()
        assert not lab.path(HERE, THERE, streams.qps[0].qp_num).reachable
        with pytest.raises(VerbsError, match="no port that can be reached has the GID") as refused:
            Streams(lab, 1)
        assert refused.value.errno == errno.ENETUNREACH
    finally:
        restore(lab, [THERE])
    up = lost(20)
    assert up is not None
    assert up.event_type == IBV_EVENT_PORT_ACTIVE
    up.ack()
    assert far.query_port().state == IBV_PORT_ACTIVE
    assert [str(entry.gid) for entry in far.query_gid_table()] == gids
    streams.done([0])
    assert bytes(streams.mrs[1].read(len(data), 0)) == data
    assert streams.qps[0].qp_state == 3
    streams.close()
    short.close()
