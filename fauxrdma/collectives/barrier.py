"""The dissemination barrier: in round k every rank signals rank + 2^k and waits for rank - 2^k."""

from __future__ import annotations

from fauxrdma.collectives.plan import Free, Plan, Program, ProgramBuilder, Signal, Traffic
from fauxrdma.errors import LocalProtocolError

__all__ = ["dissemination_barrier"]


def dissemination_barrier(world_size: int) -> Plan:
    """A barrier of ceil(log2 n) rounds of empty messages; after round k a rank knows that 2^(k+1) ranks have arrived.

    Raises LocalProtocolError for world_size < 1.
    """
    if world_size < 1:
        raise LocalProtocolError(f"a barrier needs at least one rank, got world_size={world_size}")
    rounds = (world_size - 1).bit_length()

    def build(rank: int) -> Program:
        program = ProgramBuilder()
        for k in range(rounds):
            out = program.next_out((rank + (1 << k)) % world_size, 0)
            program.add(Signal(out.peer, out.index))
            arrived = program.wait((rank - (1 << k)) % world_size, 0)
            program.add(Free(arrived.peer, arrived.index))
        return program.finish()

    def declare(rank: int) -> Traffic:
        return Traffic(rounds, 0)

    order = "nothing is reduced"
    return Plan("barrier", "dissemination", world_size, {}, rounds, 1, 1, order, build, declare)
