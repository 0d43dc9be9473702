"""The test kit: for people who test their own RDMA code.

- `Pair`: two HCAs in this process, in virtual time; frames are lost, doubled, delayed, overtaken or find the receiver
  not ready by rule or by seed (:mod:`fauxrdma.testing.pair`)
- `MemoryProviderConformance`, `TransportConformance`: what any memory provider and any transport must pass
  (:mod:`fauxrdma.testing.memory_conformance`, :mod:`fauxrdma.testing.transport_conformance`)
- `End`: one end of a connection (:mod:`fauxrdma.testing.end`)
- `ObjectWatch`, `LeakedObjects`, `Deadlock`, `FaultRule`: what the above are made of, and raise
- the pytest plugin with the fixtures `fauxrdma_pair` and `fauxrdma_fabric` (:mod:`fauxrdma.testing.plugin`)

docs/testing.md shows how to use them. The names are loaded on first use: the plugin must cost those nothing who do not
use it.
"""

from __future__ import annotations

import importlib
from typing import Any

_LAZY = {
    "Deadlock": "in_process",
    "End": "end",
    "FaultRule": "frame_faults",
    "LeakedObjects": "leaks",
    "ObjectWatch": "leaks",
    "Pair": "pair",
}


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it offers {', '.join(sorted(_LAZY))}")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
