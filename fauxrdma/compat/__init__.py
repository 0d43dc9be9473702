"""pyverbs' names over the emulated devices, so that programs written for hardware run without a change.

`python -m fauxrdma.compat program.py` runs one; :func:`install` does the same inside a process. What differs from
pyverbs, and why, is in docs/pyverbs.md.
"""

from __future__ import annotations

import importlib
import sys

__all__ = ["MODULES", "install"]

MODULES = (
    "addr", "base", "cm_enums", "cmid", "comp_cntr", "cq", "device", "dma_util", "dmabuf", "enums", "flow", "fork",
    "libibverbs_enums", "librdmacm_enums", "mem_alloc", "mr", "pd", "providers", "pyverbs_error", "qp", "spec", "srq",
    "utils", "wq", "wr", "xrcd",
)  # fmt: skip
"""Modules of pyverbs that are here under the same name."""


def install() -> None:
    """From now on `import pyverbs` finds these modules, also where the real ones are installed."""
    sys.modules["pyverbs"] = sys.modules[__name__]
    for name in MODULES:
        sys.modules[f"pyverbs.{name}"] = importlib.import_module(f"{__name__}.{name}")
    from fauxrdma.compat import providers

    for name, module in providers.stand_ins().items():
        sys.modules[f"pyverbs.providers.{name}"] = module
