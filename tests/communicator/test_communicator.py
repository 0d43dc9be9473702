"""Collectives over real daemons: every operation, dtype and layout, against numpy."""

from __future__ import annotations

import gc
import os
import threading

import numpy as np
import pytest
from rank_threads import all_well, open_communicator, run_ranks

from fauxrdma.collectives import gloo_blocks
from fauxrdma.collectives.immediate import decode_immediate, encode_immediate
from fauxrdma.communicator import Communicator
from fauxrdma.communicator.mesh import ack_timeout_exponent
from fauxrdma.errors import CollectiveError, ConfigError, LocalProtocolError
from fauxrdma.lab.local import LocalLab
from fauxrdma.lab.rank_threads import ThreadStore


def inputs_for(n: int, count: int, dtype: str, seed: int = 1) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    values = [rng.uniform(0.5, 1.5, count) * 10 for _ in range(n)]
    if np.dtype(dtype).kind == "c":
        return [(v + 1j * v[::-1]).astype(dtype) for v in values]
    return [v.astype(dtype) for v in values]


def in_ring_order(inputs: list[np.ndarray]) -> np.ndarray:
    """The sum as documented: block b is ((x[b-1] + x[b-2]) + ...) + x[b]."""
    n, count = len(inputs), inputs[0].size
    part = gloo_blocks(count, n, inputs[0].itemsize)
    out = np.empty_like(inputs[0])
    for b in range(n):
        where = slice(part.offset(b), part.offset(b) + part.length(b))
        value = inputs[(b - 1) % n][where].copy()
        for k in range(2, n + 1):
            value = inputs[(b - k) % n][where] + value
        out[where] = value
    return out


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_all_reduce_bits_for_every_dtype_and_size(lab: LocalLab, n: int) -> None:
    cases = [(d, c) for d in ("f4", "f8", "f2", "i4", "i8", "u1", "c8") for c in (0, 1, 7, 1000)]
    # 300 KiB and 6 MiB in small slots: several chunks per block and many turns of the staging ring.
    cases += [("f4", 77_777), ("f8", 750_001)]

    def work(communicator: Communicator) -> list[bytes]:
        got = []
        for dtype, count in cases:
            array = inputs_for(n, count, dtype)[communicator.rank]
            communicator.all_reduce(array)
            got.append(array.tobytes())
        return got

    outcomes = all_well(run_ranks(lab, n, work, slot_bytes=64 << 10))
    expected = [in_ring_order(inputs_for(n, count, dtype)).tobytes() for dtype, count in cases]
    for rank, got in enumerate(outcomes):
        for case, have, want in zip(cases, got, expected, strict=True):
            assert have == want, f"rank {rank} of {n}, {case}"


def test_operations(lab: LocalLab) -> None:
    n = 4
    inputs = inputs_for(n, 999, "f8")
    stacked = np.stack(inputs)
    expected = {
        "sum": stacked.sum(0),
        "avg": stacked.mean(0),
        "product": stacked.prod(0),
        "min": stacked.min(0),
        "max": stacked.max(0),
    }

    def work(communicator: Communicator) -> dict[str, np.ndarray]:
        results = {}
        for op in expected:
            results[op] = inputs[communicator.rank].copy()
            communicator.all_reduce(results[op], op)
        flags = np.array([True, False, communicator.rank == 0, True])
        communicator.all_reduce(flags, "product")
        results["and"] = flags
        return results

    for results in all_well(run_ranks(lab, n, work)):
        for op, want in expected.items():
            np.testing.assert_allclose(results[op], want, rtol=1e-12, err_msg=op)
        assert results["and"].tolist() == [True, False, False, True]


def test_gather_scatter_broadcast_barrier(lab: LocalLab) -> None:
    n = 4

    def work(communicator: Communicator) -> None:
        rank = communicator.rank
        for count in (0, 1, 5, 40_000):
            gathered = np.zeros((n, count), np.int32)
            communicator.all_gather(gathered, np.arange(count, dtype=np.int32) + 1000 * rank)
            assert (gathered == np.arange(count) + 1000 * np.arange(n)[:, None]).all()

            part = np.zeros(count, np.int64)
            communicator.reduce_scatter(part, np.arange(n * count, dtype=np.int64) * (rank + 1))
            assert (part == 10 * np.arange(rank * count, (rank + 1) * count)).all()

            for root in range(n):
                data = np.full(count, rank, np.uint8)
                communicator.broadcast(data, root)
                assert (data == root).all()
            communicator.barrier()

    all_well(run_ranks(lab, n, work, slots=4, slot_bytes=64 << 10))


def test_any_layout(lab: LocalLab) -> None:
    def work(communicator: Communicator) -> None:
        rank = communicator.rank
        grid = np.arange(12.0).reshape(3, 4) * (rank + 1)
        base = np.zeros((4, 6))
        view = base[:3, 1:5]
        view[...] = grid
        communicator.all_reduce(view)
        assert (view == 3 * np.arange(12).reshape(3, 4)).all()
        assert base.sum() == view.sum(), "only the view may change"

        transposed = np.asfortranarray(grid)
        communicator.all_reduce(transposed)
        assert (transposed == 3 * np.arange(12).reshape(3, 4)).all()

        scalar = np.array(float(rank + 1))
        communicator.all_reduce(scalar)
        assert scalar == 3

        reverse = np.arange(10, dtype=np.float32)[::-1]
        out = np.zeros(40, np.float32)[::2]
        communicator.all_gather(out, reverse)
        assert out.tolist() == list(range(9, -1, -1)) * 2

        column = np.full((5, 2), rank)[:, 1]
        communicator.broadcast(column, 1)
        assert (column == 1).all()

    all_well(run_ranks(lab, 2, work))


def test_barrier_waits_for_the_last(lab: LocalLab) -> None:
    late = threading.Event()
    passed: list[int] = []

    def work(communicator: Communicator) -> None:
        communicator.barrier()  # connections
        if communicator.rank == 2:
            # The others have nothing to wait for but this rank; give them every chance to slip through.
            communicator_others_stuck.wait(20)
            late.set()
        else:
            arrived.release()
        communicator.barrier()
        assert late.is_set()
        passed.append(communicator.rank)

    arrived = threading.Semaphore(0)
    communicator_others_stuck = threading.Event()

    def referee() -> None:
        for _ in range(2):
            arrived.acquire()
        communicator_others_stuck.set()

    threading.Thread(target=referee, daemon=True).start()
    all_well(run_ranks(lab, 3, work))
    assert sorted(passed) == [0, 1, 2]


def test_operations_are_recorded_in_fabric_time(lab: LocalLab) -> None:
    def work(communicator: Communicator) -> Communicator:
        communicator.all_reduce(np.ones(1000, np.float32))
        communicator.barrier()
        return communicator

    for communicator in all_well(run_ranks(lab, 2, work)):
        first, second = communicator.statistics.operations
        assert (first.op, first.nbytes, first.algorithm) == ("all_reduce", 4000, "ring")
        assert (second.op, second.nbytes, second.algorithm) == ("barrier", 0, "dissemination")
        assert 0 < first.start_ns < first.end_ns <= second.start_ns < second.end_ns
        assert first.wall_ns > 0
        assert communicator.statistics.hca == f"hca{communicator.rank + 1}"


def test_ranks_that_disagree_are_told(lab: LocalLab) -> None:
    def work(communicator: Communicator) -> str:
        array = np.ones(100 + communicator.rank, np.float32)
        with pytest.raises(CollectiveError) as caught:
            communicator.all_reduce(array)
        with pytest.raises(CollectiveError, match="broken since an earlier error"):
            communicator.barrier()
        return str(caught.value)

    texts = all_well(run_ranks(lab, 2, work, timeout_s=20))
    for text in texts:
        assert "rank 0 called all_reduce(sum of 100 x <f4, root 0, by ring) as call 0" in text
        assert "rank 1 called all_reduce(sum of 101 x <f4, root 0, by ring) as call 0" in text


@pytest.mark.parametrize("share_memory", [True, False])
def test_a_missing_rank_is_named_with_what_joined_it(lab: LocalLab, share_memory: bool) -> None:
    def work(communicator: Communicator) -> str:
        communicator.barrier()
        if communicator.rank == 1:
            return ""  # closes, as a rank does that ends early
        with pytest.raises(CollectiveError) as caught:
            communicator.all_reduce(np.ones(10))
        return str(caught.value)

    alone, _ = all_well(run_ranks(lab, 2, work, timeout_s=60, share_memory=share_memory))
    if share_memory:
        assert "rank 0 lost rank 1: shared memory (path n0.gpu0->n0.pcie0 n0.pcie0->n0.gpu1) with process" in alone
        assert "whose communicator was closed during all_reduce of 80 B" in alone
        return
    # The peer's HCA answers nothing for a queue pair that is gone.
    assert "rank 0 lost rank 1: queue pair 0x" in alone
    assert "RETRY_EXC_ERR" in alone
    assert "n0.hca1->" in alone


@pytest.mark.parametrize(("share_memory", "over"), [(True, "shared memory (path n0.gpu0->"), (False, "queue pair 0x")])
def test_a_slow_rank_is_no_error_but_a_timeout_is(lab: LocalLab, share_memory: bool, over: str) -> None:
    gave_up = threading.Event()

    def work(communicator: Communicator) -> str:
        communicator.barrier()
        if communicator.rank == 1:
            gave_up.wait(30)  # alive, but not taking part
            return ""
        with pytest.raises(CollectiveError) as caught:
            communicator.all_reduce(np.ones(10))
        gave_up.set()
        return str(caught.value)

    text, _ = all_well(run_ranks(lab, 2, work, timeout_s=3, share_memory=share_memory))
    assert f"rank 0: all_reduce of 80 B not done after 3 s, waiting for message 0 from rank 1 over {over}" in text


def test_one_rank_may_leave_while_another_is_late(lab: LocalLab) -> None:
    """The root of a broadcast is done, and gone, before a late rank begins: no data is lost and nothing fails."""
    root_left = threading.Event()
    connected = threading.Barrier(3)

    def work(communicator: Communicator) -> float:
        data = np.full(1000, float(communicator.rank))
        communicator.broadcast(data, 0)
        communicator.broadcast(data, 0)
        connected.wait(20)
        if communicator.rank == 0:
            communicator.broadcast(data * 0 + 7, 0)
            communicator.close()
            root_left.set()
            return 7.0
        assert root_left.wait(20)
        communicator.broadcast(data, 0)
        return float(data.mean())

    assert all_well(run_ranks(lab, 3, work)) == [7.0, 7.0, 7.0]


def test_refusals_leave_the_communicator_whole(lab: LocalLab) -> None:
    def work(communicator: Communicator) -> None:
        frozen = np.ones(3)
        frozen.flags.writeable = False
        for bad, text in (
            (lambda: communicator.all_reduce(np.ones(3), "median"), "known: sum"),
            (lambda: communicator.all_reduce(frozen), "read-only"),
            (lambda: communicator.all_reduce(np.array([object()])), "dtype object"),
            (lambda: communicator.all_gather(np.ones(5), np.ones(3)), "2 times the other"),
            (lambda: communicator.reduce_scatter(np.ones(3, "f4"), np.ones(6, "f8")), "use one dtype"),
            (lambda: communicator.broadcast(np.ones(3), 2), "root 2 is not a rank of 2"),
        ):
            with pytest.raises(LocalProtocolError, match=text):
                bad()
        array = np.ones(3)
        communicator.all_reduce(array)
        assert (array == 2).all()

    all_well(run_ranks(lab, 2, work))
    with pytest.raises(ConfigError, match="rank 2 is not in a world of 2"):
        Communicator(2, 2, ThreadStore())


def test_opening_and_closing_leaks_nothing(lab: LocalLab) -> None:
    def cycle() -> None:
        all_well(run_ranks(lab, 2, lambda c: c.all_reduce(np.ones(100))))

    gc.collect()  # errors that earlier tests caught hold on to what they went through
    cycle()
    before = sorted(os.readlink(f"/proc/self/fd/{fd}").split(":")[0] for fd in list_fds())
    threads = threading.active_count()
    for _ in range(5):
        cycle()
    after = sorted(os.readlink(f"/proc/self/fd/{fd}").split(":")[0] for fd in list_fds())
    assert len(after) <= len(before), set(after) ^ set(before)
    assert threading.active_count() == threads
    with open("/proc/self/maps") as maps:
        assert not [line for line in maps if "fauxrdma-mr" in line], "staging memory is still mapped"


def list_fds() -> list[str]:
    """The open descriptors, without the one that lists them."""
    fds = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            continue
        fds.append(fd)
    return fds


def test_close_twice_and_use_after_close(lab: LocalLab) -> None:
    context, communicator = open_communicator(lab, 0, 1, ThreadStore())
    communicator.all_reduce(np.ones(3))
    communicator.close()
    communicator.close()
    with pytest.raises(CollectiveError, match="closed"):
        communicator.barrier()
    context.close()


def test_immediates_round_trip() -> None:
    for number in (0, 1, 0xFFFFFF, 0x1000000, 0x1234567):
        event = decode_immediate(3, encode_immediate(5, number, number >> 4 & 0xFFFF), 77)
        assert event.call == number >> 4 & 0xFFFF
        assert (event.peer, event.sequence, event.nbytes, event.credits) == (3, number & 0xFF, 77, 5)
    credits = decode_immediate(3, encode_immediate(127, None), 0)
    assert (credits.peer, credits.count) == (3, 127)


@pytest.mark.parametrize("dilation", [1.0, 10.0, 500.0, 1900.0, 6400.0, 20000.0])
def test_ack_timeout_is_half_a_second_of_wall_time(dilation: float) -> None:
    wall_s = 4.096e-6 * 2 ** ack_timeout_exponent(dilation) * dilation
    assert 0.5 / 2**0.5 <= wall_s <= 0.5 * 2**0.5
