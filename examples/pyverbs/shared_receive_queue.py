"""Several queue pairs that receive from one shared queue (SRQ)."""

import pyverbs.enums as e
from common import End, run
from pyverbs.qp import QP, QPCap, QPInitAttr
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from pyverbs.wr import SGE, RecvWR

PAIRS = 3
MESSAGE = 64


class SharingEnd(End):
    """An end with several queue pairs and one SRQ."""

    def make_qp(self, cap):
        self.srq = SRQ(self.pd, SrqInitAttr(SrqAttr(max_wr=32)))
        init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, srq=self.srq, cap=QPCap(max_send_wr=4))
        self.qps = [QP(self.pd, init, self.attributes()) for _ in range(PAIRS)]
        return self.qps[0]

    def choose(self, i):
        """Let the other methods use this queue pair."""
        self.qp = self.qps[i]


def server(link):
    end = SharingEnd()
    for i in range(PAIRS):
        sge = SGE(end.mr.buf + i * MESSAGE, MESSAGE, end.mr.lkey)
        end.srq.post_recv(RecvWR(wr_id=i, num_sge=1, sg=[sge]))
    assert end.srq.query().max_wr >= 32
    connect_all(end, link)
    wcs = end.completions(PAIRS)
    assert {wc.qp_num for wc in wcs} == {qp.qp_num for qp in end.qps}
    texts = {end.mr.read(6, wc.wr_id * MESSAGE).decode() for wc in wcs}
    assert texts == {f"from {i}" for i in range(PAIRS)}, texts
    for i in range(8):
        end.srq.post_recv(RecvWR(wr_id=i, num_sge=1, sg=[end.sge(MESSAGE)]))
    end.srq.modify(SrqAttr(srq_limit=5), e.IBV_SRQ_LIMIT)  # an event, once fewer are left
    assert end.srq.query().srq_limit == 5
    link.barrier()
    end.close()


def connect_all(end, link):
    for i in range(PAIRS):
        end.choose(i)
        end.connect(link.swap(**end.card()))
    link.barrier()


def client(link):
    end = SharingEnd()
    connect_all(end, link)
    for i in range(PAIRS):
        end.choose(i)
        end.send(f"from {i}")
        end.completions()
    link.barrier()
    end.close()
    print(f"shared_receive_queue: {PAIRS} queue pairs")


if __name__ == "__main__":
    run(server, client)
