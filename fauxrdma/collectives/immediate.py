"""What the 32-bit immediate of a staged message says.

bit 31      0: a message of a plan (its bytes are in the slot)   1: credits only, nothing written
bits 24-30  credits returned with it (0..127)
bits 8-23   signature of the call that the message belongs to (zero for credits, and where nobody gives one)
bits 0-7    message number modulo 256 (zero for credits; 1: farewell, the sender closes)
"""

from __future__ import annotations

from fauxrdma.collectives.executor import Arrived, CreditReturned, Event

__all__ = ["FAREWELL", "decode_immediate", "encode_immediate"]

_CREDITS_ONLY = 1 << 31
FAREWELL = _CREDITS_ONLY | 1
"""No credits, nothing written: the sender has had all that it wanted of this connection."""


def encode_immediate(credits: int, number: int | None, call: int = 0) -> int:
    """The immediate of message `number` (None: credits only) with `credits` riding along; `call` has 16 bits."""
    if number is None:
        return _CREDITS_ONLY | credits << 24
    return credits << 24 | call << 8 | number & 0xFF


def decode_immediate(peer: int, immediate: int, nbytes: int) -> Event:
    """The event that an immediate from `peer` with `nbytes` written stands for."""
    credits = immediate >> 24 & 0x7F
    if immediate & _CREDITS_ONLY:
        return CreditReturned(peer, credits)
    return Arrived(peer, immediate & 0xFF, nbytes, credits, immediate >> 8 & 0xFFFF)
