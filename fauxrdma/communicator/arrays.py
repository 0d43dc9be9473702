"""The user's arrays as plans want them: one-dimensional, contiguous, of one dtype; and the checks before anything is
sent. All raise LocalProtocolError."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fauxrdma.collectives.arithmetic import Array
from fauxrdma.errors import LocalProtocolError

__all__ = ["apart", "check_blocks", "check_dtypes", "check_movable", "flat_input", "flat_output", "put_back"]


def check_movable(array: Array) -> None:
    """Refuse arrays whose elements mean nothing on another rank."""
    if not isinstance(array, np.ndarray):
        raise LocalProtocolError(f"a numpy array is needed, got {type(array).__name__}: wrap it with np.asarray")
    if array.dtype.hasobject:
        raise LocalProtocolError(f"arrays of dtype {array.dtype} hold references, which mean nothing on another rank")
    if array.dtype.itemsize == 0:
        raise LocalProtocolError(f"arrays of dtype {array.dtype} have elements of no bytes: there is nothing to send")


def flat_input(array: Array) -> Array:
    """`array` as one contiguous dimension: itself where possible, else a copy."""
    check_movable(array)
    return np.ascontiguousarray(array).reshape(-1)


def flat_output(array: Array, *, copy: bool) -> Array:
    """`array`, which is written, as one contiguous dimension: itself where possible, else a temporary (filled when
    `copy`) for :func:`put_back`."""
    check_movable(array)
    if not array.flags.writeable:
        raise LocalProtocolError("the result would be written into a read-only array: pass a copy of it")
    if array.flags.c_contiguous:
        return array.reshape(-1)
    return array.flatten() if copy else np.empty(array.size, array.dtype)


def put_back(array: Array, flat: Array) -> None:
    """The result into `array`, where `flat` is a temporary."""
    if not array.flags.c_contiguous:
        array[...] = flat.reshape(array.shape)


def check_dtypes(name: str, array: Array, output: Array) -> None:
    """Input and output of one dtype, and not the same memory."""
    if array.dtype != output.dtype:
        raise LocalProtocolError(f"{name}: the input is {array.dtype} and the output {output.dtype}; use one dtype")


def check_blocks(
    name: str, whole: Array, block: Array, counts: Sequence[int] | None, rank: int, world_size: int
) -> tuple[int, ...]:
    """The elements of each rank's block: `counts`, or equal ones. `whole` holds them all, `block` those of `rank`."""
    check_dtypes(name, block, whole)
    if counts is None:
        if whole.size != block.size * world_size:
            raise LocalProtocolError(
                f"{name} over {world_size} ranks: one array has {block.size} elements and the other {whole.size}; one "
                f"must be {world_size} times the other. For blocks of different sizes give counts"
            )
        return (block.size,) * world_size
    blocks = tuple(int(count) for count in counts)
    if len(blocks) != world_size or min(blocks) < 0:
        raise LocalProtocolError(f"{name}: counts must be {world_size} numbers of elements, none negative: {blocks}")
    if whole.size != sum(blocks) or block.size != blocks[rank]:
        raise LocalProtocolError(
            f"{name}: counts {blocks} ask for {sum(blocks)} elements in all and {blocks[rank]} on rank {rank}; the "
            f"arrays have {whole.size} and {block.size}"
        )
    return blocks


def apart(source: Array, flat: Array, at: int | None = None) -> Array:
    """`source`, or a copy of it where writing `flat` would change what is still to be sent.

    Both are flat. Memory shared is harmless when `flat` is exactly the elements of `source` from `at` on, or the other
    way round: a rank's own block, in place.
    """
    if not np.may_share_memory(source, flat):
        return source
    if at is not None:
        distance = abs(_address(flat) - _address(source))
        if distance == at * source.itemsize:
            return source
    return source.copy()


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
