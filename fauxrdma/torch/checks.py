"""What torch's callers pass, checked before anything is sent. All raise LocalProtocolError."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fauxrdma.errors import LocalProtocolError

__all__ = ["check_list", "check_pair", "only", "rows", "same_dtype"]


def only(name: str, items: Any) -> Any:
    """The one tensor (or list of tensors) that a call of this process is about."""
    if isinstance(items, torch.Tensor):  # pg.allreduce(tensor), without a list, is torch's short form
        return items
    if len(items) != 1:
        raise LocalProtocolError(f"{name} takes one tensor per process, got {len(items)}")
    return items[0]


def same_dtype(name: str, tensors: Sequence[torch.Tensor]) -> None:
    """All tensors of a call have one dtype, and there are some."""
    dtypes = {tensor.dtype for tensor in tensors}
    if len(dtypes) != 1:
        raise LocalProtocolError(f"{name} needs tensors of one dtype, got {sorted(map(str, dtypes)) or 'no tensors'}")


def check_pair(name: str, whole: torch.Tensor, part: torch.Tensor, size: int) -> None:
    """`whole` is of the dtype of `part` and has `size` times as many elements."""
    same_dtype(name, [whole, part])
    if whole.numel() != part.numel() * size:
        raise LocalProtocolError(
            f"{name} over {size} ranks needs one tensor of {size} times as many elements as the other, got "
            f"{whole.numel()} (shape {list(whole.shape)}) and {part.numel()} (shape {list(part.shape)})"
        )


def check_list(name: str, tensors: Sequence[torch.Tensor], size: int, own: torch.Tensor, rank: int | None) -> list[int]:
    """`tensors` are one per rank, of the dtype of `own`; returns their numbers of elements.

    With `rank`, sizes may differ, and the one of that rank must be that of `own`; with None, all must.
    """
    if len(tensors) != size:
        raise LocalProtocolError(f"{name} needs a list of {size} tensors, one per rank, got {len(tensors)}")
    for number, tensor in enumerate(tensors):
        wrong_size = tensor.numel() != own.numel() and rank in (None, number)
        if wrong_size or tensor.dtype != own.dtype:
            raise LocalProtocolError(
                f"{name}: tensor {number} of the list has {tensor.numel()} elements of {tensor.dtype}, but this rank's "
                f"own tensor {own.numel()} of {own.dtype}"
            )
    return [tensor.numel() for tensor in tensors]


def rows(name: str, what: str, tensor: torch.Tensor, splits: Sequence[int], size: int) -> list[int]:
    """The elements that go to (or come from) each rank when `tensor` is cut along its first dimension by `splits`, or
    evenly when there are none."""
    length = tensor.shape[0] if tensor.dim() else 1
    if not splits:
        if length % size:
            raise LocalProtocolError(
                f"{name}: the {what} has {length} rows, which cannot be cut evenly for {size} ranks: give {what} splits"
            )
        splits = [length // size] * size
    if len(splits) != size or min(splits) < 0 or sum(splits) != length:
        raise LocalProtocolError(
            f"{name}: {what} splits must be {size} numbers of rows that add up to the {length} of the {what}, got "
            f"{list(splits)}"
        )
    row = tensor.numel() // length if length else 0
    return [split * row for split in splits]
