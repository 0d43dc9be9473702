"""Two RC queue pairs as a Hypothesis state machine: any order of posting, time passing, faults, and resets.

Whatever happens, a WRITE takes effect exactly once and in order, atomics count exactly once, every signaled request
completes once and in order, nothing completes that a RESET dropped, and what a RESET leaves is a prefix of what was
posted.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fauxrdma.hca.work_queue import SendWqe
from fauxrdma.ib.attributes import QPAttr
from fauxrdma.ib.enums import (
    IBV_QP_STATE,
    IBV_QPS_RESET,
    IBV_QPS_RTS,
    IBV_WC_SUCCESS,
    IBV_WR_ATOMIC_FETCH_AND_ADD,
    IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM,
    IBV_WR_SEND,
)
from fauxrdma.sim.world import LinkFaults, World

SLOT = 10_000
SLOTS = 40
CALM = LinkFaults()


class TwoQueuePairs(RuleBasedStateMachine):
    @initialize(
        seed=st.integers(0, 2**32),
        burst=st.sampled_from([4096, 8192, 65536]),
        psn=st.sampled_from([0, 0xFFFFF0]),
        express=st.booleans(),
    )
    def connect(self, seed: int, burst: int, psn: int, express: bool) -> None:
        self.world = World(2, seed=seed, burst=burst, express=express)
        self.a, self.b = self.world.hcas[0].create_qp(sq_sig_all=False), self.world.hcas[1].create_qp()
        self.psn = psn
        self.mine, self.my_bytes = self.world.hcas[0].alloc(SLOT * SLOTS)
        self.his, self.his_bytes = self.world.hcas[1].alloc(SLOT * SLOTS, 15)
        self.counter, self.counter_bytes = self.world.hcas[1].alloc(8, 15)
        self.originals, self.original_bytes = self.world.hcas[0].alloc(8 * SLOTS * 4)
        self.inbox, self.inbox_bytes = self.world.hcas[1].alloc(SLOT)
        self.stamp = 0
        self.begin()

    def begin(self) -> None:
        """A new connection: nothing is posted, nothing is outstanding."""
        self.world.connect(
            self.a, self.b, sq_psn=self.psn, rq_psn=self.psn, retry_cnt=7, rnr_retry=7, timeout=4, min_rnr_timer=1,
            qp_access_flags=15,
        )  # fmt: skip
        self.posted: list[dict[str, Any]] = []
        self.signaled: list[int] = []
        self.receives = 0
        self.wanted = 0
        self.seen_a, self.seen_b = len(self.a.completions), len(self.b.completions)
        self.base_count = int.from_bytes(self.counter_bytes, "little")

    # ---- what may happen -----------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.posted) < SLOTS)
    @rule(
        kind=st.sampled_from(["write", "write", "write_imm", "send", "read", "add"]),
        length=st.one_of(st.integers(1, 100), st.sampled_from([4096, 4097, SLOT])),
        signaled=st.booleans(),
        fence=st.booleans(),
    )
    def post(self, kind: str, length: int, signaled: bool, fence: bool) -> None:
        slot = len(self.posted)
        self.stamp = self.stamp % 250 + 1
        op = {"kind": kind, "slot": slot, "length": length, "stamp": self.stamp, "add": 0}
        flags = (2 if signaled else 0) | (1 if fence else 0)
        at = slot * SLOT
        local = (self.mine.base + at, length, self.mine.lkey)
        if kind in ("write", "write_imm", "send"):
            self.my_bytes[at : at + length] = bytes([self.stamp]) * length
        op["before"] = self.his_bytes[at]
        opcode, remote, rkey = IBV_WR_RDMA_WRITE, self.his.base + at, self.his.rkey
        if kind == "write_imm":
            opcode = IBV_WR_RDMA_WRITE_WITH_IMM
        elif kind == "send":
            opcode = IBV_WR_SEND
        elif kind == "read":
            opcode = IBV_WR_RDMA_READ
        elif kind == "add":
            opcode, remote, rkey = IBV_WR_ATOMIC_FETCH_AND_ADD, self.counter.base, self.counter.rkey
            op["add"] = self.stamp
            local = (self.originals.base + 8 * slot, 8, self.originals.lkey)
        if kind in ("write_imm", "send"):
            self.wanted += 1
        self.posted.append(op)
        if signaled:
            self.signaled.append(slot)
        self.a.post_send(SendWqe(0, slot, opcode, flags, (local,), remote, rkey, imm=slot, compare_add=op["add"]))

    @rule()
    def post_receive(self) -> None:
        self.b.post_recv(self.receives, ((self.inbox.base, SLOT, self.inbox.lkey),))
        self.receives += 1

    @rule(ns=st.sampled_from([100, 1000, 5000, 50_000, 1_000_000]))
    def time_passes(self, ns: int) -> None:
        # RNR NAKs are no progress: over a long wait in foul weather the timeouts add up to retry_cnt, rightly.
        while ns > 5000 and self.world.faults != CALM and self.receives < self.wanted:
            self.post_receive()
        until = self.world.now + ns
        reached: list[bool] = []
        self.world.at(until, lambda: reached.append(True))
        self.world.run(lambda: bool(reached))

    @rule(loss=st.floats(0, 0.06), duplicate=st.floats(0, 0.15), delay=st.floats(0, 0.15))
    def weather(self, loss: float, duplicate: float, delay: float) -> None:
        self.world.faults = LinkFaults(loss, duplicate, delay)

    @rule()
    def reset(self) -> None:
        """Both ends to RESET and connected anew, in the middle of whatever was going on."""
        attr = QPAttr()
        attr.qp_state = IBV_QPS_RESET
        for qp in (self.a, self.b):
            engine = qp.hca.engine
            self.world.perform(qp.hca, engine.modify_qp(qp.qp.qpn, attr, IBV_QP_STATE, self.world.now))
        self.check_completions()
        self.check_prefix()
        completed = len(self.a.completions), len(self.b.completions)
        # Old frames die out; none of them completes anything.
        self.world.faults = CALM
        self.world.run()
        assert (len(self.a.completions), len(self.b.completions)) == completed
        self.psn = (self.psn + (1 << 20)) & 0xFFFFFF
        self.begin()

    @rule()
    def settle(self) -> None:
        """Fair weather and enough receives: everything completes."""
        self.world.faults = CALM
        while self.receives < self.wanted:
            self.post_receive()
        self.world.run()
        assert not self.a.hca.engine._requesters[self.a.qp.qpn].wqes
        self.check_completions()
        done = [wc.wr_id for wc in self.a.completions[self.seen_a :]]
        assert done == self.signaled
        assert len(self.b.completions) - self.seen_b == self.wanted
        total = self.base_count
        for op in self.posted:
            at, n = op["slot"] * SLOT, op["length"]
            if op["kind"] in ("write", "write_imm"):
                assert self.his_bytes[at : at + n] == bytes([op["stamp"]]) * n
            elif op["kind"] == "read":
                assert self.my_bytes[at : at + n] == self.his_bytes[at : at + n]
            elif op["kind"] == "add":
                original = int.from_bytes(self.original_bytes[8 * op["slot"] :][:8], "little")
                assert original == total, "an atomic answered with a value that was not there when it ran"
                total += op["add"]
        assert int.from_bytes(self.counter_bytes, "little") == total

    # ---- what must hold ------------------------------------------------------------------------------------------

    def check_completions(self) -> None:
        mine = self.a.completions[self.seen_a :]
        assert [wc.status for wc in mine if wc.status != IBV_WC_SUCCESS] == [], chr(10).join(self.world.trace[-90:])
        ids = [wc.wr_id for wc in mine]
        assert ids == self.signaled[: len(ids)]
        his = self.b.completions[self.seen_b :]
        assert [wc.wr_id for wc in his] == list(range(len(his)))
        assert all(wc.status == IBV_WC_SUCCESS for wc in his)

    def check_prefix(self) -> None:
        """The effects at the peer are those of the first so many requests, the last of them perhaps in part."""
        count = int.from_bytes(self.counter_bytes, "little") - self.base_count
        running, counts = 0, [0]
        state = "done"
        reached = 0
        for op in self.posted:
            at, n, stamp = op["slot"] * SLOT, op["length"], op["stamp"]
            if op["kind"] == "add":
                running += op["add"]
                counts.append(running)
                continue
            if op["kind"] not in ("write", "write_imm"):
                continue
            now = self.his_bytes[at : at + n]
            full = now == bytes([stamp]) * n
            if state == "done" and full:
                reached = running
                continue
            if state == "done" and now[0] == stamp:
                reached = running
                state = "open"
                continue
            if state == "done":
                state = "open"
                continue
            assert not (full and op["before"] != stamp), "a later WRITE arrived before an earlier one"
        assert count in counts
        assert count >= reached

    @invariant()
    def both_are_up(self) -> None:
        if hasattr(self, "world"):
            assert self.a.qp.state == IBV_QPS_RTS, self.a.qp.last_error
            assert self.b.qp.state == IBV_QPS_RTS, self.b.qp.last_error

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.settle()


TwoQueuePairs.TestCase.settings = settings(deadline=None, stateful_step_count=30)
TestTwoQueuePairs = TwoQueuePairs.TestCase
