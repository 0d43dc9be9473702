"""The page of states is the tables."""

from __future__ import annotations

from pathlib import Path

from fauxrdma.ib import qp_diagram
from fauxrdma.ib.enums import QpType

PAGE = Path(__file__).resolve().parents[2] / "docs" / "qp-states.md"


def test_the_page_is_what_the_tables_draw() -> None:
    assert PAGE.read_text() == qp_diagram.page(), "python -m fauxrdma.ib.qp_diagram > docs/qp-states.md"


def test_a_diagram_shows_every_transition_and_the_way_out() -> None:
    lines = qp_diagram.mermaid(QpType.IBV_QPT_RC).splitlines()
    assert lines[0] == "stateDiagram-v2"
    assert "    RESET --> INIT: ACCESS_FLAGS, PKEY_INDEX, PORT" in lines
    assert "    SQD --> RTS" in lines
    assert "    RTS --> ERR: error" in lines
    assert "    INIT --> ERR" in lines
