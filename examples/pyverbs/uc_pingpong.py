"""Ping-pong of SENDs over an unreliable connection (UC): nothing is acknowledged, nothing is sent again."""

import pyverbs.enums as e
from common import End, run

ITERATIONS = 10


def server(link):
    end = End(e.IBV_QPT_UC)
    end.post_recv()
    end.connect(link.swap(**end.card()))
    link.barrier()
    for i in range(ITERATIONS):
        end.completions()
        text = end.mr.read(8, 0)
        assert text == f"ping {i:03}".encode(), text
        end.post_recv()
        end.send(f"pong {i:03}")
        end.completions()
    link.barrier()
    end.close()


def client(link):
    end = End(e.IBV_QPT_UC)
    end.connect(link.swap(**end.card()))
    link.barrier()
    for i in range(ITERATIONS):
        end.post_recv()
        end.send(f"ping {i:03}")
        end.completions(2)
        text = end.mr.read(8, 0)
        assert text == f"pong {i:03}".encode(), text
    attr, init = end.qp.query(e.IBV_QP_STATE | e.IBV_QP_DEST_QPN)
    assert attr.qp_state == e.IBV_QPS_RTS and init.qp_type == e.IBV_QPT_UC
    link.barrier()
    end.close()
    print(f"uc_pingpong: {ITERATIONS} round trips")


if __name__ == "__main__":
    run(server, client)
