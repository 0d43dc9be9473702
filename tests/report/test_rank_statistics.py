"""Durations, bandwidth and step time from the ranks' own records."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fauxrdma.collectives.bus_bandwidth import bus_factor
from fauxrdma.report.rank_statistics import (
    Call,
    RankOperation,
    RankRecord,
    match_calls,
    read_rank_records,
    summarise,
    timing,
)


def record(rank: int, *operations: tuple[str, int, int, int]) -> RankRecord:
    return RankRecord(rank, 2, [RankOperation(op, n, start, end, "ring") for op, n, start, end in operations], 0)


def call(start_ns: int, end_ns: int, op: str = "all_reduce", nbytes: int = 1000) -> Call:
    return Call(op, nbytes, "ring", start_ns, end_ns)


class TestMatching:
    def test_a_collective_lasts_from_the_last_entry_to_the_last_return(self) -> None:
        early = record(0, ("all_reduce", 64, 100, 900))
        late = record(1, ("all_reduce", 64, 700, 850))
        (found,) = match_calls([early, late])
        assert (found.start_ns, found.end_ns, found.duration_ns) == (700, 900, 200)

    def test_ranks_with_different_sequences_stand_for_themselves(self) -> None:
        first = record(0, ("all_reduce", 64, 0, 10), ("broadcast", 8, 20, 25))
        second = record(1, ("broadcast", 8, 0, 4), ("all_reduce", 64, 5, 30))
        found = match_calls([first, second])
        assert sorted((c.op, c.duration_ns) for c in found) == [
            ("all_reduce", 10),
            ("all_reduce", 25),
            ("broadcast", 4),
            ("broadcast", 5),
        ]

    def test_a_rank_that_recorded_less_limits_what_is_matched(self) -> None:
        whole = record(0, ("all_reduce", 64, 0, 10), ("all_reduce", 64, 20, 30))
        cut = record(1, ("all_reduce", 64, 0, 12))
        assert [c.duration_ns for c in match_calls([whole, cut])] == [12]

    def test_no_records_are_no_calls(self) -> None:
        assert match_calls([]) == []

    @given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1, max_size=6))
    def test_a_duration_is_never_longer_than_the_longest_ranks(self, spans: list[tuple[int, int]]) -> None:
        # All ranks are inside at once, as a collective requires: every return is after every entry.
        last_entry = max(start for start, _ in spans)
        records = [
            record(rank, ("all_reduce", 8, start, last_entry + extra)) for rank, (start, extra) in enumerate(spans)
        ]
        (found,) = match_calls(records)
        assert 0 <= found.duration_ns <= max(r.operations[0].end_ns - r.operations[0].start_ns for r in records)


class TestBandwidth:
    def test_bus_bandwidth_is_the_definition_of_nccl_tests(self) -> None:
        # 4 ranks, 1 MB in 100 us: algorithm bandwidth 10 GB/s, times 2 x 3 / 4.
        (found,) = summarise([call(0, 100_000, nbytes=1_000_000)], world_size=4)
        assert found.bus_bandwidth_gb_per_s == pytest.approx(15.0)

    @pytest.mark.parametrize(
        ("op", "factor"),
        [
            ("all_reduce", 1.75),
            ("reduce_scatter", 0.875),
            ("all_gather", 0.875),
            ("gather", 0.875),
            ("scatter", 0.875),
            ("all_to_all", 0.875),
            ("broadcast", 1.0),
            ("sendrecv", 1.0),
            ("barrier", None),
        ],
    )
    def test_factors_for_eight_ranks(self, op: str, factor: float | None) -> None:
        assert bus_factor(op, 8) == factor

    def test_kinds_and_sizes_are_kept_apart_and_the_biggest_mover_comes_first(self) -> None:
        calls = [call(0, 10, nbytes=8)] * 50 + [call(0, 100, nbytes=4000)] * 3 + [call(0, 5, "barrier", 0)] * 9
        found = summarise(calls, 4)
        assert [(c.op, c.nbytes, c.duration.count) for c in found] == [
            ("all_reduce", 4000, 3),
            ("all_reduce", 8, 50),
            ("barrier", 0, 9),
        ]
        assert found[2].bus_bandwidth_gb_per_s is None

    def test_percentiles(self) -> None:
        (found,) = summarise([call(0, n) for n in range(1, 102)], 2)
        duration = found.duration
        assert (duration.min_ns, duration.p50_ns, duration.p99_ns, duration.max_ns) == (1, 51, 100, 101)


class TestTiming:
    def test_start_up_and_evaluation_are_left_out_where_steps_can_be_told_apart(self) -> None:
        training = [call(1_000_000 + i * 500, 1_000_000 + i * 500 + 100) for i in range(10)]
        calls = [call(0, 50, "broadcast", 9000), *training, call(9_000_000, 9_000_100, "all_reduce", 8)]
        main = next(c for c in summarise(calls, 4) if c.op == "all_reduce")
        found = timing(calls, 10, main)
        assert found.step_ns == pytest.approx(500)
        assert found.communication_ns == pytest.approx((50 + 10 * 100 + 100) / 10)

    def test_several_all_reduces_of_one_size_in_a_step(self) -> None:
        calls = [call(step * 1000 + part * 10, step * 1000 + part * 10 + 5) for step in range(4) for part in range(3)]
        assert timing(calls, 4, summarise(calls, 2)[0]).step_ns == pytest.approx(1000)

    def test_otherwise_the_whole_span_is_divided(self) -> None:
        calls = [call(0, 100), call(400, 700)]
        assert timing(calls, 7, summarise(calls, 2)[0]).step_ns == pytest.approx(100)

    @pytest.mark.parametrize("steps", [None, 0])
    def test_without_steps_there_is_no_time_per_step(self, steps: int | None) -> None:
        assert timing([call(0, 1)], steps, None).step_ns is None


class TestReading:
    def test_what_is_not_a_record_is_left_out(self, tmp_path: Path) -> None:
        operation = '{"op":"all_reduce","nbytes":8,"start_ns":1,"end_ns":2,"wall_ns":3,"algorithm":"ring"}'
        good = '{"rank":%d,"world_size":2,"operations":[' + operation + '],"dropped":4}'
        (tmp_path / "rank1.json").write_text(good % 1)
        (tmp_path / "rank0.json").write_text(good % 0)
        (tmp_path / "rank2.json").write_text('{"rank":2,"opera')
        (tmp_path / "rank3.json").write_text("[]")
        found = read_rank_records(tmp_path)
        assert [(r.rank, r.dropped, len(r.operations)) for r in found] == [(0, 4, 1), (1, 4, 1)]

    def test_a_missing_directory_holds_no_records(self, tmp_path: Path) -> None:
        assert read_rank_records(tmp_path / "nowhere") == []
