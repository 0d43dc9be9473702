"""Rank 0 writes a greeting into rank 1's memory; rank 1's program takes no part in it.

fauxrdma run fat-tree --nodes 2 --gpus 1 -- examples/hello_rdma_write.py
"""

import os
import pickle

from fauxrdma.communicator import RendezvousStore
from fauxrdma.ib.enums import IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE, IBV_SEND_SIGNALED, IBV_WR_RDMA_WRITE
from fauxrdma.verbs import CQ, MR, PD, QP, SGE, CompChannel, Context, QPCap, QPInitAttr, SendWR

rank = int(os.environ["RANK"])
peer = 1 - rank
with RendezvousStore.from_env() as store, Context() as ctx:  # closing the context closes all that is made from it
    pd = PD(ctx)
    cq = CQ(ctx, 16, None, CompChannel(ctx))
    qp = QP(pd, QPInitAttr(scq=cq, rcq=cq, cap=QPCap(max_send_wr=1, max_recv_wr=1)))
    mr = MR(pd, 64, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)

    store.set(f"hello/{rank}", pickle.dumps((qp.endpoint(), mr.buf, mr.rkey)))
    endpoint, address, rkey = pickle.loads(store.get(f"hello/{peer}"))
    qp.connect(endpoint)
    store.set(f"connected/{rank}", b"")
    store.get(f"connected/{peer}")

    if rank == 0:
        mr.write(b"Hello from rank 0!", 18)
        write = SendWR(1, IBV_WR_RDMA_WRITE, [SGE(mr.buf, 18, mr.lkey)], 0, IBV_SEND_SIGNALED, address, rkey)
        qp.post_send(write)
        (completion,) = cq.wait(1)
        store.set("written", str(completion.status).encode())
    else:
        print(f"completion status {store.get('written').decode()}, memory holds {mr.read(18, 0).decode()!r}")
