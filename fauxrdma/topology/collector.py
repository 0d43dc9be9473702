"""Large fabrics are millions of small records, none of which refers back to another."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["collector_off"]


@contextmanager
def collector_off() -> Iterator[None]:
    """Keep the collector of circular garbage from going through all records again and again while they are made, which
    takes longer than making them. Reference counting goes on."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
