"""Memory windows in the engine: who may bind what, what a window grants, and how it is taken away."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from rc_rig import ADD, CMP, READ, SEND, SIZE, WRITE, RcRig

from fauxrdma.errors import VerbsError
from fauxrdma.ib.enums import (
    IBV_EVENT_QP_ACCESS_ERR,
    IBV_MW_TYPE_1,
    IBV_MW_TYPE_2,
    IBV_SEND_FENCE,
    IBV_WC_BIND_MW,
    IBV_WC_LOCAL_INV,
    IBV_WC_MW_BIND_ERR,
    IBV_WC_RECV,
    IBV_WC_REM_ACCESS_ERR,
    IBV_WC_SUCCESS,
    IBV_WC_WITH_INV,
    IBV_WC_WR_FLUSH_ERR,
    IBV_WR_BIND_MW,
    IBV_WR_LOCAL_INV,
    IBV_WR_SEND_WITH_INV,
)
from fauxrdma.memory.regions import MemoryRegion, ProtectionDomain
from fauxrdma.memory.windows import MemoryWindow
from fauxrdma.sim.world import SimQp, World

BIND, INV, SEND_INV = int(IBV_WR_BIND_MW), int(IBV_WR_LOCAL_INV), int(IBV_WR_SEND_WITH_INV)
REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC, ZERO_BASED = 2, 4, 8, 32


def new_key(rkey: int) -> int:
    return rkey & 0xFFFFFF00 | (rkey + 1) & 0xFF


class MwRig(RcRig):
    """`b` has a window, not bound, on the region `his`."""

    def __init__(self, mw_type: int = IBV_MW_TYPE_2, **fields: Any) -> None:
        super().__init__(**fields)
        self.keys = self.world.hcas[1].engine.keys
        self.mw = self.keys.windows.allocate(500, self.world.pds[2], mw_type)

    def bind(
        self,
        offset: int = 1000,
        length: int = 100,
        access: int = 14,
        *,
        wr_id: int = 9,
        qp: SimQp | None = None,
        mw: MemoryWindow | None = None,
        rkey: int | None = None,
        region: MemoryRegion | None = None,
        flags: int = 2,
    ) -> int:
        """Bind on b's queue pair; the new rkey."""
        mw = mw or self.mw
        region = region or self.his
        key = new_key(mw.rkey) if rkey is None else rkey
        self.post(
            BIND, wr_id, sges=(), qp=qp or self.b, flags=flags, rkey=key, handle=mw.handle, imm=region.lkey,
            remote_addr=region.base + offset, compare_add=length, swap=access,
        )  # fmt: skip
        self.run()
        return key

    def his_statuses(self) -> list[int]:
        return [int(wc.status) for wc in self.b.completions]


@pytest.mark.parametrize("mw_type", [IBV_MW_TYPE_1, IBV_MW_TYPE_2])
def test_a_bound_window_grants_its_range_and_no_byte_more(mw_type: int) -> None:
    for offset, length, granted in ((0, 100, True), (0, 101, False), (-1, 10, False), (99, 1, True), (100, 1, False)):
        rig = MwRig(mw_type)
        key = rig.bind()
        (wc,) = rig.b.completions
        assert (wc.wr_id, wc.status, wc.opcode) == (9, IBV_WC_SUCCESS, IBV_WC_BIND_MW)
        rig.my_bytes[:] = b"m" * SIZE
        rig.post(WRITE, 1, length, rkey=key, remote_addr=rig.his.base + 1000 + offset)
        rig.run()
        assert rig.statuses() == [IBV_WC_SUCCESS if granted else IBV_WC_REM_ACCESS_ERR]
        assert rig.his_bytes.count(b"m") == (length if granted else 0)
        if not granted:
            assert "leaves memory window [0x103e8, 0x1044c)" in rig.a.qp.last_error


@pytest.mark.parametrize(
    ("access", "opcode", "granted"),
    [
        (REMOTE_WRITE, WRITE, True), (REMOTE_READ, WRITE, False),
        (REMOTE_READ, READ, True), (REMOTE_WRITE, READ, False),
        (REMOTE_ATOMIC, ADD, True), (REMOTE_ATOMIC, CMP, True), (REMOTE_WRITE | REMOTE_READ, ADD, False),
    ],
)  # fmt: skip
def test_a_window_grants_what_its_bind_says(access: int, opcode: int, granted: bool) -> None:
    rig = MwRig()
    key = rig.bind(access=access)
    rig.post(opcode, rkey=key, remote_addr=rig.his.base + 1000)
    rig.run()
    assert rig.statuses() == [IBV_WC_SUCCESS if granted else IBV_WC_REM_ACCESS_ERR]


def test_a_region_that_grants_nothing_remote_is_opened_by_a_window() -> None:
    rig = MwRig(his_access=1 | 16)
    key = rig.bind()
    rig.post(WRITE, 1, rkey=key, remote_addr=rig.his.base + 1000)
    rig.post(WRITE, 2)  # the region's own key still grants nothing
    rig.run()
    assert rig.statuses() == [IBV_WC_SUCCESS, IBV_WC_REM_ACCESS_ERR]


def test_a_zero_based_window_begins_at_address_zero() -> None:
    rig = MwRig()
    key = rig.bind(access=REMOTE_WRITE | ZERO_BASED)
    rig.my_bytes[:4] = b"zero"
    rig.post(WRITE, 1, 4, rkey=key, remote_addr=96)
    rig.post(WRITE, 2, 4, rkey=key, remote_addr=rig.his.base + 1000)
    rig.run()
    assert rig.statuses() == [IBV_WC_SUCCESS, IBV_WC_REM_ACCESS_ERR]
    assert rig.his_bytes[1096:1100] == b"zero"


@pytest.mark.parametrize("mw_type", [IBV_MW_TYPE_1, IBV_MW_TYPE_2])
def test_a_window_that_was_never_bound_grants_nothing(mw_type: int) -> None:
    rig = MwRig(mw_type)
    rig.post(WRITE, rkey=rig.mw.rkey)
    rig.run()
    assert rig.statuses() == [IBV_WC_REM_ACCESS_ERR]
    assert "a memory window that is not bound" in rig.a.qp.last_error


def test_type_1_is_bound_again_under_a_new_key_and_zero_bytes_take_it_away() -> None:
    rig = MwRig(IBV_MW_TYPE_1)
    first = rig.bind(0, 100)
    second = rig.bind(500, 100)
    assert rig.his_statuses() == [IBV_WC_SUCCESS] * 2
    assert first != second
    rig.post(WRITE, 1, rkey=second, remote_addr=rig.his.base + 500)
    rig.run()
    rig.bind(0, 0)
    assert rig.his.windows == 0
    rig.post(WRITE, 2, rkey=second, remote_addr=rig.his.base + 500)
    rig.run()
    assert rig.statuses() == [IBV_WC_SUCCESS, IBV_WC_REM_ACCESS_ERR]
    rig = MwRig(IBV_MW_TYPE_1)
    first = rig.bind(0, 100)
    rig.bind(0, 100)
    rig.post(WRITE, rkey=first)
    rig.run()
    assert rig.statuses() == [IBV_WC_REM_ACCESS_ERR]


def test_type_2_must_be_invalidated_before_it_is_bound_again() -> None:
    rig = MwRig()
    key = rig.bind()
    rig.post(INV, 10, sges=(), qp=rig.b, rkey=key)
    rig.run()
    assert rig.b.completions[-1].opcode == IBV_WC_LOCAL_INV
    again = rig.bind()
    assert rig.his_statuses() == [IBV_WC_SUCCESS] * 3
    rig.post(WRITE, 1, rkey=again, remote_addr=rig.his.base + 1000)
    rig.run()
    assert rig.statuses() == [IBV_WC_SUCCESS]
    rig.bind()
    assert rig.his_statuses()[-1] == IBV_WC_MW_BIND_ERR
    assert "is bound already" in rig.b.qp.last_error


def test_local_invalidation_takes_the_access_away() -> None:
    rig = MwRig()
    key = rig.bind()
    rig.post(INV, 10, sges=(), qp=rig.b, rkey=key)
    rig.run()
    rig.post(WRITE, rkey=key, remote_addr=rig.his.base + 1000)
    rig.run()
    assert rig.statuses() == [IBV_WC_REM_ACCESS_ERR]


def test_a_type_2_window_belongs_to_its_queue_pair() -> None:
    rig = MwRig()
    c, d = rig.world.hcas[0].create_qp(), rig.world.hcas[1].create_qp()
    rig.world.connect(c, d)
    key = rig.bind()
    rig.post(WRITE, 1, qp=c, rkey=key, remote_addr=rig.his.base + 1000)
    rig.run()
    assert [wc.status for wc in c.completions] == [IBV_WC_REM_ACCESS_ERR]
    assert f"belongs to QP 0x{rig.b.qp.qpn:x}" in c.qp.last_error
    # A type 1 window serves every queue pair of its domain.
    rig = MwRig(IBV_MW_TYPE_1)
    c, d = rig.world.hcas[0].create_qp(), rig.world.hcas[1].create_qp()
    rig.world.connect(c, d)
    key = rig.bind()
    rig.post(WRITE, 1, qp=c, rkey=key, remote_addr=rig.his.base + 1000)
    rig.run()
    assert [wc.status for wc in c.completions] == [IBV_WC_SUCCESS]


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("no MW_BIND", "does not grant IBV_ACCESS_MW_BIND"),
        ("no local write", "need IBV_ACCESS_LOCAL_WRITE"),
        ("past the end", "leaves region"),
        ("before the start", "leaves region"),
        ("foreign key", "is not one of this window"),
        ("foreign domain", "another protection domain"),
        ("unknown lkey", "is not registered on this device"),
        ("unknown window", "there is no memory window 12345"),
        ("foreign window", "in the queue pair's protection domain"),
        ("nonsense access", "is not one a window can grant"),
        ("no bytes", "cannot be bound to zero bytes"),
    ],
)
def test_a_refused_bind_ends_the_queue_pair_and_grants_nothing(case: str, words: str) -> None:
    rig = MwRig(his_access={"no MW_BIND": 15, "no local write": 16}.get(case, 31))
    windows = rig.keys.windows
    fields: dict[str, Any] = {}
    if case == "past the end":
        fields = {"offset": SIZE - 99}
    elif case == "before the start":
        fields = {"offset": -1}
    elif case == "foreign key":
        fields = {"rkey": rig.mw.rkey ^ 0x100}
    elif case == "foreign domain":
        fields = {"region": rig.world.hcas[1].alloc(2000, 31, ProtectionDomain(77))[0]}
    elif case == "unknown lkey":
        fields = {"region": MemoryRegion(1, rig.world.pds[2], rig.his.base, SIZE, 31, memoryview(b""), lkey=0x1234)}
    elif case == "unknown window":
        fields = {"mw": MemoryWindow(12345, rig.world.pds[2], IBV_MW_TYPE_2, rig.mw.rkey)}
    elif case == "foreign window":
        fields = {"mw": windows.allocate(501, ProtectionDomain(77), IBV_MW_TYPE_2)}
    elif case == "nonsense access":
        fields = {"access": 64}
    elif case == "no bytes":
        fields = {"length": 0}
    rig.bind(**fields)
    assert rig.his_statuses() == [IBV_WC_MW_BIND_ERR]
    assert words in rig.b.qp.last_error
    assert rig.his.windows == 0
    assert rig.mw.region is None


def test_read_only_windows_need_no_local_write() -> None:
    rig = MwRig(his_access=16)
    key = rig.bind(access=REMOTE_READ)
    rig.post(READ, rkey=key, remote_addr=rig.his.base + 1000)
    rig.run()
    assert rig.statuses() == [IBV_WC_SUCCESS]


@pytest.mark.parametrize("burst", [4096, 65536])
def test_send_with_invalidate_delivers_takes_away_and_tells(burst: int) -> None:
    rig = MwRig(world=World(2, burst=burst))
    key = rig.bind()
    rig.b.post_recv(7, ((rig.his.base, 6000, rig.his.lkey),))
    rig.my_bytes[:5000] = b"x" * 5000
    rig.post(SEND_INV, 1, 5000, rkey=key)
    rig.run()
    assert rig.statuses() == [IBV_WC_SUCCESS]
    wc = rig.b.completions[-1]
    assert (wc.wr_id, wc.status, wc.opcode, wc.byte_len) == (7, IBV_WC_SUCCESS, IBV_WC_RECV, 5000)
    assert (wc.wc_flags, wc.imm_data) == (IBV_WC_WITH_INV, key)
    assert rig.his_bytes[:5000] == b"x" * 5000
    assert rig.mw.region is None
    rig.post(WRITE, 2, rkey=key, remote_addr=rig.his.base + 1000)
    rig.run()
    assert rig.statuses()[-1] == IBV_WC_REM_ACCESS_ERR


@pytest.mark.parametrize("case", ["region's rkey", "not bound", "stale", "type 1", "another queue pair's"])
def test_send_with_invalidate_of_what_may_not_be(case: str) -> None:
    rig = MwRig(IBV_MW_TYPE_1 if case == "type 1" else IBV_MW_TYPE_2)
    rig.b.post_recv(7, ((rig.his.base, 64, rig.his.lkey),))
    key = rig.his.rkey if case == "region's rkey" else rig.mw.rkey
    if case in ("type 1", "stale"):
        key = rig.bind() ^ (case == "stale")
    elif case == "another queue pair's":
        c, d = rig.world.hcas[0].create_qp(), rig.world.hcas[1].create_qp()
        rig.world.connect(c, d)
        key = rig.bind(qp=d)
    rig.post(SEND_INV, 1, 16, rkey=key)
    rig.run()
    assert rig.statuses() == [IBV_WC_REM_ACCESS_ERR]
    assert rig.his_statuses()[-1] == IBV_WC_WR_FLUSH_ERR
    assert rig.b.hca.async_events[-1].kind == IBV_EVENT_QP_ACCESS_ERR
    assert "SEND_WITH_INV" in rig.a.qp.last_error


@pytest.mark.parametrize("case", ["region's rkey", "not bound", "unknown"])
def test_local_invalidation_of_what_may_not_be(case: str) -> None:
    rig = MwRig()
    key = {"region's rkey": rig.his.rkey, "not bound": rig.mw.rkey, "unknown": 0x99}[case]
    rig.post(INV, 1, sges=(), qp=rig.b, rkey=key)
    rig.post(WRITE, 2, qp=rig.b)
    rig.run()
    assert rig.his_statuses() == [IBV_WC_MW_BIND_ERR, IBV_WC_WR_FLUSH_ERR]


def test_binds_happen_in_their_turn_and_fail_in_it() -> None:
    """A refused bind is told after what came before it, and flushes what comes after."""
    rig = MwRig()
    for i in range(3):
        rig.post(WRITE, i, SIZE, qp=rig.b, sges=((rig.his.base, SIZE, rig.his.lkey),), remote_addr=rig.mine.base,
                 rkey=rig.mine.rkey, flags=2 if i == 2 else 0)  # fmt: skip
    rig.b.qp.sq_sig_all = False
    rig.bind(wr_id=3)
    rig.post(READ, 4, qp=rig.b, remote_addr=rig.mine.base, rkey=rig.mine.rkey,
             sges=((rig.his.base, 8, rig.his.lkey),))  # fmt: skip
    rig.bind(wr_id=5)
    rig.post(SEND, 6, qp=rig.b)
    rig.run()
    assert [(wc.wr_id, int(wc.status)) for wc in rig.b.completions] == [
        (2, IBV_WC_SUCCESS), (3, IBV_WC_SUCCESS), (4, IBV_WC_SUCCESS),
        (5, IBV_WC_MW_BIND_ERR), (6, IBV_WC_WR_FLUSH_ERR),
    ]  # fmt: skip


def test_a_fenced_invalidation_waits_for_the_reads_before_it() -> None:
    for flags, at_once in ((2 | int(IBV_SEND_FENCE), False), (2, True)):
        rig = MwRig()
        key = rig.bind()
        rig.post(READ, 1, SIZE, qp=rig.b, remote_addr=rig.mine.base, rkey=rig.mine.rkey,
                 sges=((rig.his.base, SIZE, rig.his.lkey),))  # fmt: skip
        rig.post(INV, 2, sges=(), qp=rig.b, rkey=key, flags=flags)
        soon: list[int] = []  # before the answer to the READ can be back
        rig.world.at(rig.world.now + 1500, lambda soon=soon: soon.append(1))
        rig.world.run(lambda soon=soon: bool(soon))
        assert (rig.mw.region is None) is at_once
        rig.run()
        assert rig.mw.region is None
        assert [wc.wr_id for wc in rig.b.completions] == [9, 1, 2]


def test_the_region_stays_while_a_window_is_bound() -> None:
    rig = MwRig()
    key = rig.bind()
    with pytest.raises(VerbsError, match="1 memory windows are bound") as caught:
        rig.keys.deregister(rig.his)
    assert caught.value.errno == errno.EBUSY
    rig.keys.windows.free(rig.mw)
    rig.post(WRITE, rkey=key, remote_addr=rig.his.base + 1000)
    rig.run()
    assert rig.statuses() == [IBV_WC_REM_ACCESS_ERR]
    rig.keys.deregister(rig.his)
    rig.keys.windows.free(rig.mw)  # again: nothing


def test_destroying_the_queue_pair_takes_its_windows_away() -> None:
    rig = MwRig()
    rig.bind()
    rig.world.hcas[1].engine.destroy_qp(rig.b.qp.qpn)
    assert rig.mw.region is None
    assert rig.his.windows == 0


def test_windows_and_regions_never_share_a_key() -> None:
    rig = MwRig()
    windows = rig.keys.windows
    made = [windows.allocate(i, rig.world.pds[2], 1 + i % 2) for i in range(600, 900)]
    assert len({mw.rkey >> 8 for mw in made}) == len(made)
    regions = [rig.world.hcas[1].alloc(8)[0] for _ in range(100)]
    keys = {key >> 8 for region in regions for key in (region.lkey, region.rkey)}
    assert keys.isdisjoint({mw.rkey >> 8 for mw in made})
    with pytest.raises(VerbsError, match="3 is not a window type"):
        windows.allocate(1, rig.world.pds[2], 3)


def test_access_taken_away_in_the_middle_of_a_message_stops_it() -> None:
    """The rkey is looked up for every frame: what was granted at the first is not at the last."""
    rig = MwRig(world=World(2, burst=4096))
    key = rig.bind(0, SIZE)
    rig.my_bytes[:] = b"m" * SIZE
    rig.post(WRITE, 1, SIZE, rkey=key)
    rig.world.run(lambda: rig.his_bytes[4096:4097] == b"m")
    rig.post(INV, 2, sges=(), qp=rig.b, rkey=key)
    rig.run()
    assert rig.statuses() == [IBV_WC_REM_ACCESS_ERR]
    assert rig.his_bytes[-1] == 0


def test_a_read_whose_memory_goes_while_it_is_answered_is_refused() -> None:
    rig = MwRig(world=World(2, burst=4096))
    rig.his_bytes[:] = b"h" * SIZE
    rig.post(READ, 1, SIZE)
    rig.world.run(lambda: any("READ_RESPONSE_FIRST" in line for line in rig.world.trace))
    rig.keys.deregister(rig.his)
    rig.run()
    assert rig.statuses() == [IBV_WC_REM_ACCESS_ERR]
    assert rig.my_bytes[-1] == 0
