"""The two atomic operations on a word of registered memory (IBTA vol. 1, 9.4.5).

The word is 8 bytes in the byte order of the host that owns it. The daemon runs one frame of one engine at a time, so
every atomic through it is atomic against all others; against the owner's own stores it is not (IBV_ATOMIC_HCA).
"""

from __future__ import annotations

import sys

from fauxrdma.ib.enums import BthOpcode
from fauxrdma.memory.spans import Piece

__all__ = ["ATOMIC_BYTES", "ATOMIC_REQUESTS", "execute_atomic", "put_word"]

ATOMIC_BYTES = 8
ATOMIC_REQUESTS = frozenset((int(BthOpcode.RC_COMPARE_SWAP), int(BthOpcode.RC_FETCH_ADD)))
_COMPARE_SWAP = int(BthOpcode.RC_COMPARE_SWAP)
_MASK = (1 << 64) - 1


def execute_atomic(opcode: int, word: Piece, swap_add: int, compare: int) -> int:
    """Carry out COMPARE_SWAP (write `swap_add` if the word equals `compare`) or FETCH_ADD (add `swap_add` modulo 2^64)
    on the 8 bytes of `word`; returns what they held before. Raises Unreachable."""
    original = int.from_bytes(bytes(word), sys.byteorder)
    if opcode != _COMPARE_SWAP:
        put_word(word, original + swap_add & _MASK)
    elif original == compare:
        put_word(word, swap_add)
    return original


def put_word(word: Piece, value: int, big_endian: bool = False) -> None:
    """Store a 64-bit value in host order; `big_endian` is how some adapters deliver replies (ib/profiles.py).
    Raises Unreachable."""
    word[:] = value.to_bytes(ATOMIC_BYTES, "big" if big_endian else sys.byteorder)
