"""A message of 2^31 bytes between two daemons, and one byte more. The memory is 64 MiB, mapped over and over."""

from __future__ import annotations

import random

from looped_memory import looped
from pairs import ACCESS, End

from fauxrdma.ib.enums import IBV_WC_LOC_LEN_ERR, IBV_WC_SUCCESS
from fauxrdma.verbs import MR, SGE

MOST = 1 << 31
PART = 1 << 26


def test_the_longest_message(pair: tuple[End, End]) -> None:
    a, b = pair
    source, target = looped(MOST + PART, PART), looped(MOST + PART, PART)
    source[:PART] = random.Random(7).randbytes(PART)
    with MR.over(a.pd, source, ACCESS) as mine, MR.over(b.pd, target, ACCESS) as his:
        sges = [SGE(mine.buf, 5, mine.lkey), SGE(mine.buf + 5, MOST - 5, mine.lkey)]
        a.qp.post_send(a.write(b, 0, sg=sges, remote_addr=his.buf, rkey=his.rkey))
        assert a.wait()[0].status == IBV_WC_SUCCESS
        assert target[:PART] == source[:PART]
        sges[1].length += 1
        a.qp.post_send(a.write(b, 0, sg=sges, remote_addr=his.buf, rkey=his.rkey))
        assert a.wait()[0].status == IBV_WC_LOC_LEN_ERR
