"""Fetch-and-add and compare-and-swap on the other side's memory."""

import pyverbs.enums as e
from common import End, run
from pyverbs.wr import SendWR

ADDS = 5


def word(end, offset):
    return int.from_bytes(end.mr.read(8, offset), "little")


def server(link):
    end = End()
    assert end.ctx.query_device().atomic_caps != e.IBV_ATOMIC_NONE
    end.mr.write((100).to_bytes(8, "little"), 8)
    end.connect(link.swap(**end.card()))
    link.barrier()
    link.barrier()  # the client is done
    assert word(end, 0) == 7, word(end, 0)
    end.close()


def client(link):
    end = End()
    card = link.swap(**end.card())
    end.connect(card)
    link.barrier()

    def atomic(opcode, compare_add, swap=0):
        """What was there before."""
        wr = SendWR(wr_id=1, opcode=opcode, num_sge=1, sg=[end.sge(8)])
        wr.set_wr_atomic(card["rkey"], card["addr"], compare_add, swap)
        end.qp.post_send(wr)
        end.completions()
        return word(end, 0)

    before = [atomic(e.IBV_WR_ATOMIC_FETCH_AND_ADD, 1) for _ in range(ADDS)]
    assert before == [100, 101, 102, 103, 104], before
    assert atomic(e.IBV_WR_ATOMIC_CMP_AND_SWP, 1, 9) == 105  # not equal: stays
    assert atomic(e.IBV_WR_ATOMIC_CMP_AND_SWP, 105, 7) == 105
    assert atomic(e.IBV_WR_ATOMIC_FETCH_AND_ADD, 0) == 7
    link.barrier()
    end.close()
    print(f"atomics: {ADDS} additions, 2 swaps")


if __name__ == "__main__":
    run(server, client)
