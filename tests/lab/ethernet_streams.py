"""Two hosts, two leaves, four spines on RoCE v2, and queue pairs between the hosts, for the tests here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from fauxrdma.fabric.routing import FlowKey
from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.ib.enums import IBV_SEND_SIGNALED, IBV_WC_SUCCESS, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE
from fauxrdma.lab.local import LocalLab
from fauxrdma.verbs import CQ, MR, PD, QP, SGE, WC, CompChannel, Context, QPCap, QPInitAttr, SendWR

SPINES = 4
LENGTH = 1 << 20
MTU = 4096
HERE, THERE = "n0.hca1", "n1.hca1"

_FABRIC = """
name: four-spines
transport: rocev2
routing: {routing}
hosts: {{count: 2, gpus: 1}}
switches:
  leaf{{1..2}}: {{ports: 8}}
  spine{{1..4}}: {{ports: 4, tier: spine}}
cables:
  - {{from: n0.hca1, to: leaf1, rate: 100Gbps, length: 3m}}
  - {{from: n1.hca1, to: leaf2, rate: 100Gbps, length: 3m}}
  - {{from: leaf*, to: spine*, rate: {trunk}, length: 20m}}
"""


def four_spines(folder: Path, routing: str, trunk: str = "100Gbps") -> str:
    """A fabric file."""
    path = folder / f"{routing}-{trunk}.yaml"
    path.write_text(_FABRIC.format(routing=routing, trunk=trunk))
    return str(path)


class Streams:
    """Queue pairs of one process from n0.hca1 to n1.hca1, each with a completion queue of its own."""

    def __init__(self, lab: LocalLab, count: int, *, timeout: int = 14, retry_cnt: int = 7) -> None:
        self.lab = lab
        self.ctx = [Context("hca1", str(lab.socket_path(node))) for node in range(2)]
        pds = [PD(ctx) for ctx in self.ctx]
        self.mrs = [MR(pd, LENGTH, 15, gpu=0) for pd in pds]
        self.channels = [CompChannel(self.ctx[0]) for _ in range(count)]
        self.cqs = [CQ(self.ctx[0], 256, None, channel) for channel in self.channels]
        far = CQ(self.ctx[1], 16)
        cap = QPCap(max_send_wr=128)
        self.qps = [QP(pds[0], QPInitAttr(scq=cq, rcq=cq, cap=cap)) for cq in self.cqs]
        self.peers = [QP(pds[1], QPInitAttr(scq=far, rcq=far, cap=cap)) for _ in range(count)]
        for one, other in zip(self.qps, self.peers, strict=True):
            one.connect(other.endpoint(), timeout=timeout, retry_cnt=retry_cnt)
            other.connect(one.endpoint(), timeout=timeout, retry_cnt=retry_cnt)

    def post(self, stream: int, nbytes: int, messages: int = 1, opcode: int = IBV_WR_RDMA_WRITE) -> None:
        local, remote = self.mrs
        sge = [SGE(local.buf, nbytes, local.lkey)]
        wr = SendWR(1, opcode, sge, 0, IBV_SEND_SIGNALED, remote.buf, remote.rkey)
        self.qps[stream].post_send(*[wr] * messages)

    def read(self, stream: int, nbytes: int) -> None:
        self.post(stream, nbytes, opcode=IBV_WR_RDMA_READ)

    def wait(self, stream: int, count: int = 1) -> list[WC]:
        got: list[WC] = []
        while len(got) < count:
            wcs = self.cqs[stream].wait(count - len(got), 60)
            assert wcs, f"{len(got)} of {count} completions of stream {stream} in a minute"
            got += wcs
        return got

    def done(self, streams: Iterable[int], count: int = 1) -> None:
        for stream in streams:
            assert {wc.status for wc in self.wait(stream, count)} == {IBV_WC_SUCCESS}

    def flow(self, stream: int, *, back: bool = False) -> FlowKey:
        """What the switches see of a stream's requests, or of what comes back."""
        if back:
            return FlowKey(2, 1, self.peers[stream].qp_num)
        return FlowKey(1, 2, self.qps[stream].qp_num)

    def close(self) -> None:
        for ctx in self.ctx:
            ctx.close()


def carried(lab: LocalLab) -> Counter[str]:
    """Bytes by link, of those that carried any."""
    return Counter({link.name: link.nbytes for link in lab.report().links if link.nbytes})


def spine_of(manager: SubnetManager, flow: FlowKey) -> str:
    """The spine that a flow's hash gives."""
    return next(
        manager.topology.links[link].dst
        for link in manager.flow_path(flow).links
        if manager.topology.links[link].dst.startswith("spine")
    )


def hashed(manager: SubnetManager, sent: Iterable[tuple[FlowKey, int]]) -> Counter[str]:
    """Bytes by link that the hash of each flow gives."""
    out: Counter[str] = Counter()
    for flow, nbytes in sent:
        for link in manager.flow_path(flow).links:
            out[manager.topology.links[link].name] += nbytes
    return out
