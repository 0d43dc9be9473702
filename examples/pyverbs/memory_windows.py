"""Memory windows: access to a part of a region, given and taken away. Type 1 by a call, type 2 by a request."""

import pyverbs.enums as e
from common import ACCESS, End, run
from pyverbs.base import inc_rkey
from pyverbs.mr import MW, MWBind, MWBindInfo
from pyverbs.wr import SendWR

REMOTE_WRITE = e.IBV_ACCESS_REMOTE_WRITE


def server(link):
    end = End(access=ACCESS | e.IBV_ACCESS_MW_BIND)
    assert end.ctx.query_device().device_cap_flags & e.IBV_DEVICE_MEM_WINDOW
    end.connect(link.swap(**end.card()))
    link.barrier()

    first = MW(end.pd, e.IBV_MW_TYPE_1)
    info = MWBindInfo(end.mr, end.mr.buf, 64, REMOTE_WRITE)
    end.qp.bind_mw(first, MWBind(info, e.IBV_SEND_SIGNALED))
    assert end.completions()[0].opcode == e.IBV_WC_BIND_MW
    link.swap(rkey=first.rkey, addr=end.mr.buf)
    assert end.mr.read(8, 0) == b"window 1"

    second = MW(end.pd, e.IBV_MW_TYPE_2)
    bind = SendWR(wr_id=2, opcode=e.IBV_WR_BIND_MW)
    bind.set_bind_wr(second, MWBindInfo(end.mr, end.mr.buf + 64, 64, REMOTE_WRITE))
    end.qp.post_send(bind)
    end.completions()
    key = inc_rkey(second.rkey)
    link.swap(rkey=key, addr=end.mr.buf + 64)
    assert end.mr.read(8, 64) == b"window 2"

    invalidate = SendWR(wr_id=3, opcode=e.IBV_WR_LOCAL_INV)
    invalidate.imm_data = key  # the two share a word in struct ibv_send_wr
    end.qp.post_send(invalidate)
    assert end.completions()[0].opcode == e.IBV_WC_LOCAL_INV
    link.swap(rkey=key, addr=end.mr.buf + 64)
    first.close()
    second.close()
    end.close()


def client(link):
    end = End()
    end.connect(link.swap(**end.card()))
    link.barrier()
    for text, status in (
        ("window 1", e.IBV_WC_SUCCESS),
        ("window 2", e.IBV_WC_SUCCESS),
        ("too late", e.IBV_WC_REM_ACCESS_ERR),
    ):
        window = link.receive()
        end.mr.write(text, len(text))
        end.rdma(e.IBV_WR_RDMA_WRITE, window, len(text))
        end.completions(1, status)
        link.send(done=True)
    assert end.qp.qp_state == e.IBV_QPS_ERR
    end.close()
    print("memory_windows: two windows written through, the second closed in time")


if __name__ == "__main__":
    run(server, client)
