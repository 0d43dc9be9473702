"""What goes wrong and how it is said: states, full queues, bad keys, missing features."""

import errno
import os

import pyverbs.enums as e
from common import End, run
from pyverbs.mr import MR
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QPAttr, QPCap
from pyverbs.wr import SendWR
from pyverbs.xrcd import XRCD, XRCDInitAttr


def refused(code, words, call, *args):
    """Assert that a call fails with this errno and these words."""
    try:
        call(*args)
    except PyverbsRDMAError as error:
        assert error.error_code == code, error
        assert words in str(error) and os.strerror(code) in str(error), error
    else:
        raise AssertionError(f"{call} was not refused")


def server(link):
    end = End()
    end.connect(link.swap(**end.card()))
    link.barrier()
    link.barrier()
    end.close()
    end.close()  # as often as one likes


def client(link):
    end = End(cap=QPCap(max_send_wr=2, max_recv_wr=1))
    card = link.swap(**end.card())
    refused(errno.EINVAL, "Failed to modify QP", end.qp.modify, QPAttr(qp_state=e.IBV_QPS_RTS), e.IBV_QP_STATE)
    end.connect(card)
    link.barrier()

    end.post_recv()
    refused(errno.ENOMEM, "Failed to post recv", end.post_recv)
    two_pieces = SendWR(wr_id=2, num_sge=2, sg=[end.sge(8), end.sge(8)])
    bad = SendWR(num_sge=1, sg=[end.sge(8)])
    refused(errno.EINVAL, "Failed to post send", end.qp.post_send, two_pieces, bad)
    assert bad.wr_id == 2

    refused(errno.EINVAL, "Failed to register a MR", MR, end.pd, 64, e.IBV_ACCESS_REMOTE_WRITE)
    refused(errno.EOPNOTSUPP, "Failed to allocate XRCD", XRCD, end.ctx, XRCDInitAttr(3, os.O_CREAT, -1))

    end.rdma(e.IBV_WR_RDMA_WRITE, {**card, "rkey": card["rkey"] ^ 1}, 8)
    end.completions(1, e.IBV_WC_REM_ACCESS_ERR)
    end.completions(1, e.IBV_WC_WR_FLUSH_ERR)  # the receive
    assert end.qp.qp_state == e.IBV_QPS_ERR
    end.qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
    assert end.qp.query(e.IBV_QP_STATE)[0].qp_state == e.IBV_QPS_RESET
    link.barrier()
    end.close()
    print("errors: refused as expected")


if __name__ == "__main__":
    run(server, client)
