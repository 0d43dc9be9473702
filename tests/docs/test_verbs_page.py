"""docs/verbs.md leaves nothing out: every public name and every constant a program may use has its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from fauxrdma import verbs
from fauxrdma.ib import enums

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "verbs.md").read_text()


@pytest.mark.parametrize("name", [name for name in verbs.__all__ if name not in ("WC",)])
def test_every_public_name_is_on_the_page(name: str) -> None:
    assert f"`{name}" in PAGE or f"`{name}`" in PAGE or f" {name}`" in PAGE or f"`{name}." in PAGE


@pytest.mark.parametrize(
    "member",
    [
        *enums.WrOpcode,
        *enums.SendFlags,
        *enums.AccessFlags,
        *enums.WcStatus,
        *enums.WcFlags,
        *enums.AsyncEventType,
    ],
    ids=lambda member: member.name,
)
def test_every_flag_status_and_event_is_on_the_page(member: enums.WcStatus) -> None:
    assert f"`{member.name}`" in PAGE
