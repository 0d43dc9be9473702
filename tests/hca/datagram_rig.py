"""UD queue pairs of a simulated world, for the tests here."""

from __future__ import annotations

from typing import Any

from fauxrdma.hca.work_queue import SendWqe
from fauxrdma.ib.attributes import AHAttr, QPAttr
from fauxrdma.ib.enums import IBV_QPT_UD, IBV_SEND_SIGNALED, IBV_WR_SEND, Mtu
from fauxrdma.sim.world import SimHca, SimQp, World
from fauxrdma.wire.grh import gid_text

QKEY = 0x11111111
SIZE = 8192


class Station:
    """A UD queue pair in RTS with a region that it sends from and receives into."""

    def __init__(self, world: World, at: int, qkey: int = QKEY, **attributes: Any) -> None:
        self.world = world
        self.hca: SimHca = world.hcas[at]
        self.qp: SimQp = self.hca.create_qp(qp_type=IBV_QPT_UD)
        self.region, self.data = self.hca.alloc(2 * SIZE)
        self.data[:SIZE] = world.rng.randbytes(SIZE)
        attr = QPAttr(qkey=qkey, sq_psn=world.rng.getrandbits(24), path_mtu=Mtu.IBV_MTU_1024, **attributes)
        world.bring_up(self.qp, attr)

    @property
    def qpn(self) -> int:
        return self.qp.qp.qpn

    @property
    def inbox(self) -> bytes:
        return bytes(self.data[SIZE:])

    def ah(self, to: Station, **fields: Any) -> int:
        return self.hca.create_ah(AHAttr(to.hca.lid, **fields))

    def global_ah(self, to: Station, **fields: Any) -> int:
        return self.ah(to, is_global=True, dgid=gid_text(to.hca.engine.port.gids[0][0]), **fields)

    def post(self, ah: int, qpn: int, length: int = 100, wr_id: int = 1, **fields: Any) -> None:
        values: dict[str, Any] = {"opcode": IBV_WR_SEND, "flags": int(IBV_SEND_SIGNALED), "qkey": QKEY, **fields}
        sges = values.pop("sges", ((self.region.base, length, self.region.lkey),))
        opcode, flags, qkey = values.pop("opcode"), values.pop("flags"), values.pop("qkey")
        self.qp.post_send(
            SendWqe(0, wr_id, opcode, flags, sges, compare_add=qpn, swap=qkey, handle=ah, **values)
        )  # fmt: skip

    def send(self, to: Station, length: int = 100, wr_id: int = 1, **fields: Any) -> None:
        self.post(self.ah(to), to.qpn, length, wr_id, **fields)

    def receive(self, wr_id: int = 7, length: int = SIZE) -> None:
        self.qp.post_recv(wr_id, ((self.region.base + SIZE, length, self.region.lkey),))

    @property
    def statuses(self) -> list[tuple[int, int]]:
        return [(wc.wr_id, int(wc.status)) for wc in self.qp.completions]
