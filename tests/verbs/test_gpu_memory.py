"""Which memory bytes leave and land in decides what they cross inside the hosts: counted to the byte, on both clocks.

The ways are written out here by hand; nothing of the product's own idea of them is used.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import pytest
from pairs import ACCESS, End, connect
from test_unreliable import QKEY, Peer

from fauxrdma.errors import VerbsError
from fauxrdma.ib.enums import (
    IBV_ACCESS_MW_BIND,
    IBV_ACCESS_REMOTE_WRITE,
    IBV_MW_TYPE_1,
    IBV_QPT_UD,
    IBV_SEND_INLINE,
    IBV_SEND_SIGNALED,
    IBV_WC_SUCCESS,
    IBV_WR_ATOMIC_FETCH_AND_ADD,
    IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM,
    IBV_WR_SEND,
)
from fauxrdma.lab.local import LocalLab
from fauxrdma.verbs import DM, DMMR, MR, MW, SGE, AllocDmAttr, DmaBuf, DmaBufMR, MWBind, MWBindInfo, RecvWR, SendWR

HOST = None
CABLES = ("n0.hca1->leaf1", "leaf1->n1.hca1")

FABRICS = {
    "rail8": "fat-tree",
    "four-per-hca": "fat-tree,gpus_per_hca=4",
    "no-gpudirect": "fat-tree,gpudirect=off",
}

WAYS: dict[str, dict[int | None, str]] = {
    "rail8": {HOST: "mem pcie0 hca1", 0: "gpu0 pcie0 hca1", 1: "gpu1 pcie0 hca1", 2: "gpu2 pcie1 mem pcie0 hca1"},
    "four-per-hca": {HOST: "mem pcie0 hca1", 1: "gpu1 pcie0 hca1", 3: "gpu3 pcie1 mem pcie0 hca1"},
    "no-gpudirect": {HOST: "mem pcie0 hca1", 0: "gpu0 pcie0 mem pcie0 hca1", 3: "gpu3 pcie1 mem pcie0 hca1"},
}
"""From memory to HCA, by fabric and GPU: another switch than the HCA's is reached over the root complex, and without
GPUDirect even the same one is."""

CASES = [(name, out, into) for name, ways in WAYS.items() for out in ways for into in ways]


def links(node: int, way: str, *, out: bool) -> list[str]:
    stops = [f"n{node}.{stop}" for stop in way.split()]
    pairs = list(pairwise(stops))
    return [f"{a}->{b}" for a, b in pairs] if out else [f"{b}->{a}" for a, b in reversed(pairs)]


def carried(lab: LocalLab) -> dict[str, int]:
    return {link.name: link.nbytes for link in lab.report().links if link.nbytes}


class Pairs:
    """Two connected ends on two nodes of a lab, and regions in any memory."""

    def __init__(self, name: str, lab: LocalLab) -> None:
        self.name = name
        self.lab = lab
        self.a, self.b = End(lab, 0), End(lab, 1)
        connect(self.a, self.b)

    def predicted(self, out: int | None, into: int | None, nbytes: int) -> Counter[str]:
        """From node 0 to node 1."""
        ways = WAYS[self.name]
        crossed = [*links(0, ways[out], out=True), *CABLES, *links(1, ways[into], out=False)]
        return Counter({link: crossed.count(link) * nbytes for link in crossed})

    def close(self) -> None:
        self.a.close()
        self.b.close()


@pytest.fixture(scope="module", params=["none", "paced"])
def clock(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=list(FABRICS))
def pairs(request: pytest.FixtureRequest, clock: str) -> Iterator[Pairs]:
    dilation = {"dilation": 1000.0} if clock == "paced" else {}
    with LocalLab(FABRICS[request.param], nodes=2, gpus=2, clock=clock, **dilation) as lab:
        both = Pairs(request.param, lab)
        yield both
        both.close()


def transfer(pairs: Pairs, opcode: int, out: int | None, into: int | None, nbytes: int) -> dict[str, int]:
    """Bytes by link of one operation that moves `nbytes` from node 0 to node 1."""
    a, b = pairs.a, pairs.b
    source, target = MR(a.pd, nbytes, ACCESS, gpu=out), MR(b.pd, nbytes, ACCESS, gpu=into)
    source.view[:] = bytes(i * 7 & 0xFF for i in range(nbytes))
    pairs.lab.report(reset=True)
    if opcode == IBV_WR_RDMA_READ:  # node 1 asks
        sge = SGE(target.buf, nbytes, target.lkey)
        b.qp.post_send(SendWR(1, opcode, [sge], send_flags=IBV_SEND_SIGNALED, remote_addr=source.buf, rkey=source.rkey))
        (wc,) = b.wait()
    else:
        if opcode == IBV_WR_SEND:
            b.qp.post_recv(RecvWR(2, [SGE(target.buf, nbytes, target.lkey)]))
        elif opcode == IBV_WR_RDMA_WRITE_WITH_IMM:
            b.qp.post_recv(RecvWR(2))
        sge = SGE(source.buf, nbytes, source.lkey)
        a.qp.post_send(SendWR(1, opcode, [sge], send_flags=IBV_SEND_SIGNALED, remote_addr=target.buf, rkey=target.rkey))
        (wc,) = a.wait()
        if opcode in (IBV_WR_SEND, IBV_WR_RDMA_WRITE_WITH_IMM):
            b.wait()
    assert wc.status == IBV_WC_SUCCESS
    assert target.view[:] == source.view[:]
    seen = carried(pairs.lab)
    source.close()
    target.close()
    return seen


@pytest.mark.parametrize("opcode", [IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ, IBV_WR_SEND])
@pytest.mark.parametrize("nbytes", [100, 1_234_567])
def test_every_operation_is_charged_to_the_memories_at_both_ends(pairs: Pairs, opcode: int, nbytes: int) -> None:
    for out in WAYS[pairs.name]:
        for into in WAYS[pairs.name]:
            seen = transfer(pairs, opcode, out, into, nbytes)
            assert seen == pairs.predicted(out, into, nbytes), (out, into)


def test_a_scattered_message_counts_in_each_memory_by_its_bytes(pairs: Pairs) -> None:
    a, b = pairs.a, pairs.b
    far = max(gpu for gpu in WAYS[pairs.name] if gpu is not None)
    mine = [MR(a.pd, 3000, ACCESS, gpu=gpu) for gpu in (far, HOST, far)]
    his = [MR(b.pd, size, ACCESS, gpu=gpu) for size, gpu in ((5000, HOST), (4000, far))]
    pairs.lab.report(reset=True)
    b.qp.post_recv(RecvWR(2, [SGE(mr.buf, mr.length, mr.lkey) for mr in his]))
    a.qp.post_send(SendWR(1, IBV_WR_SEND, [SGE(mr.buf, 3000, mr.lkey) for mr in mine], send_flags=IBV_SEND_SIGNALED))
    assert a.wait()[0].status == b.wait()[0].status == IBV_WC_SUCCESS
    ways = WAYS[pairs.name]
    want: Counter[str] = Counter(dict.fromkeys(CABLES, 9000))
    for gpu, nbytes in ((far, 6000), (HOST, 3000)):
        want.update(dict.fromkeys(links(0, ways[gpu], out=True), nbytes))
    for gpu, nbytes in ((far, 4000), (HOST, 5000)):
        want.update(dict.fromkeys(links(1, ways[gpu], out=False), nbytes))
    assert carried(pairs.lab) == want
    for mr in (*mine, *his):
        mr.close()


def test_inline_data_comes_from_host_memory_and_atomics_carry_none(pairs: Pairs) -> None:
    a, b = pairs.a, pairs.b
    gpu = min(gpu for gpu in WAYS[pairs.name] if gpu is not None)
    access = ACCESS | 8  # remote atomics
    with MR(a.pd, 64, access, gpu=gpu) as mine, MR(b.pd, 64, access, gpu=gpu) as his:
        pairs.lab.report(reset=True)
        a.qp.post_send(
            SendWR(
                1, IBV_WR_RDMA_WRITE, [SGE(mine.buf, 64, mine.lkey)], send_flags=IBV_SEND_SIGNALED | IBV_SEND_INLINE,
                remote_addr=his.buf, rkey=his.rkey,
            )
        )  # fmt: skip
        assert a.wait()[0].status == IBV_WC_SUCCESS
        assert carried(pairs.lab) == pairs.predicted(HOST, gpu, 64)
        pairs.lab.report(reset=True)
        a.qp.post_send(
            SendWR(
                1, IBV_WR_ATOMIC_FETCH_AND_ADD, [SGE(mine.buf, 8, mine.lkey)], send_flags=IBV_SEND_SIGNALED,
                remote_addr=his.buf, rkey=his.rkey, compare_add=1,
            )
        )  # fmt: skip
        assert a.wait()[0].status == IBV_WC_SUCCESS
        assert carried(pairs.lab) == {}


def test_dma_bufs_and_windows_are_where_their_memory_is(pairs: Pairs) -> None:
    a, b = pairs.a, pairs.b
    gpu = max(gpu for gpu in WAYS[pairs.name] if gpu is not None)
    with DmaBuf(5000, unit=gpu) as buffer, DmaBufMR(b.pd, 5000, ACCESS | IBV_ACCESS_MW_BIND, buffer) as his:
        window = MW(b.pd, IBV_MW_TYPE_1)
        b.qp.bind_mw(window, MWBind(MWBindInfo(his, his.buf, 5000, IBV_ACCESS_REMOTE_WRITE)))
        assert b.wait()[0].status == IBV_WC_SUCCESS
        pairs.lab.report(reset=True)
        a.qp.post_send(a.write(b, 5000, remote_addr=his.buf, rkey=window.rkey))
        assert a.wait()[0].status == IBV_WC_SUCCESS
        assert carried(pairs.lab) == pairs.predicted(HOST, gpu, 5000)
        window.close()


def test_device_memory_crosses_no_pcie(pairs: Pairs) -> None:
    a, b = pairs.a, pairs.b
    dms = [DM(end.ctx, AllocDmAttr(4096)) for end in (a, b)]
    mine, his = (DMMR(end.pd, 4096, ACCESS, dm, 0) for end, dm in zip((a, b), dms, strict=True))
    pairs.lab.report(reset=True)
    sge = SGE(0, 4096, mine.lkey)
    a.qp.post_send(SendWR(1, IBV_WR_RDMA_WRITE, [sge], send_flags=IBV_SEND_SIGNALED, remote_addr=0, rkey=his.rkey))
    assert a.wait()[0].status == IBV_WC_SUCCESS
    assert carried(pairs.lab) == dict.fromkeys(CABLES, 4096)
    for resource in (mine, his, *dms):
        resource.close()


def test_what_is_registered_again_stays_where_it_was(pairs: Pairs) -> None:
    a, b = pairs.a, pairs.b
    gpu = max(gpu for gpu in WAYS[pairs.name] if gpu is not None)
    with MR(b.pd, 4096, ACCESS, gpu=gpu) as his:
        his.rereg(4, access=ACCESS | IBV_ACCESS_MW_BIND)
        pairs.lab.report(reset=True)
        a.qp.post_send(a.write(b, 4096, remote_addr=his.buf, rkey=his.rkey))
        assert a.wait()[0].status == IBV_WC_SUCCESS
        assert carried(pairs.lab) == pairs.predicted(HOST, gpu, 4096)


def test_datagrams_too(pairs: Pairs) -> None:
    a, b = (Peer(pairs.lab, node, IBV_QPT_UD) for node in (0, 1))
    gpu = max(gpu for gpu in WAYS[pairs.name] if gpu is not None)
    with MR(a.pd, 2000, ACCESS, gpu=gpu) as mine, MR(b.pd, 4096, ACCESS, gpu=gpu) as his:
        for source, target in ((gpu, HOST), (HOST, gpu)):
            out, into = (mine if source else a.mr), (his if target else b.mr)
            pairs.lab.report(reset=True)
            b.qp.post_recv(RecvWR(1, [SGE(into.buf, 2040, into.lkey)]))
            wr = SendWR(1, sg=[SGE(out.buf, 2000, out.lkey)], send_flags=IBV_SEND_SIGNALED)
            wr.set_wr_ud(a.ah(b), b.qp.qp_num, QKEY)
            a.qp.post_send(wr)
            assert a.wait(1)[0].status == b.wait(1)[0].status == IBV_WC_SUCCESS
            assert carried(pairs.lab) == pairs.predicted(source, target, 2000)
    a.close()
    b.close()


def test_a_gpu_that_the_node_does_not_have_is_refused(pairs: Pairs) -> None:
    for gpu in (8, -1):
        with pytest.raises(VerbsError, match=f"there is no GPU {gpu}: the node has GPUs 0 to 7") as caught:
            MR(pairs.a.pd, 64, ACCESS, gpu=gpu)
        assert caught.value.errno == errno.EINVAL
