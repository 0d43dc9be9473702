"""What a completion queue's arming word asks for."""

from __future__ import annotations

import pytest

from fauxrdma.abi.layout import cq_bytes
from fauxrdma.abi.rings import CompletionRing


@pytest.mark.parametrize(
    ("solicited_only", "solicited_or_error", "wakes"),
    [(False, False, True), (False, True, True), (True, False, False), (True, True, True)],
)
def test_which_completions_wake(solicited_only: bool, solicited_or_error: bool, wakes: bool) -> None:
    ring = CompletionRing(memoryview(bytearray(cq_bytes(4))), 4)
    assert not ring.armed_for(True)
    ring.arm(solicited_only)
    assert ring.armed_for(solicited_or_error) is wakes
    ring.disarm()
    assert not ring.armed_for(True)
