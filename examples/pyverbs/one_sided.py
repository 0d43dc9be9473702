"""RDMA WRITE, WRITE with immediate and READ: the other side's memory, without its program."""

from socket import htonl, ntohl

from common import End, run
from pyverbs.libibverbs_enums import ibv_wc_flags, ibv_wc_opcode, ibv_wr_opcode


def server(link):
    end = End()
    end.mr.write("written by the server", 21, 1024)
    end.post_recv()
    end.connect(link.swap(**end.card()))
    link.barrier()
    wc = end.completions()[0]
    assert wc.opcode == ibv_wc_opcode.IBV_WC_RECV_RDMA_WITH_IMM
    assert wc.wc_flags & ibv_wc_flags.IBV_WC_WITH_IMM and ntohl(wc.imm_data) == 21
    assert end.mr.read(21, 0) == b"written by the client"
    link.barrier()
    end.close()


def client(link):
    end = End()
    card = link.swap(**end.card())
    end.connect(card)
    link.barrier()
    end.mr.write("written by the client", 21)
    end.rdma(ibv_wr_opcode.IBV_WR_RDMA_WRITE, card, 21)
    end.rdma(ibv_wr_opcode.IBV_WR_RDMA_WRITE_WITH_IMM, card, 21, imm_data=htonl(21))
    end.rdma(ibv_wr_opcode.IBV_WR_RDMA_READ, {**card, "addr": card["addr"] + 1024}, 21, 512)
    kinds = [wc.opcode for wc in end.completions(3)]
    assert kinds == [ibv_wc_opcode.IBV_WC_RDMA_WRITE] * 2 + [ibv_wc_opcode.IBV_WC_RDMA_READ], kinds
    assert end.mr.read(21, 512) == b"written by the server"
    link.barrier()
    end.close()
    print("one_sided: written, written with immediate, read")


if __name__ == "__main__":
    run(server, client)
