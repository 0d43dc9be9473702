"""Fabrics on this machine: their processes, the jobs run over them, and `fauxrdma.lab(...)` for notebooks."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _CallableModule(ModuleType):
    """So that `fauxrdma.lab("fat-tree")` works although `fauxrdma.lab` is this package."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """As `fauxrdma.lab.notebook.lab`."""
        from fauxrdma.lab.notebook import lab

        return lab(*arguments, **options)


sys.modules[__name__].__class__ = _CallableModule
