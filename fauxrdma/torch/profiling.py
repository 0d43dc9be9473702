"""Operations as events of torch's profiler, named as other backends name theirs: ``fauxrdma:all_reduce``, from the call
to its end, whichever thread that comes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["begin_event"]


def begin_event(operation: str) -> Callable[[], Any] | None:
    """Begin the event of `operation` and return what ends it; None, at hardly any cost, while nobody profiles."""
    if not torch._C._autograd._profiler_enabled():
        return None
    handle = torch.ops.profiler._record_function_enter_new(f"fauxrdma:{operation}", None)
    return lambda: torch.ops.profiler._record_function_exit._RecordFunction(handle)
