"""Memory on the device itself: allocated, filled by the host, written and read by the other side."""

import errno

import pyverbs.enums as e
from common import ACCESS, End, run
from pyverbs.device import DM, AllocDmAttr
from pyverbs.mr import DMMR
from pyverbs.pyverbs_error import PyverbsRDMAError

SIZE = 1024


def server(link):
    end = End()
    assert end.ctx.query_device_ex().max_dm_size >= SIZE
    with DM(end.ctx, AllocDmAttr(SIZE)) as dm:
        dm.copy_to_dm(0, b"on the device...", 16)
        region = DMMR(end.pd, SIZE, ACCESS | e.IBV_ACCESS_ZERO_BASED, dm=dm, offset=0)
        end.connect(link.swap(**{**end.card(), "addr": 0, "rkey": region.rkey}))
        link.barrier()
        link.barrier()  # the client is done
        assert dm.copy_from_dm(64, 16) == b"from the client."
        assert region.read(16, 64) == b"from the client."
        region.close()
    end.close()


def client(link):
    end = End()
    card = link.swap(**end.card())
    end.connect(card)
    link.barrier()
    end.rdma(e.IBV_WR_RDMA_READ, card, 16)
    end.completions()
    assert end.mr.read(16, 0) == b"on the device..."
    end.mr.write("from the client.", 16)
    end.rdma(e.IBV_WR_RDMA_WRITE, {**card, "addr": 64}, 16)
    end.completions()
    link.barrier()
    try:
        with DM(end.ctx, AllocDmAttr(SIZE)) as dm:
            dm.copy_from_dm(1, 4)
    except PyverbsRDMAError as error:
        assert error.error_code == errno.EINVAL and "Failed to copy from dm" in str(error), error
    else:
        raise AssertionError("an unaligned copy was taken")
    end.close()
    print(f"device_memory: {SIZE} bytes of it, read and written by the other side")


if __name__ == "__main__":
    run(server, client)
