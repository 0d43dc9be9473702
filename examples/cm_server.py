"""A server as with rdma_cm: it listens, accepts one connection, answers each message with the same in capitals,
until an empty one.

Start a fabric, then this on one node and cm_client.py on another (or the same):

    FAUXRDMA_SOCKET=.../hca-1.sock python examples/cm_server.py
    FAUXRDMA_SOCKET=.../hca-0.sock python examples/cm_client.py GID PORT hello world
"""

from fauxrdma.verbs import QPCap, QPInitAttr
from fauxrdma.verbs.cm import CMID, AddrInfo, ConnParam
from fauxrdma.verbs.cm.parameters import RAI_PASSIVE

SIZE = 256

with CMID(AddrInfo(flags=RAI_PASSIVE), QPInitAttr(cap=QPCap(4, 4))) as listener:
    listener.listen()
    print(listener.context.query_gid_table()[-1].gid, listener.port, flush=True)
    with listener.get_request() as peer:
        print("asked by", peer.private_data.rstrip(b"\0").decode())
        request, answer = peer.reg_msgs(SIZE), peer.reg_msgs(SIZE)
        peer.post_recv(request)
        peer.accept(ConnParam(private_data=b"the server in capitals"))
        while peer.get_recv_comp() and (word := bytes(request.view).rstrip(b"\0")):
            answer.view[:] = word.upper().ljust(SIZE, b"\0")
            peer.post_recv(request)
            peer.post_send(answer)
            peer.get_send_comp()
        peer.wait_disconnected()
        print("parted")
