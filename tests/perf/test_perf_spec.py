"""What a test is asked to do, and what is refused before anything is started."""

from __future__ import annotations

import pytest

from fauxrdma.errors import ConfigError
from fauxrdma.ib.enums import QpType
from fauxrdma.perf import TESTS, PerfSpec, default_iterations, sizes_of

ENDS = (("/a", "hca1"), ("/b", "hca1"))


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"test_name": "read-bw", "qp_type": QpType.IBV_QPT_UC}, "read-bw cannot use connection type UC.*on RC"),
        ({"test_name": "write-lat", "qp_type": QpType.IBV_QPT_UD}, "on RC, UC"),
        ({"test_name": "write-lat", "qps": 2}, "--qps 2 is for bandwidth"),
        ({"test_name": "send-lat", "bidirectional": True}, "--bidirectional is for bandwidth"),
        ({"test_name": "write-bw", "path_mtu_bytes": 1500}, "--mtu 1500: one of 256"),
        ({"test_name": "write-bw", "steps": ((64, 4),)}, "--iterations 4.*at least 5"),
        ({"test_name": "write-bw", "steps": ((0, 10),)}, "--size 0"),
        ({"test_name": "atomic-lat", "steps": ((16, 10),)}, "an atomic operation has 8 bytes"),
    ],
)
def test_what_cannot_be_done_is_refused(arguments: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        PerfSpec(**{"steps": ((8, 10),), "ends": ENDS, **arguments})  # type: ignore[arg-type]


def test_sizes() -> None:
    write = TESTS["write-bw"]
    assert sizes_of(write, None, False, 8 << 20) == [65536]
    assert sizes_of(write, 100, False, 8 << 20) == [100]
    every = sizes_of(write, None, True, 8 << 20)
    assert (every[0], every[-1], len(every)) == (2, 8 << 20, 23)
    assert sizes_of(TESTS["send-bw"], None, True, 4096)[-1] == 4096
    assert sizes_of(TESTS["send-bw"], None, False, 4096) == [4096]  # a datagram is a packet
    assert sizes_of(TESTS["atomic-lat"], None, True, 8 << 20) == [8]
    with pytest.raises(ConfigError, match="not both"):
        sizes_of(write, 8, True, 8 << 20)


def test_iterations_are_perftests_where_this_host_can_bear_it() -> None:
    assert default_iterations(TESTS["write-bw"], 64) == 5000
    assert default_iterations(TESTS["read-bw"], 64) == 1000
    assert default_iterations(TESTS["write-bw"], 8 << 20) == 5


def test_small_messages_are_signaled_now_and_then_and_large_ones_always() -> None:
    spec = PerfSpec("write-bw", ((64, 10),), ENDS, tx_depth=64)
    assert (spec.moderation(64), spec.moderation(8192), spec.moderation(8193)) == (64, 64, 1)
