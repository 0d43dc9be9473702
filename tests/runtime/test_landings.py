"""What a daemon tells the manager of where payload lands: changes, of bulk, and the end."""

from __future__ import annotations

from fauxrdma.ib.enums import BthOpcode
from fauxrdma.memory.location import main_memory
from fauxrdma.runtime.landings import Landings
from fauxrdma.wire.control import Message
from fauxrdma.wire.fabric_messages import FlowLanding
from fauxrdma.wire.headers import Frame


def frame(qpn: int, *extents: tuple[int, int]) -> Frame:
    nbytes = sum(size for _, size in extents)
    return Frame(int(BthOpcode.RC_RDMA_WRITE_ONLY), 1, 10, qpn, 0, nbytes=nbytes, extents=extents)


def test_changes_are_told_once_and_only_of_bulk() -> None:
    told: list[Message] = []
    landings = Landings(told.append)
    for _ in range(2):
        landings.landed(frame(7, (0, 64)))  # the first of all, however small
    landings.landed(frame(7, (2, 4095)))
    landings.landed(frame(8, (2, 4096)))
    assert told == [FlowLanding(10, 7, 0), FlowLanding(10, 8, 2)]
    landings.landed(frame(7, (2, 4096)))
    landings.landed(frame(7, (2, 4096)))
    landings.landed(frame(7, (-1, 9000)))
    assert told[2:] == [FlowLanding(10, 7, 2), FlowLanding(10, 7, -1)]


def test_a_queue_pair_s_end_is_told_if_it_was_known() -> None:
    told: list[Message] = []
    landings = Landings(told.append)
    landings.forget(10, 7)
    assert told == []
    landings.landed(frame(7, (1, 8192)))
    landings.forget(10, 7)
    landings.forget(10, 7)
    assert told[1:] == [FlowLanding(10, 7, None)]
    landings.landed(frame(7, (1, 8192)))
    assert told[2:] == [FlowLanding(10, 7, 1)]


def test_a_scattered_payload_is_where_most_of_it_is() -> None:
    assert main_memory(()) == 0
    assert main_memory([(3, 10)]) == 3
    assert main_memory([(1, 10), (2, 15), (1, 10)]) == 1
    assert main_memory([(2, 10), (1, 10)]) == 2
