"""The routing engine of a lab: asked for, really used, and named in the report with the reason of a fall-back."""

from __future__ import annotations

import pytest

from fauxrdma.errors import ConfigError
from fauxrdma.lab.local import LocalLab


@pytest.mark.parametrize(("asked", "used"), [("dfsssp", "dfsssp"), ("ftree", "minhop")])
def test_report_names_the_engine_and_why_it_is_another(asked: str, used: str) -> None:
    with LocalLab("seed-two-switch", nodes=1, gpus=1, clock="none", routing=asked) as lab:
        report = lab.report()
    assert report.routing == used
    assert bool(report.routing_messages) == (asked != used)
    if asked != used:
        assert "Found more than one root on fabric" in report.routing_messages[0]


def test_an_engine_of_another_transport_is_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="routing 'spray' is not for infiniband"):
        LocalLab("seed-two-switch", nodes=1, gpus=1, routing="spray")
