"""fauxrdma: emulated HCAs over real sockets, shaped fabrics, and a torch.distributed backend.

The names below are loaded on first use, so that `import fauxrdma` costs nothing and pulls in no torch:

- ``lab``: a fabric for notebooks, ``with`` or ``async with`` (:mod:`fauxrdma.lab.notebook`)
- ``LocalLab``: start a fabric on this machine (:mod:`fauxrdma.lab.local`)
- ``Communicator``: collectives on numpy arrays (:mod:`fauxrdma.communicator`)
- ``Context``, ``PD``, ``MR``, ``CQ``, ``QP``: the verbs (:mod:`fauxrdma.verbs`)
- ``load_topology``: a preset or a YAML file as a graph (:mod:`fauxrdma.topology.loading`)
- ``FauxrdmaError``: the base of every error raised on purpose (:mod:`fauxrdma.errors`)
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# Names as strings, not imports: this package is below every layer, and must import none of them.
_LAZY = {
    "CQ": "fauxrdma.verbs",
    "Communicator": "fauxrdma.communicator",
    "Context": "fauxrdma.verbs",
    "FauxrdmaError": "fauxrdma.errors",
    "LocalLab": "fauxrdma.lab.local",
    "MR": "fauxrdma.verbs",
    "PD": "fauxrdma.verbs",
    "QP": "fauxrdma.verbs",
    "load_topology": "fauxrdma.topology.loading",
}
_MODULES = ("lab",)
"""Packages that can be called."""


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"fauxrdma.{name}")
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(
            f"module 'fauxrdma' has no attribute {name!r}; it offers {', '.join(sorted((*_LAZY, *_MODULES)))}"
        )
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, *_MODULES})
