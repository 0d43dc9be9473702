"""Dilation and burst size follow REFERENCE C."""

from __future__ import annotations

import pytest

from fauxrdma.errors import ConfigError
from fauxrdma.fabric.dilation import choose_dilation, choose_quantum, delay_dilation, throughput_dilation
from fauxrdma.topology.loading import load_topology

HOST = 2.5e9
"""Bytes per second of the two-core machine the reference measured."""


def test_throughput_needs_are_the_reference_s() -> None:
    assert throughput_dilation(load_topology("fat-tree", 4), 4, 8, HOST) == pytest.approx(800)
    assert throughput_dilation(load_topology("fat-tree:ndr", 16), 16, 8, HOST) == pytest.approx(6400)


def test_the_smallest_delay_lasts_two_milliseconds_of_wall_time() -> None:
    topology = load_topology("seed-rail8", 2)
    assert delay_dilation(topology) * 1060 == pytest.approx(2e6)  # one switch and two 3 m cables: 1060 ns


@pytest.mark.parametrize(
    ("spec", "nodes", "gpus", "host", "k"),
    [
        ("seed-rail8", 2, 2, HOST, 1900.0),  # timing decides
        ("fat-tree", 4, 8, HOST, 1900.0),
        ("fat-tree:ndr", 16, 8, HOST, 6400.0),  # throughput decides
        ("fat-tree", 72, 8, HOST, 15000.0),
        ("fat-tree", 4, 8, HOST / 10, 8000.0),
    ],
)
def test_dilation_is_the_larger_need_rounded_up(spec: str, nodes: int, gpus: int, host: float, k: float) -> None:
    topology = load_topology(spec, nodes)
    assert choose_dilation(topology, nodes, gpus, host) == k
    needs = max(throughput_dilation(topology, nodes, gpus, host), delay_dilation(topology))
    assert needs * (1 - 1e-9) <= k <= needs * 1.1


def test_asking_for_more_than_there_is() -> None:
    topology = load_topology("fat-tree", 2)
    for nodes, gpus in ((3, 1), (0, 1), (1, 9), (1, 0)):
        with pytest.raises(ConfigError, match="2 nodes of 8 GPUs"):
            choose_dilation(topology, nodes, gpus, HOST)
        with pytest.raises(ConfigError, match="2 nodes of 8 GPUs"):
            choose_quantum(topology, nodes, gpus, 1000.0)


def test_a_burst_is_a_millisecond_of_wall_time_in_whole_packets() -> None:
    topology = load_topology("seed-rail8", 2)
    for dilation in (1.0, 10.0, 777.0, 1900.0, 1e4, 1e6):
        quantum = choose_quantum(topology, 2, 2, dilation)
        assert quantum % 4096 == 0
        assert 4096 <= quantum <= 1 << 20
        exact = 25e9 / dilation * 1e-3
        assert quantum == max(4096, min(1 << 20, exact) // 4096 * 4096)


def test_many_hcas_make_larger_bursts_so_that_the_host_keeps_up() -> None:
    topology = load_topology("seed-rail8", 4)
    few, many = choose_quantum(topology, 2, 2, 1900.0), choose_quantum(topology, 4, 8, 1900.0)
    assert (few, many) == (12288, 40960)
    bursts_per_s = 32 * 25e9 / 1900 / many
    assert bursts_per_s <= 10_500
