"""The extended interfaces: requests built by calls (QPEx), completions read field by field (CQEX)."""

import errno
import time

from common import PATIENCE_S, End, run
from pyverbs.cq import CQEX, CqInitAttrEx, PollCqAttr
from pyverbs.libibverbs_enums import (
    ibv_create_cq_wc_flags,
    ibv_qp_create_send_ops_flags,
    ibv_qp_init_attr_mask,
    ibv_send_flags,
    ibv_wc_opcode,
    ibv_wc_status,
)
from pyverbs.qp import DataBuffer, QPCap, QPEx, QPInitAttrEx

OPERATIONS = (
    ibv_qp_create_send_ops_flags.IBV_QP_EX_WITH_RDMA_WRITE
    | ibv_qp_create_send_ops_flags.IBV_QP_EX_WITH_SEND
    | ibv_qp_create_send_ops_flags.IBV_QP_EX_WITH_SEND_WITH_IMM
    | ibv_qp_create_send_ops_flags.IBV_QP_EX_WITH_RDMA_READ
)
FIELDS = (
    ibv_create_cq_wc_flags.IBV_WC_EX_WITH_BYTE_LEN
    | ibv_create_cq_wc_flags.IBV_WC_EX_WITH_IMM
    | ibv_create_cq_wc_flags.IBV_WC_EX_WITH_QP_NUM
    | ibv_create_cq_wc_flags.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
)


class ExtendedEnd(End):
    """An end whose queues are the extended ones."""

    def make_cq(self):
        return CQEX(self.ctx, CqInitAttrEx(cqe=64, wc_flags=FIELDS))

    def make_qp(self, cap):
        mask = ibv_qp_init_attr_mask.IBV_QP_INIT_ATTR_PD | ibv_qp_init_attr_mask.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
        init = QPInitAttrEx(
            qp_type=self.qp_type, scq=self.cq, rcq=self.cq, pd=self.pd, comp_mask=mask, send_ops_flags=OPERATIONS,
            cap=QPCap(max_send_wr=16, max_recv_wr=16, max_inline_data=64),
        )  # fmt: skip
        return QPEx(self.ctx, init, self.attributes())

    def read(self, count):
        """`count` completions as (opcode, wr_id, byte_len, imm_data)."""
        found = []
        deadline = time.monotonic() + PATIENCE_S
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} completions"
            result = self.cq.start_poll(PollCqAttr())
            if result == errno.ENOENT:
                continue
            while result == 0 and len(found) < count:
                assert self.cq.status == ibv_wc_status.IBV_WC_SUCCESS
                assert self.cq.read_qp_num() == self.qp.qp_num and self.cq.read_timestamp() > 0
                found.append((self.cq.read_opcode(), self.cq.wr_id, self.cq.read_byte_len(), self.cq.read_imm_data()))
                result = self.cq.poll_next() if len(found) < count else errno.ENOENT
            self.cq.end_poll()
        return found


def server(link):
    end = ExtendedEnd()
    end.post_recv(7)
    end.connect(link.swap(**end.card()))
    link.barrier()
    ((opcode, wr_id, length, imm),) = end.read(1)
    assert (opcode, wr_id, length) == (ibv_wc_opcode.IBV_WC_RECV, 7, 10), (opcode, wr_id, length)
    assert int.from_bytes(imm.to_bytes(4, "little"), "big") == 0x1234
    assert end.mr.read(10, 0) == b"inline+sge"[:10]
    assert end.mr.read(7, 1000) == b"written"
    link.barrier()
    end.close()


def client(link):
    end = ExtendedEnd()
    card = link.swap(**end.card())
    end.connect(card)
    link.barrier()
    end.mr.write("written", 7)
    end.mr.write("inline+sge", 10, 100)
    end.qp.wr_start()
    end.qp.wr_id, end.qp.wr_flags = 1, ibv_send_flags.IBV_SEND_SIGNALED
    end.qp.wr_rdma_write(card["rkey"], card["addr"] + 1000)
    end.qp.wr_set_sge(end.sge(7))
    end.qp.wr_id = 2
    end.qp.wr_send_imm(0x1234)
    pieces = [DataBuffer(end.mr.buf + 100, 7), DataBuffer(end.mr.buf + 107, 3)]
    end.qp.wr_flags = ibv_send_flags.IBV_SEND_SIGNALED | ibv_send_flags.IBV_SEND_INLINE
    end.qp.wr_set_inline_data_list(2, pieces)
    end.qp.wr_complete()
    assert [(opcode, wr_id) for opcode, wr_id, _, _ in end.read(2)] == [
        (ibv_wc_opcode.IBV_WC_RDMA_WRITE, 1),
        (ibv_wc_opcode.IBV_WC_SEND, 2),
    ]
    end.qp.wr_start()
    end.qp.wr_rdma_read(card["rkey"], card["addr"])
    end.qp.wr_abort()
    assert end.cq.start_poll(PollCqAttr()) == errno.ENOENT
    link.barrier()
    end.close()
    print("extended_qp_cq: written and sent in one batch, another batch given up")


if __name__ == "__main__":
    run(server, client)
