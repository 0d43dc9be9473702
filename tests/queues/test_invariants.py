"""What holds of any traffic on any small fabric: every byte arrives once in order, nothing lossless is lost, nothing is
faster than its cables, and all is the same again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from queue_fabrics import fabric, flow

from fauxrdma.fabric.queues.play import play
from fauxrdma.fabric.queues.settings import BufferSettings, QueueSettings
from fauxrdma.fabric.transport import TRANSPORTS, CongestionControl, FlowControl

HOSTS = 6
KINDS = {
    "infiniband": ("infiniband", None, None),
    "pfc": ("rocev2", FlowControl.PFC, CongestionControl.NONE),
    "pfc and dcqcn": ("rocev2", FlowControl.PFC, CongestionControl.DCQCN),
    "lossy": ("rocev2", FlowControl.NONE, CongestionControl.NONE),
    "lossy and dcqcn": ("rocev2", FlowControl.NONE, CongestionControl.DCQCN),
    "rocev1": ("rocev1", None, None),
    "iwarp": ("iwarp", None, None),
}
RATES = st.sampled_from([25.0, 100.0, 400.0])
FLOWS = st.lists(
    st.tuples(
        st.integers(0, HOSTS - 1),
        st.integers(1, HOSTS - 1),
        st.integers(1, 300_000),
        st.integers(0, 30_000),
        st.sampled_from([None, 0, 3]),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(sorted(KINDS)),
    st.lists(RATES, min_size=HOSTS, max_size=HOSTS),
    RATES,
    st.sampled_from([3.0, 300.0]),
    st.floats(5e5, 4e6),
    FLOWS,
)
def test_every_byte_arrives_and_none_faster_than_its_cables(
    kind: str,
    rates: list[float],
    trunk: float,
    length_m: float,
    shared_bytes: float,
    drawn: list[tuple[int, int, int, int, int | None]],
) -> None:
    transport, flow_control, congestion_control = KINDS[kind]
    hosts = [(f"leaf{1 + host % 2}", rate) for host, rate in enumerate(rates)]
    manager = fabric(hosts, [("leaf1", "leaf2", trunk)], transport=transport, length_m=length_m)
    flows = [
        flow(manager, source, (source + ahead) % HOSTS, nbytes, start_ns=float(start), priority=priority)
        for source, ahead, nbytes, start, priority in drawn
    ]
    chosen = QueueSettings.of(TRANSPORTS[transport], flow_control, congestion_control)
    chosen = replace(chosen, buffers=BufferSettings(shared_bytes=shared_bytes))
    outcome = play(manager, flows, chosen, seed=1)
    lossless = chosen.flow_control is not FlowControl.NONE
    assert outcome.deadlock == []
    for result in outcome.flows:
        nbytes = result.flow.nbytes
        path = manager.path(result.flow.source, result.flow.target)
        assert result.completion_ns is not None
        fastest = path.latency_ns + nbytes / path.rate.bytes_per_ns
        assert result.completion_ns > 0.98 * fastest - 2 * outcome.step_ns
        assert result.delivered == pytest.approx(nbytes, abs=1.0)
        assert result.sent >= result.delivered + result.dropped - 1.0
        if lossless:
            assert result.dropped == 0
            assert result.sent == pytest.approx(nbytes, abs=1e-3)
    for link in outcome.links:
        assert link.queue_max <= shared_bytes
        if lossless:
            assert link.dropped == 0
    assert outcome == play(manager, flows, chosen, seed=1)
