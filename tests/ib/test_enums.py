"""The constants are libibverbs' own: names and values read off its header by a C compiler (libibverbs 44)."""

from __future__ import annotations

from pathlib import Path

from fauxrdma.ib import enums

VALUES = dict(line.split() for line in (Path(__file__).parent / "libibverbs_values.txt").read_text().splitlines())


def test_every_constant_has_the_value_of_libibverbs() -> None:
    for name, value in VALUES.items():
        assert int(getattr(enums, name)) == int(value), name


def test_every_flat_constant_is_covered() -> None:
    flat = {name for name in enums.__all__ if name.startswith("IBV_")}
    assert flat == set(VALUES)


def test_mtu_codes_and_bytes() -> None:
    assert [mtu.nbytes for mtu in enums.Mtu] == [256, 512, 1024, 2048, 4096]
    assert enums.Mtu.of_bytes(4096) is enums.IBV_MTU_4096
