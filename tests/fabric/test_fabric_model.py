"""FabricModel: rates as flows come and go, told only when they change."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fauxrdma.errors import LocalProtocolError
from fauxrdma.fabric.model import FabricModel
from fauxrdma.fabric.subnet import Path, SubnetManager
from fauxrdma.topology.loading import load_topology
from fauxrdma.units import Rate


def path(*links: int) -> Path:
    return Path(links, 0, 0, Rate(1))


def model(*gbps: int) -> FabricModel[str]:
    return FabricModel([Rate.gbps(g) for g in gbps])


def test_only_changed_rates_are_told() -> None:
    fabric = model(100, 100, 30)
    assert fabric.changes() == {}
    fabric.start("a", path(0, 1))
    fabric.start("z", path(2))
    assert fabric.changes() == {"a": 100 * 10**9, "z": 30 * 10**9}
    assert fabric.changes() == {}
    fabric.start("b", path(1), weight=3.0)
    assert fabric.changes() == {"a": 25 * 10**9, "b": 75 * 10**9}
    fabric.stop("z")
    assert fabric.changes() == {}
    assert fabric.rates() == {"a": 25 * 10**9, "b": 75 * 10**9}
    fabric.stop("b")
    fabric.stop("b")  # idempotent
    assert fabric.changes() == {"a": 100 * 10**9}
    assert ("a" in fabric, "b" in fabric, len(fabric)) == (True, False, 1)
    fabric.stop("a")
    assert (fabric.changes(), fabric.rates(), len(fabric)) == ({}, {}, 0)


def test_a_flow_that_stopped_and_started_between_two_looks_is_told_again() -> None:
    fabric = model(100)
    fabric.start("a", path(0))
    fabric.changes()
    fabric.stop("a")
    fabric.start("a", path(0))
    assert fabric.changes() == {"a": 100 * 10**9}
    fabric.start("a", path(0), weight=2.0)  # without a stop
    assert fabric.changes() == {"a": 100 * 10**9}
    assert len(fabric) == 1


def test_rounding_never_stalls_a_flow() -> None:
    fabric: FabricModel[int] = FabricModel([Rate(3)])
    for flow in range(50):
        fabric.start(flow, path(0))
    assert set(fabric.changes().values()) == {1}


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf"), 1e-9, 1e9])
def test_senseless_weights_are_refused(weight: float) -> None:
    fabric = model(100)
    with pytest.raises(LocalProtocolError, match="weight"):
        fabric.start("a", path(0), weight)
    assert fabric.changes() == {}
    with pytest.raises(LocalProtocolError, match="no links"):
        fabric.start("a", path())


@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(0, 40), st.lists(st.integers(0, 5), min_size=1, max_size=6, unique=True)),
        max_size=80,
    ),
    st.lists(st.booleans(), min_size=80, max_size=80),
)
@settings(max_examples=150, deadline=None)
def test_rates_depend_only_on_which_flows_are_active(
    events: list[tuple[bool, int, list[int]]], look: list[bool]
) -> None:
    """Any history ends at the rates of a fresh model with the same flows; and what was told adds up to them."""
    rates = [Rate.gbps(g) for g in (10, 25, 40, 100, 200, 400)]
    fabric: FabricModel[int] = FabricModel(rates)
    active: dict[int, Path] = {}
    told: dict[int, int] = {}
    for (start, flow, links), now in zip(events, look, strict=False):
        if start:
            active[flow] = path(*links)
            fabric.start(flow, active[flow])
        else:
            active.pop(flow, None)
            told.pop(flow, None)
            fabric.stop(flow)
        if now:
            told |= fabric.changes()
    told |= fabric.changes()
    fresh: FabricModel[int] = FabricModel(rates)
    for flow, its_path in active.items():
        fresh.start(flow, its_path)
    want = fresh.changes()
    assert fabric.rates() == told
    assert told == {flow: pytest.approx(rate, abs=1) for flow, rate in want.items()}


def test_rails_of_a_real_fabric_do_not_disturb_each_other() -> None:
    manager = SubnetManager(load_topology("seed-rail8", 4))
    fabric: FabricModel[tuple[int, int]] = FabricModel.of(manager)
    for host in range(4):
        for i in range(1, 9):
            fabric.start(
                (host, i), manager.path(manager.lid(f"n{host}.hca{i}"), manager.lid(f"n{(host + 1) % 4}.hca{i}"))
            )
    line_rate = 200 * 10**9 * 4096 // 4122
    assert set(fabric.changes().values()) == {line_rate}
    # One more into n1.hca1 halves the flow that ends there and no other.
    fabric.start((9, 9), manager.path(manager.lid("n2.hca9"), manager.lid("n1.hca1")))
    changed = fabric.changes()
    assert changed == {(0, 1): pytest.approx(line_rate / 2, abs=1), (9, 9): pytest.approx(line_rate / 2, abs=1)}
