"""A client as with rdma_cm: `cm_client.py GID PORT WORD...` connects to cm_server.py and prints what it answers."""

import sys

from fauxrdma.verbs import QPCap, QPInitAttr
from fauxrdma.verbs.cm import CMID, AddrInfo, ConnParam

SIZE = 256
gid, port, *words = sys.argv[1:]

with CMID(AddrInfo(dst=gid, dst_service=port), QPInitAttr(cap=QPCap(4, 4))) as server:
    message, answer = server.reg_msgs(SIZE), server.reg_msgs(SIZE)
    server.connect(ConnParam(private_data=b"the client"))
    print("accepted by", server.private_data.rstrip(b"\0").decode())
    for word in words:
        message.view[:] = word.encode().ljust(SIZE, b"\0")
        server.post_recv(answer)
        server.post_send(message)
        server.get_send_comp()
        server.get_recv_comp()
        print(bytes(answer.view).rstrip(b"\0").decode())
    message.view[:] = bytes(SIZE)
    server.post_send(message)
    server.get_send_comp()
    server.disconnect()
