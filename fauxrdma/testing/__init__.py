"""The test kit: for people who test their own RDMA code.

- `Pair`: two HCAs in this process, in virtual time; frames are lost, doubled, delayed, overtaken or find the receiver
  not ready by rule or by seed (:mod:`fauxrdma.testing.pair`)
- `End`: one end of a connection (:mod:`fauxrdma.testing.end`)
- `ObjectWatch`, `LeakedObjects`, `Deadlock`, `FaultRule`: what the above are made of, and raise

The names are loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import Any

_LAZY = {
    "BufferProvider": "memory_conformance",
    "Deadlock": "in_process",
    "End": "end",
    "FaultRule": "frame_faults",
    "LeakedObjects": "leaks",
    "MemoryProviderConformance": "memory_conformance",
    "NewMemoryProvider": "memory_conformance",
    "ObjectWatch": "leaks",
    "Pair": "pair",
    "TransportConformance": "transport_conformance",
}


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it offers {', '.join(sorted(_LAZY))}")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
