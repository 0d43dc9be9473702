"""Why an access to memory was refused."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Fault"]


@dataclass(slots=True)
class Fault:
    """Why an access was refused, as a sentence."""

    reason: str
