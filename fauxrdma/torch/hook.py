"""The entry point torch calls at `import torch` (group `torch.backends`): it makes the name "fauxrdma" known.

An exception here would break `import torch` for every program of the machine, so `register` swallows everything and
imports nothing of fauxrdma or torch at module level; the process group itself is imported on first use.
"""

from __future__ import annotations

from typing import Any

__all__ = ["BACKEND", "register"]

BACKEND = "fauxrdma"
"""The name to give to `init_process_group`."""


def _create(options: Any, backend_options: Any = None) -> Any:
    """What torch calls for `init_process_group("fauxrdma")` and `new_group`. `options` is a
    `torch._C._distributed_c10d._DistributedBackendOptions` (store, group rank and size, timeout, global ranks)."""
    from fauxrdma.torch.process_group import create_process_group

    return create_process_group(options)


def register() -> None:
    """Register the backend for CPU tensors. Never raises; calling it again changes nothing."""
    try:
        import torch.distributed as dist

        if not dist.is_available() or BACKEND in dist.Backend.backend_list:
            return
        dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu"])
    except Exception:  # import torch must go on, whatever is wrong here; `fauxrdma doctor` reports it
        return
