"""What any transport must pass: verbs over it move the right bytes, once, in order, and fail as the specification says.

::

    class TestMyTransport(TransportConformance):
        @contextmanager
        def open_contexts(self):
            with my_devices() as (one, other):
                yield one, other

The statuses are those of IBTA vol. 1, 11.6.2; the operations of each kind of queue pair of its table 45.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fauxrdma.errors import VerbsError
from fauxrdma.ib.attributes import QPAttr
from fauxrdma.ib.enums import (
    IBV_ATOMIC_NONE,
    IBV_QP_STATE,
    IBV_QPS_ERR,
    IBV_QPT_RC,
    IBV_QPT_UC,
    IBV_QPT_UD,
    IBV_WC_LOC_LEN_ERR,
    IBV_WC_LOC_PROT_ERR,
    IBV_WC_RECV_RDMA_WITH_IMM,
    IBV_WC_REM_ACCESS_ERR,
    IBV_WC_REM_INV_REQ_ERR,
    IBV_WC_RETRY_EXC_ERR,
    IBV_WC_RNR_RETRY_EXC_ERR,
    IBV_WC_SUCCESS,
    IBV_WC_WITH_IMM,
    IBV_WC_WR_FLUSH_ERR,
    IBV_WR_ATOMIC_CMP_AND_SWP,
    IBV_WR_ATOMIC_FETCH_AND_ADD,
    IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM,
    IBV_WR_SEND,
    IBV_WR_SEND_WITH_IMM,
    QpType,
)
from fauxrdma.testing.end import End
from fauxrdma.testing.two_devices import TwoDevices, pattern
from fauxrdma.verbs import AH, SGE, Context, RecvWR, SendWR

__all__ = ["LENGTHS", "TransportConformance"]

LENGTHS = (0, 1, 7, 4095, 4096, 4097, 65536, 200_001)
"""Bytes of a message: about a packet, several, and more than a burst."""
_REGION = 1 << 18
_QKEY = 0x1234
_GRH_BYTES = 40

Make = Callable[..., End]
Two = tuple[End, End]


class TransportConformance(TwoDevices):
    """Derive a test class from it and say how to open two devices that reach each other. All of it is about what verbs
    promise; nothing is about how long it takes."""

    qp_types: tuple[QpType, ...] = (IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD)
    """The queue pairs that the transport has; of others, creating one must be refused."""
    send_with_immediate: bool = True
    """Whether a SEND may carry immediate data; if not, posting one must be refused."""

    @pytest.fixture
    def make(self, contexts: tuple[Context, Context]) -> Iterator[Make]:
        """`make(side, **options)`: an `End` of the first or the second device, closed after the test."""
        made: list[End] = []

        def one(side: int, **options: Any) -> End:
            made.append(End(contexts[side], **{"length": _REGION, **options}))
            return made[-1]

        yield one
        for end in reversed(made):
            end.close()

    @pytest.fixture
    def ends(self, make: Make) -> Two:
        """A connected RC queue pair on each."""
        a, b = make(0), make(1)
        a.connect(b, timeout=14, min_rnr_timer=1)
        return a, b

    # ---- bytes ---------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("nbytes", LENGTHS)
    def test_a_write_lands_where_it_was_sent_and_nowhere_else(self, ends: Two, nbytes: int) -> None:
        a, b = ends
        a.mr.write(pattern(_REGION, 1), _REGION)
        before = pattern(_REGION, 2)
        b.mr.write(before, _REGION)
        a.write(b, nbytes, offset=100)
        _all_succeed(a.wait())
        expected = before[:100] + pattern(_REGION, 1)[100 : 100 + nbytes] + before[100 + nbytes :]
        assert b.mr.read(_REGION, 0) == expected

    @pytest.mark.parametrize("nbytes", LENGTHS)
    def test_a_read_brings_what_is_there(self, ends: Two, nbytes: int) -> None:
        a, b = ends
        b.mr.write(pattern(_REGION, 3), _REGION)
        a.mr.write(bytes(_REGION), _REGION)
        a.post(IBV_WR_RDMA_READ, 1, nbytes, b, offset=9)
        _all_succeed(a.wait())
        assert a.mr.read(_REGION, 0) == bytes(9) + pattern(_REGION, 3)[9 : 9 + nbytes] + bytes(_REGION - 9 - nbytes)

    @pytest.mark.parametrize("nbytes", LENGTHS)
    def test_a_message_fills_one_receive(self, ends: Two, nbytes: int) -> None:
        a, b = ends
        a.mr.write(pattern(_REGION, 4), _REGION)
        b.mr.write(bytes(_REGION), _REGION)
        b.receive(_REGION, 5)
        a.send(nbytes, 6)
        _all_succeed(a.wait())
        (wc,) = b.wait()
        assert (wc.status, wc.wr_id, wc.byte_len) == (IBV_WC_SUCCESS, 5, nbytes)
        assert b.mr.read(_REGION, 0) == pattern(_REGION, 4)[:nbytes] + bytes(_REGION - nbytes)

    def test_a_gathered_message_is_scattered(self, ends: Two) -> None:
        a, b = ends
        a.mr.write(pattern(_REGION, 5), _REGION)
        b.qp.post_recv(RecvWR(1, [b.sge(1000, 10), b.sge(5000, 9000)]))
        a.qp.post_send(SendWR(2, IBV_WR_SEND, [a.sge(0, 3), a.sge(400, 5000), a.sge(77, 1)], send_flags=2))
        _all_succeed([*a.wait(), *b.wait()])
        data = pattern(_REGION, 5)
        whole = data[:3] + data[400:5400] + data[77:78]
        assert b.mr.read(10, 1000) + b.mr.read(len(whole) - 10, 5000) == whole

    def test_messages_arrive_in_order_and_once(self, ends: Two) -> None:
        a, b = ends
        count, length = 60, 3000
        for number in range(count):
            b.receive(length, number, offset=number * length)
        for number in range(count):
            a.mr.write(bytes([number]) * length, length, number * length)
            a.send(length, 100 + number, offset=number * length)
        sent, received = a.wait(count), b.wait(count)
        _all_succeed([*sent, *received])
        assert [wc.wr_id for wc in sent] == [100 + number for number in range(count)]
        assert [wc.wr_id for wc in received] == list(range(count))
        assert b.mr.read(count * length, 0) == b"".join(bytes([number]) * length for number in range(count))
        assert not a.cq.look()[0]
        assert not b.cq.look()[0]

    # ---- immediate data, atomics ---------------------------------------------------------------------------------

    def test_a_write_with_immediate_data_tells_the_receiver(self, ends: Two) -> None:
        a, b = ends
        b.receive(0, 7)
        a.mr.write(b"payload", 7)
        a.post(IBV_WR_RDMA_WRITE_WITH_IMM, 8, 7, b, imm_data=0x01020304)
        _all_succeed(a.wait())
        (wc,) = b.wait()
        assert (wc.status, wc.wr_id, wc.opcode) == (IBV_WC_SUCCESS, 7, IBV_WC_RECV_RDMA_WITH_IMM)
        assert (wc.wc_flags & IBV_WC_WITH_IMM, wc.imm_data) == (IBV_WC_WITH_IMM, 0x01020304)
        assert b.mr.read(7, 0) == b"payload"

    def test_a_send_with_immediate_data_carries_it(self, ends: Two) -> None:
        a, b = ends
        b.receive(64, 7)
        if not self.send_with_immediate:
            with pytest.raises(VerbsError):
                a.post(IBV_WR_SEND_WITH_IMM, 8, 4, imm_data=5)
            return
        a.post(IBV_WR_SEND_WITH_IMM, 8, 4, imm_data=0xFFFFFFFF)
        _all_succeed(a.wait())
        assert b.wait()[0].imm_data == 0xFFFFFFFF

    def test_atomics_are_executed_once_and_answer_what_was_there(self, ends: Two) -> None:
        a, b = ends
        if a.context.query_device().atomic_caps == IBV_ATOMIC_NONE:
            with pytest.raises(VerbsError):
                a.post(IBV_WR_ATOMIC_FETCH_AND_ADD, 1, 8, b, compare_add=1)
            return
        b.mr.write((40).to_bytes(8, sys.byteorder), 8)
        a.post(IBV_WR_ATOMIC_FETCH_AND_ADD, 1, 8, b, compare_add=2)
        _all_succeed(a.wait())
        assert (_word(a), _word(b)) == (40, 42)
        a.post(IBV_WR_ATOMIC_CMP_AND_SWP, 2, 8, b, compare_add=41, swap=7)
        _all_succeed(a.wait())
        assert (_word(a), _word(b)) == (42, 42)
        a.post(IBV_WR_ATOMIC_CMP_AND_SWP, 3, 8, b, compare_add=42, swap=7)
        _all_succeed(a.wait())
        assert (_word(a), _word(b)) == (42, 7)

    # ---- failures ------------------------------------------------------------------------------------------------

    def test_a_wrong_rkey_is_refused_and_ends_the_queue_pair(self, ends: Two) -> None:
        a, b = ends
        b.mr.write(b"kept", 4)
        a.mr.write(b"lost", 4)
        a.post(IBV_WR_RDMA_WRITE, 1, 4, b, rkey=b.mr.rkey ^ 0x100)
        a.write(b, 4, 2)
        assert [wc.status for wc in a.wait(2)] == [IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR]
        assert a.qp.qp_state == IBV_QPS_ERR
        assert b.mr.read(4, 0) == b"kept"

    def test_nothing_is_written_beyond_a_region(self, ends: Two) -> None:
        a, b = ends
        a.post(IBV_WR_RDMA_WRITE, 1, 64, b, remote_addr=b.mr.buf + _REGION - 63)
        assert a.wait()[0].status == IBV_WC_REM_ACCESS_ERR

    def test_a_wrong_lkey_is_a_local_error(self, ends: Two) -> None:
        a, b = ends
        wr = SendWR(1, IBV_WR_RDMA_WRITE, [SGE(a.mr.buf, 8, a.mr.lkey ^ 0x100)], send_flags=2)
        wr.remote_addr, wr.rkey = b.mr.buf, b.mr.rkey
        a.qp.post_send(wr)
        assert a.wait()[0].status == IBV_WC_LOC_PROT_ERR

    def test_a_message_too_long_for_its_receive_ends_both(self, ends: Two) -> None:
        a, b = ends
        b.receive(10, 1)
        a.send(11, 2)
        assert a.wait()[0].status == IBV_WC_REM_INV_REQ_ERR
        assert b.wait()[0].status == IBV_WC_LOC_LEN_ERR

    def test_a_message_waits_for_a_receive(self, ends: Two) -> None:
        a, b = ends
        a.mr.write(b"late", 4)
        a.send(4, 1)
        assert a.cq.wait(1, timeout_s=0.002) == []
        b.receive(64, 2)
        _all_succeed([*a.wait(), *b.wait()])
        assert b.mr.read(4, 0) == b"late"

    def test_a_message_without_a_receive_gives_up_after_the_retries(self, make: Make) -> None:
        a, b = make(0), make(1)
        a.connect(b, rnr_retry=1, min_rnr_timer=1)
        a.send(4, 1)
        assert a.wait()[0].status == IBV_WC_RNR_RETRY_EXC_ERR

    def test_a_peer_that_is_gone_ends_the_retries(self, make: Make) -> None:
        a, b = make(0), make(1)
        a.connect(b, timeout=4, retry_cnt=1)
        b.qp.close()
        a.write(b, 4)
        assert a.wait()[0].status == IBV_WC_RETRY_EXC_ERR

    def test_err_flushes_what_was_posted_in_order(self, ends: Two) -> None:
        _, b = ends
        for number in range(5):
            b.receive(64, number)
        b.qp.modify(QPAttr(qp_state=IBV_QPS_ERR), IBV_QP_STATE)
        b.receive(64, 5)
        flushed = b.wait(6)
        assert [wc.wr_id for wc in flushed] == list(range(6))
        assert {wc.status for wc in flushed} == {IBV_WC_WR_FLUSH_ERR}

    # ---- other queue pairs ---------------------------------------------------------------------------------------

    def test_an_unreliable_connection_writes_and_sends(self, make: Make) -> None:
        if IBV_QPT_UC not in self.qp_types:
            with pytest.raises(VerbsError):
                make(0, qp_type=IBV_QPT_UC)
            return
        a, b = make(0, qp_type=IBV_QPT_UC), make(1, qp_type=IBV_QPT_UC)
        a.connect(b)
        a.mr.write(pattern(20_000, 6), 20_000)
        b.receive(64, 3)
        a.write(b, 20_000, offset=0)
        a.send(64, 2, offset=0)
        _all_succeed([*a.wait(2), *b.wait()])
        assert b.mr.read(20_000, 0) == pattern(20_000, 6)

    def test_a_datagram_finds_its_queue_pair(self, make: Make) -> None:
        if IBV_QPT_UD not in self.qp_types:
            with pytest.raises(VerbsError):
                make(0, qp_type=IBV_QPT_UD)
            return
        a, b = make(0, qp_type=IBV_QPT_UD), make(1, qp_type=IBV_QPT_UD)
        for end in (a, b):
            end.qp.to_rts(QPAttr(qkey=_QKEY, port_num=1, sq_psn=0))
        a.mr.write(b"datagram", 8)
        b.receive(_GRH_BYTES + 64, 3)
        with AH(a.pd, attr=a.qp.address_of(b.qp.endpoint())) as ah:
            a.post(IBV_WR_SEND, 2, 8, ah=ah, remote_qpn=b.qp.qp_num, remote_qkey=_QKEY)
            _all_succeed(a.wait())
            (wc,) = b.wait()
        assert (wc.status, wc.byte_len, wc.src_qp) == (IBV_WC_SUCCESS, _GRH_BYTES + 8, a.qp.qp_num)
        assert b.mr.read(8, _GRH_BYTES) == b"datagram"


def _word(end: End) -> int:
    return int.from_bytes(end.mr.read(8, 0), sys.byteorder)


def _all_succeed(wcs: list[Any]) -> None:
    assert [wc.status for wc in wcs] == [IBV_WC_SUCCESS] * len(wcs), wcs
