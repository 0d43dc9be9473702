"""Sends and receives under torch's names. They go on beside the group's collectives and beside each other, so that any
order of isend and irecv (batch_isend_irecv, pipelines) works."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fauxrdma.communicator import PendingTransfer
from fauxrdma.torch.checks import only
from fauxrdma.torch.group import Group
from fauxrdma.torch.tensors import as_array
from fauxrdma.torch.work import FauxrdmaWork

__all__ = ["PointToPointCalls"]


class PointToPointCalls(Group):
    """Point-to-point operations of a process group."""

    def send(self, tensors: Sequence[torch.Tensor], destination: int, tag: int = 0) -> FauxrdmaWork:
        """Send one tensor to a rank of the group."""
        tensor = only("send", tensors)
        work = FauxrdmaWork("send", [tensor])
        self._communicator.isend(as_array(tensor), int(destination), int(tag), **self._options(tensor, work))
        return self._remember(work)

    def recv(self, tensors: Sequence[torch.Tensor], source: int, tag: int = 0) -> FauxrdmaWork:
        """Receive one tensor from a rank of the group."""
        return self._receive(tensors, int(source), tag)

    def recv_anysource(self, tensors: Sequence[torch.Tensor], tag: int = 0) -> FauxrdmaWork:
        """Receive one tensor from whoever sends first; the Work's source_rank says who it was."""
        return self._receive(tensors, None, tag)

    def _receive(self, tensors: Sequence[torch.Tensor], source: int | None, tag: int) -> FauxrdmaWork:
        tensor = only("recv", tensors)
        work = FauxrdmaWork("recv", [tensor])
        self._communicator.irecv(as_array(tensor), source, int(tag), **self._options(tensor, work))
        return self._remember(work)

    def _options(self, tensor: torch.Tensor, work: FauxrdmaWork) -> dict[str, Any]:
        def done(transfer: PendingTransfer) -> None:
            work.finish(transfer.error, transfer.source)

        return {"dtype": str(tensor.dtype), "timeout_s": self._timeout.total_seconds(), "when_done": done}
