"""The colours of lines that must be told apart, in all drawings alike."""

from __future__ import annotations

__all__ = ["SERIES_COLOURS"]

SERIES_COLOURS = ("#1f6fd1", "#d1571f", "#2a9d5c", "#8a4fd1", "#c22f6b", "#7a6a12", "#0e8f9c", "#5b6775")
"""Legible on white and on dark paper; after the last, begin again."""
