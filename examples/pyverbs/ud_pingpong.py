"""Ping-pong of datagrams (UD): 40 bytes of routing header in front of each, and the answer goes to where it came
from."""

import pyverbs.enums as e
from common import PORT, QKEY, End, run
from pyverbs.addr import AH
from pyverbs.wr import SendWR

ITERATIONS = 10
GRH_BYTES = 40


def post(end, ah, qpn, text):
    end.mr.write(text, len(text), 2048)
    wr = SendWR(wr_id=2, num_sge=1, sg=[end.sge(len(text), 2048)])
    wr.set_wr_ud(ah, qpn, QKEY)
    end.qp.post_send(wr)


def datagram(end):
    """The next one: its completion and its text."""
    wc = end.completions()[0]
    assert wc.wc_flags & e.IBV_WC_GRH
    return wc, end.mr.read(wc.byte_len - GRH_BYTES, GRH_BYTES)


def server(link):
    end = End(e.IBV_QPT_UD)
    end.post_recv()
    link.swap(**end.card())
    for i in range(ITERATIONS):
        wc, text = datagram(end)
        assert text == f"ping {i}".encode(), text
        with AH(end.pd, wc=wc, grh=end.mr.buf, port_num=PORT) as back:
            end.post_recv()
            post(end, back, wc.src_qp, f"pong {i}")
            end.completions()
    link.barrier()
    end.close()


def client(link):
    end = End(e.IBV_QPT_UD)
    card = link.swap(**end.card())
    with AH(end.pd, attr=end.path_to(card)) as ah:
        for i in range(ITERATIONS):
            end.post_recv()
            post(end, ah, card["qpn"], f"ping {i}")
            sent = end.completions()[0]
            assert sent.opcode == e.IBV_WC_SEND, sent
            wc, text = datagram(end)
            assert text == f"pong {i}".encode() and wc.src_qp == card["qpn"], text
        link.barrier()
    end.close()
    print(f"ud_pingpong: {ITERATIONS} round trips")


if __name__ == "__main__":
    run(server, client)
