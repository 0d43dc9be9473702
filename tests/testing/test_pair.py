"""The in-process pair: real verbs, virtual time, faults by rule and by seed."""

from __future__ import annotations

import select
import threading

import pytest

from fauxrdma.errors import ConfigError, VerbsError
from fauxrdma.ib.enums import IBV_WC_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR, IBV_WC_SUCCESS, IBV_WR_RDMA_READ
from fauxrdma.testing import Deadlock, End, LeakedObjects, Pair
from fauxrdma.verbs import MR, PD, QP, Context


def _write_all(pair: Pair, count: int = 6, length: int = 20_000, **attributes: int) -> tuple[End, End]:
    a, b = End(pair.a.context()), End(pair.b.context())
    a.connect(b, **attributes)
    for number in range(count):
        a.mr.write(bytes([number + 1]) * length, length)
        a.write(b, length, number)
        assert [wc.wr_id for wc in a.wait()] == [number]
        assert b.mr.read(length, 0) == bytes([number + 1]) * length
    return a, b


@pytest.mark.parametrize("transport", ["infiniband", "rocev2", "rocev1", "iwarp"])
def test_the_code_under_test_is_plain_verbs(transport: str) -> None:
    with Pair(transport=transport) as pair:
        _write_all(pair, 2)
        pair.assert_all_completed()
        assert 0 < pair.now_ns < 1_000_000


def test_an_adapter_is_what_its_profile_says() -> None:
    with Pair(profile="cx6-hdr,max_qp=4") as pair:
        assert pair.a.context().query_device().max_qp == 4
    with pytest.raises(ConfigError, match="profile 'cx1'"):
        Pair(profile="cx1")


def test_a_dropped_frame_is_sent_again_after_the_timeout() -> None:
    with Pair() as pair:
        rule = pair.drop(opcode="RDMA_WRITE", nth=3)
        _write_all(pair, 1, timeout=10)
        assert (rule.hits, len([e for e in pair.trace if e["event"] == "drop"])) == (1, 1)
        # Frames behind the lost one are out of sequence and the NAK comes at once: no timeout is waited for.
        assert pair.now_ns < 1_000_000
        pair.assert_all_completed()
    with Pair() as pair:
        pair.drop(opcode="RDMA_WRITE_ONLY", nth=1)
        _write_all(pair, 1, 8, timeout=10)
        assert pair.now_ns > 4096 * 2**10  # 4.096 us * 2^timeout: nothing else tells that the only frame was lost


def test_rules_match_direction_psn_times_and_condition() -> None:
    with Pair() as pair:
        backwards = pair.drop(direction="b->a", times=1)
        none = pair.drop(where=lambda frame: frame.nbytes == 12345)
        _write_all(pair, 2, timeout=8)
        assert (backwards.hits, none.hits) == (1, 0)
        assert backwards.removed
        pair.clear()
        a, b = pair.ends()
        rule = pair.drop(psn=(a.qp.query()[0].sq_psn + 2) % (1 << 24))
        rule.times = 1
        a.write(b, 20_000)
        a.wait()
        assert rule.hits == 1
        dropped = [e for e in pair.trace if e["event"] == "drop"][-1]
        assert dropped["opcode"] == "RC_RDMA_WRITE_MIDDLE"


def test_duplicates_delays_and_overtaking_change_no_bytes_and_lose_no_completion() -> None:
    with Pair(seed=3) as pair:
        rules = [
            pair.duplicate(opcode="RDMA_WRITE", nth=range(1, 100, 3)),
            pair.reorder(opcode="RDMA_WRITE", nth=range(2, 100, 5)),
            pair.delay(3000, direction="b->a", nth=(1, 4)),
        ]
        _write_all(pair, timeout=8)
        assert all(rule.hits for rule in rules)
        pair.assert_all_completed()


def test_noise_depends_on_the_seed_and_on_nothing_else() -> None:
    def run(seed: int) -> tuple[int, list[str]]:
        with Pair(seed=seed) as pair:
            pair.noise(loss=0.05, duplicate=0.05, reorder=0.05, delay=0.05)
            _write_all(pair, 20, timeout=6)
            return pair.now_ns, [e["event"] for e in pair.trace]

    first = run(11)
    assert first == run(11)
    assert first != run(12)
    assert {"drop", "duplicate", "reorder", "delay"} <= set(first[1])


def test_rnr_takes_the_time_the_receiver_asks_for_and_the_retries_there_are() -> None:
    with Pair() as pair:
        a, b = End(pair.a.context()), End(pair.b.context())
        a.connect(b, min_rnr_timer=1, rnr_retry=3)  # timer 1: 10 us
        rule = pair.rnr(times=2)
        b.receive(64, 5)
        a.send(64, 6)
        assert [wc.status for wc in (*a.wait(), *b.wait())] == [IBV_WC_SUCCESS] * 2
        assert rule.hits == 2
        assert pair.now_ns > 20_000
        pair.rnr()
        b.receive(64, 7)
        a.send(64, 8)
        assert a.wait()[0].status == IBV_WC_RNR_RETRY_EXC_ERR
        with pytest.raises(AssertionError, match=r"wr_id 8 of QP .* IBV_WC_RNR_RETRY_EXC_ERR"):
            pair.assert_all_completed()


def test_a_killed_peer_ends_the_retries() -> None:
    with Pair() as pair:
        a, b = End(pair.a.context()), End(pair.b.context())
        a.connect(b, timeout=8, retry_cnt=2)
        pair.b.kill()
        a.write(b, 64)
        assert a.wait()[0].status == IBV_WC_RETRY_EXC_ERR
        with pytest.raises(VerbsError, match="gone"):
            PD(b.context)
        End(pair.b.context()).close()  # another program may come


def test_a_cut_cable_that_is_plugged_in_again_costs_a_timeout() -> None:
    with Pair() as pair:
        a, b = pair.ends()
        pair.cut()
        a.write(b, 64)
        pair.advance(1_000_000)
        assert not a.cq.look()[0]
        pair.restore()
        assert a.wait()[0].status == IBV_WC_SUCCESS


def _spin(end: End) -> None:
    while not end.cq.poll()[0]:
        pass


def test_waits_are_of_fabric_time_and_hopeless_ones_say_so() -> None:
    with Pair() as pair:
        a, _ = pair.ends()
        before = pair.now_ns
        assert a.cq.wait(1, timeout_s=2.5) == []
        assert pair.now_ns - before >= 2_400_000_000
        with pytest.raises(Deadlock, match="node 0 waits for a completion on CQ"):
            a.cq.wait()
        with pytest.raises(Deadlock):
            _spin(a)


def test_who_waits_outside_the_verbs_is_woken_too() -> None:
    with Pair() as pair:
        a, b = pair.ends()
        b.receive(64, 9)
        b.cq.req_notify()
        a.send(64)
        assert select.select([b.channel.fd], [], [], 30)[0]
        assert b.channel.get_cq_event(b.cq) is b.cq
        b.cq.ack_events(1)
        assert b.cq.poll()[1][0].wr_id == 9


async def test_await_forms_go_on() -> None:
    with Pair() as pair:
        a, b = pair.ends()
        b.receive(64, 9)
        a.send(64, 4)
        assert (await b.cq.next()).wr_id == 9
        assert (await a.cq.next()).wr_id == 4


def test_a_server_thread_and_a_client_thread() -> None:
    with Pair() as pair:
        a, b = pair.ends()
        count = 40

        def serve() -> None:
            for number in range(count):
                wc = b.wait(1, 1e6)[0]
                assert wc.wr_id == number
                b.send(64, 1000 + number)
                b.receive(64, number + 1)
                b.wait(1, 1e6)

        b.receive(64, 0)
        server = threading.Thread(target=serve)
        server.start()
        for number in range(count):
            a.receive(64, number)
            a.send(64, 500 + number)
            assert {wc.wr_id for wc in a.wait(2, 1e6)} == {number, 500 + number}
        server.join()
        pair.assert_all_completed()


def test_what_was_not_done_or_not_polled_is_named() -> None:
    with Pair() as pair:
        a, b = pair.ends()
        a.write(b, 64, 3)
        with pytest.raises(AssertionError, match=r"a: 1 completions of CQ . were not polled"):
            pair.assert_all_completed()
        a.wait()
        pair.assert_all_completed()


def test_leaks_are_named_with_the_line_that_made_them() -> None:
    with Pair() as pair:
        context = pair.a.context()
        pd = PD(context)
        region = MR(pd, 4096, 1)
        own = Context("hca1", pair.b.socket)
        with pytest.raises(LeakedObjects) as caught:
            pair.assert_no_leaks()
        lines = str(caught.value).splitlines()
        assert lines[0] == "3 verbs objects were not closed:"
        assert f"MR(lkey 0x{region.lkey:x}, 4096 B), made at " in lines[2]
        assert "test_pair.py:" in lines[2]
        assert "in test_leaks_are_named" in lines[2]
        assert "Context('hca1', node 1" in lines[3]
        region.close()
        own.close()
        pd.close()
        pair.assert_no_leaks()


def test_pairs_are_independent_and_leave_nothing() -> None:
    threads = threading.active_count()
    with Pair(seed=1) as one, Pair(seed=1) as other:
        _write_all(one, 1)
        assert (one.now_ns > 0, other.now_ns) == (True, 0)
        context = other.a.context()
    assert threading.active_count() == threads
    with pytest.raises(VerbsError):
        PD(context)
    assert "QP" in QP.__name__


def test_a_read_is_read_and_rules_that_cannot_be_are_refused() -> None:
    with Pair() as pair:
        a, b = pair.ends()
        b.mr.write(b"there", 5)
        pair.drop(opcode="RDMA_READ_RESPONSE", times=1)
        a.post(IBV_WR_RDMA_READ, 1, 9000, b)
        a.wait()
        assert a.mr.read(5, 0) == b"there"
        for wrong in ({"opcode": "RDMA_WRIT_E"}, {"nth": 0}, {"direction": "c->d"}, {"probability": 2}, {"times": 0}):
            with pytest.raises(ConfigError):
                pair.drop(**wrong)
        with pytest.raises(ConfigError):
            Pair(transport="token-ring")
