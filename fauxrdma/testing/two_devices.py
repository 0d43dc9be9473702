"""What the conformance suites have in common: two devices that reach each other, and bytes to move."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest

from fauxrdma.verbs import Context

__all__ = ["TwoDevices", "pattern"]


class TwoDevices:
    """A suite that needs two devices; which, says the class that is derived from it."""

    def open_contexts(self) -> AbstractContextManager[tuple[Context, Context]]:
        """Two open devices, or one twice. Called once for each class; what is opened is closed by it."""
        raise NotImplementedError(f"{type(self).__name__} must say how to open two devices: override open_contexts")

    @pytest.fixture(scope="class")
    @classmethod
    def contexts(cls) -> Iterator[tuple[Context, Context]]:
        """What `open_contexts` opens."""
        with cls().open_contexts() as contexts:
            yield contexts


def pattern(length: int, salt: int = 3) -> bytes:
    """Bytes that are others where the next packet begins (a block of 1021, again and again), and others by `salt`."""
    block = bytes((number * number + salt * (number + 7)) & 0xFF for number in range(1021))
    return (block * (length // len(block) + 1))[:length]
