"""Labs shared by the tests of this folder: starting one takes most of a second."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pairs import End, connect

from fauxrdma.lab.local import LocalLab


@pytest.fixture(scope="session")
def unshaped() -> Iterator[LocalLab]:
    """Two nodes, clock none."""
    with LocalLab("seed-rail8", nodes=2, gpus=2, clock="none") as lab:
        yield lab


@pytest.fixture
def pair(unshaped: LocalLab) -> Iterator[tuple[End, End]]:
    """Two connected ends on two nodes."""
    a, b = End(unshaped, 0), End(unshaped, 1)
    connect(a, b)
    yield a, b
    a.close()
    b.close()
