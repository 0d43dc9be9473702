"""Connections by the connection manager: a listener, a client that connects by address, messages, parting."""

import ipaddress

import pyverbs.cm_enums as ce
import pyverbs.enums as e
from common import PORT, find_gid, open_device, run
from pyverbs.cmid import CMID, AddrInfo, ConnParam
from pyverbs.qp import QPCap, QPInitAttr

MESSAGES = 3
SIZE = 64


def own_address():
    """On Ethernet the IP address that the last GID stands for, else the GID."""
    with open_device() as ctx:
        gid = ipaddress.IPv6Address(ctx.query_gid(PORT, find_gid(ctx, ctx.query_port(PORT))).gid)
    return str(gid.ipv4_mapped or gid)


def queues():
    return QPInitAttr(qp_type=e.IBV_QPT_RC, cap=QPCap(max_send_wr=4, max_recv_wr=4))


def server(link):
    address = own_address()
    info = AddrInfo(src=address, src_service="7471", port_space=ce.RDMA_PS_TCP, flags=ce.RAI_PASSIVE)
    with CMID(creator=info, qp_init_attr=queues()) as listener:
        listener.listen(backlog=1)
        link.send(address=address)
        with listener.get_request() as peer:
            messages = peer.reg_msgs(SIZE)
            peer.post_recv(messages)
            peer.accept(ConnParam())
            for _ in range(MESSAGES):
                wc = peer.get_recv_comp()
                assert wc.status == e.IBV_WC_SUCCESS, wc
                answer = messages.read(SIZE, 0).decode().upper()
                peer.post_recv(messages)
                messages.write(answer, SIZE)
                peer.post_send(messages)
                peer.get_send_comp()
            link.barrier()
            link.barrier()


def client(link):
    info = AddrInfo(dst=link.receive()["address"], dst_service="7471", port_space=ce.RDMA_PS_TCP)
    with CMID(creator=info, qp_init_attr=queues()) as peer:
        questions, answers = peer.reg_msgs(SIZE), peer.reg_msgs(SIZE)
        peer.post_recv(answers)
        peer.connect(ConnParam(retry=7, rnr_retry=7))
        attr, _ = peer.query_qp(e.IBV_QP_STATE)
        assert attr.qp_state == e.IBV_QPS_RTS
        for i in range(MESSAGES):
            text = f"message {i}".ljust(SIZE)
            questions.write(text, SIZE)
            peer.post_send(questions)
            peer.get_send_comp()
            assert peer.get_recv_comp().status == e.IBV_WC_SUCCESS
            assert answers.read(SIZE, 0).decode() == text.upper()
            peer.post_recv(answers)
        link.barrier()
        peer.disconnect()
        link.barrier()
    print(f"connection_manager: {MESSAGES} messages over a connection")


if __name__ == "__main__":
    run(server, client)
