"""Lossless long flows without head-of-line effects: the queue-level model takes as long as the flow-level one says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from queue_fabrics import fabric, flow

from fauxrdma.fabric.maxmin import max_min_rates
from fauxrdma.fabric.queues.play import Flow, play
from fauxrdma.fabric.queues.settings import BufferSettings, QueueSettings
from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.fabric.transport import CongestionControl

HOSTS = 6
SMALL = BufferSettings(shared_bytes=500_000)
"""Next to which the flows are long: until a buffer is full, a faster port has the larger share of what is behind it."""
MEGABYTES = st.integers(3, 6)
TRANSPORTS = st.sampled_from(["infiniband", "rocev2"])


def flow_level(manager: SubnetManager, flows: list[Flow]) -> list[float]:
    """When each flow is complete at max-min fair rates that change whenever one is."""
    topology = manager.topology
    capacity = np.array([manager.payload_rate(link.id).bytes_per_ns for link in topology.links])
    paths = [manager.path(flow.source, flow.target) for flow in flows]
    links = np.full((len(flows), max(len(path.links) for path in paths)), len(capacity))
    for row, path in enumerate(paths):
        links[row, : len(path.links)] = path.links
    left = np.array([float(flow.nbytes) for flow in flows])
    done = np.zeros(len(flows))
    now = 0.0
    while (active := np.flatnonzero(left > 1e-6)).size:
        rates = max_min_rates(capacity, links[active], np.ones(len(active)))
        lasts = float((left[active] / rates).min())
        now += lasts
        left[active] -= rates * lasts
        done[active[left[active] <= 1e-6]] = now
    return [float(at) + path.latency_ns for at, path in zip(done, paths, strict=True)]


def check(manager: SubnetManager, flows: list[Flow]) -> None:
    chosen = replace(QueueSettings.of(manager.transport), congestion_control=CongestionControl.NONE, ecn=None)
    outcome = play(manager, flows, replace(chosen, step_ns=1000.0, buffers=SMALL))
    for result, expected in zip(outcome.flows, flow_level(manager, flows), strict=True):
        assert result.completion_ns == pytest.approx(expected, rel=0.05)


@settings(max_examples=15, deadline=None)
@given(
    TRANSPORTS,
    st.lists(st.sampled_from([25.0, 50.0, 100.0]), min_size=HOSTS, max_size=HOSTS),
    st.lists(st.tuples(st.integers(1, HOSTS - 1), MEGABYTES), min_size=2, max_size=HOSTS),
)
def test_one_flow_from_each_host_of_a_switch_to_any(
    transport: str, rates: list[float], ends: list[tuple[int, int]]
) -> None:
    if transport == "rocev2":
        # A faster port overshoots XOFF by more, and what it has in a queue is its share of it: packets say so, too.
        rates = [rates[0]] * HOSTS
    manager = fabric([("leaf1", rate) for rate in rates], transport=transport)
    check(manager, [flow(manager, n, (n + ahead) % HOSTS, size * 10**6) for n, (ahead, size) in enumerate(ends)])


@settings(max_examples=10, deadline=None)
@given(
    TRANSPORTS,
    st.sampled_from([50.0, 100.0, 200.0, 400.0]),
    st.permutations(range(HOSTS)),
    st.lists(MEGABYTES, min_size=HOSTS, max_size=HOSTS),
)
def test_a_permutation_over_a_trunk(transport: str, trunk: float, targets: list[int], sizes: list[int]) -> None:
    hosts = [("leaf1", 100.0)] * (HOSTS // 2) + [("leaf2", 100.0)] * (HOSTS // 2)
    manager = fabric(hosts, [("leaf1", "leaf2", trunk)], transport=transport)
    flows = [flow(manager, n, to, sizes[n] * 10**6) for n, to in enumerate(targets) if n != to]
    if flows:
        check(manager, flows)
