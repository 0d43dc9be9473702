"""Two connected RC queue pairs with a region each, for the tests here."""

from __future__ import annotations

import sys
from typing import Any

from fauxrdma.hca.work_queue import SendWqe
from fauxrdma.ib.enums import (
    IBV_WR_ATOMIC_CMP_AND_SWP,
    IBV_WR_ATOMIC_FETCH_AND_ADD,
    IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM,
    IBV_WR_SEND,
)
from fauxrdma.sim.world import SimQp, World

SIZE = 20_000
WRITE, READ, SEND = int(IBV_WR_RDMA_WRITE), int(IBV_WR_RDMA_READ), int(IBV_WR_SEND)
WRITE_IMM = int(IBV_WR_RDMA_WRITE_WITH_IMM)
CMP, ADD = int(IBV_WR_ATOMIC_CMP_AND_SWP), int(IBV_WR_ATOMIC_FETCH_AND_ADD)
MASK = (1 << 64) - 1


class RcRig:
    """`a` works on the region `his` of `b`, with `mine` as local memory. Attributes go to World.connect."""

    def __init__(self, world: World | None = None, his_access: int = 31, **attributes: Any) -> None:
        self.world = world or World(2, seed=5)
        self.a, self.b = self.world.pair(**attributes)
        self.mine, self.my_bytes = self.world.hcas[0].alloc(SIZE)
        self.his, self.his_bytes = self.world.hcas[1].alloc(SIZE, his_access)

    def post(self, opcode: int, wr_id: int = 1, length: int = 8, qp: SimQp | None = None, **fields: Any) -> None:
        """Post a request on `a` (or `qp`): local memory from the start of `mine`, remote from the start of `his`."""
        at = self.mine.base + fields.pop("at", 0)
        sges = fields.pop("sges", ((at, length, self.mine.lkey),))
        values = {"flags": 2, "remote_addr": self.his.base, "rkey": self.his.rkey, **fields}
        (qp or self.a).post_send(SendWqe(0, wr_id, opcode, sges=sges, **values))

    def run(self) -> None:
        self.world.run()

    def statuses(self) -> list[int]:
        return [int(wc.status) for wc in self.a.completions]

    def word(self, offset: int = 0) -> int:
        return int.from_bytes(self.his_bytes[offset : offset + 8], sys.byteorder)

    def set_word(self, value: int, offset: int = 0) -> None:
        self.his_bytes[offset : offset + 8] = value.to_bytes(8, sys.byteorder)

    def returned(self, offset: int = 0) -> int:
        return int.from_bytes(self.my_bytes[offset : offset + 8], sys.byteorder)
