"""What any memory provider must pass: memory that it registers is read and written by a peer, within its bounds and its
access, until it is deregistered.

::

    class TestMyProvider(MemoryProviderConformance):
        def make_provider(self):
            return MyProvider()

A provider here is anything with ``register(pd, length, access) -> MR``. Those of fauxrdma are in docs/memory.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import pytest

from fauxrdma.errors import VerbsError
from fauxrdma.ib.enums import (
    IBV_ACCESS_LOCAL_WRITE,
    IBV_ACCESS_REMOTE_READ,
    IBV_ACCESS_REMOTE_WRITE,
    IBV_SEND_SIGNALED,
    IBV_WC_LOC_PROT_ERR,
    IBV_WC_REM_ACCESS_ERR,
    IBV_WC_SUCCESS,
    IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE,
    IBV_WR_SEND,
)
from fauxrdma.testing.end import End
from fauxrdma.testing.pair import Pair
from fauxrdma.testing.two_devices import TwoDevices, pattern
from fauxrdma.verbs import MR, PD, SGE, Context, RecvWR, SendWR

__all__ = ["BufferProvider", "MemoryProvider", "MemoryProviderConformance", "NewMemoryProvider"]

ALL = int(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)
LENGTHS = (1, 4096, 4097, 100_001)
"""Bytes of a region: less than a page, one, a bit more, many."""


class MemoryProvider(Protocol):
    """What registers memory."""

    def register(self, pd: PD, length: int, access: int) -> MR:
        """A region of `length` bytes. Raises VerbsError when it cannot be."""


class NewMemoryProvider:
    """Memory made for the region: fauxrdma's `memfd`."""

    def register(self, pd: PD, length: int, access: int) -> MR:
        """As MemoryProvider."""
        return MR(pd, length, access, provider="memfd")


class BufferProvider:
    """A buffer that there is already, by fauxrdma's provider `name`: process_vm or staged. `make(length)` makes the
    buffer (default: a bytearray)."""

    def __init__(self, name: str, make: Any = bytearray) -> None:
        self.name = name
        self._make = make

    def register(self, pd: PD, length: int, access: int) -> MR:
        """As MemoryProvider."""
        return MR.over(pd, self._make(length), access, provider=self.name)


class MemoryProviderConformance(TwoDevices):
    """Derive a test class from it and say what the provider is. The peer's memory is fauxrdma's own."""

    def make_provider(self) -> MemoryProvider:
        """The provider to be tested; called for each test."""
        raise NotImplementedError(f"{type(self).__name__} must say which provider to test: override make_provider")

    def open_contexts(self) -> AbstractContextManager[tuple[Context, Context]]:
        """Two open devices that reach each other: the provider's memory is registered with the first. A `Pair`'s unless
        overridden."""
        return _pair()

    @pytest.fixture
    def ends(self, contexts: tuple[Context, Context]) -> Iterator[tuple[End, End]]:
        """Connected: `ours` (of the provider's memory) and the peer."""
        ours, peer = End(contexts[0], 1 << 18), End(contexts[1], 1 << 18)
        ours.connect(peer)
        yield ours, peer
        ours.close()
        peer.close()

    @pytest.fixture
    def provider(self) -> MemoryProvider:
        """What `make_provider` makes."""
        return self.make_provider()

    @pytest.mark.parametrize("length", LENGTHS)
    def test_a_peer_writes_and_reads_it(self, ends: tuple[End, End], provider: MemoryProvider, length: int) -> None:
        ours, peer = ends
        with provider.register(ours.pd, length, ALL) as region:
            data = pattern(length)
            peer.mr.write(data, length)
            assert _access(peer, IBV_WR_RDMA_WRITE, region, length) == IBV_WC_SUCCESS
            assert _seen(region, length) == data
            region.write(data[::-1], length)
            assert _access(peer, IBV_WR_RDMA_READ, region, length) == IBV_WC_SUCCESS
            assert peer.mr.read(length, 0) == data[::-1]

    def test_only_what_is_addressed_changes(self, ends: tuple[End, End], provider: MemoryProvider) -> None:
        ours, peer = ends
        with provider.register(ours.pd, 9000, ALL) as region:
            region.write(b"\xaa" * 9000, 9000)
            peer.mr.write(pattern(5000), 5000)
            assert _access(peer, IBV_WR_RDMA_WRITE, region, 5000, 3001) == IBV_WC_SUCCESS
            assert _seen(region, 9000) == b"\xaa" * 3001 + pattern(5000) + b"\xaa" * 999

    def test_it_is_sent_from_and_received_into(self, ends: tuple[End, End], provider: MemoryProvider) -> None:
        ours, peer = ends
        with provider.register(ours.pd, 20_000, ALL) as region:
            region.write(pattern(20_000), 20_000)
            peer.receive(20_000, 1)
            ours.qp.post_send(SendWR(2, IBV_WR_SEND, [_sge(region, 0, 20_000)], send_flags=IBV_SEND_SIGNALED))
            assert [wc.status for wc in (*ours.wait(), *peer.wait())] == [IBV_WC_SUCCESS] * 2
            assert peer.mr.read(20_000, 0) == pattern(20_000)
            ours.qp.post_recv(RecvWR(3, [_sge(region, 10_000, 5000), _sge(region, 0, 5000)]))
            peer.send(10_000, 4)
            assert [wc.status for wc in (*peer.wait(), *ours.wait())] == [IBV_WC_SUCCESS] * 2
            assert _seen(region, 5000, 10_000) + _seen(region, 5000) == pattern(20_000)[:10_000]

    def test_nothing_is_reached_beyond_it(self, ends: tuple[End, End], provider: MemoryProvider) -> None:
        ours, peer = ends
        with provider.register(ours.pd, 4096, ALL) as region:
            assert _access(peer, IBV_WR_RDMA_WRITE, region, 2, 4095) == IBV_WC_REM_ACCESS_ERR

    def test_nothing_is_reached_before_it(self, ends: tuple[End, End], provider: MemoryProvider) -> None:
        ours, peer = ends
        with provider.register(ours.pd, 4096, ALL) as region:
            assert _access(peer, IBV_WR_RDMA_READ, region, 2, -1) == IBV_WC_REM_ACCESS_ERR

    @pytest.mark.parametrize(
        ("access", "opcode"),
        [
            (int(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ), IBV_WR_RDMA_WRITE),
            (int(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE), IBV_WR_RDMA_READ),
        ],
        ids=["write", "read"],
    )
    def test_access_that_was_not_given_is_refused(
        self, ends: tuple[End, End], provider: MemoryProvider, access: int, opcode: int
    ) -> None:
        ours, peer = ends
        with provider.register(ours.pd, 4096, access) as region:
            region.write(b"kept", 4)
            assert _access(peer, opcode, region, 4) == IBV_WC_REM_ACCESS_ERR
            assert region.read(4, 0) == b"kept"

    def test_without_local_write_nothing_is_received_into_it(
        self, ends: tuple[End, End], provider: MemoryProvider
    ) -> None:
        ours, peer = ends
        with provider.register(ours.pd, 4096, int(IBV_ACCESS_REMOTE_READ)) as region:
            ours.qp.post_recv(RecvWR(1, [_sge(region, 0, 64)]))
            peer.send(64)
            assert ours.wait()[0].status == IBV_WC_LOC_PROT_ERR

    def test_its_keys_are_good_in_its_domain_only(self, ends: tuple[End, End], provider: MemoryProvider) -> None:
        ours, peer = ends
        with PD(ours.context) as other, provider.register(other, 4096, ALL) as region:
            assert _access(peer, IBV_WR_RDMA_READ, region, 8) == IBV_WC_REM_ACCESS_ERR

    def test_keys_end_with_it_and_are_not_given_again(self, ends: tuple[End, End], provider: MemoryProvider) -> None:
        ours, peer = ends
        seen = set()
        for _ in range(50):
            region = provider.register(ours.pd, 4096, ALL)
            seen.add(region.rkey)
            region.close()
            region.close()  # idempotent
        assert len(seen) == 50
        assert _access(peer, IBV_WR_RDMA_WRITE, region, 8) == IBV_WC_REM_ACCESS_ERR

    def test_regions_do_not_mix(self, ends: tuple[End, End], provider: MemoryProvider) -> None:
        ours, peer = ends
        regions = [provider.register(ours.pd, 5000, ALL) for _ in range(8)]
        for number, region in enumerate(regions):
            peer.mr.write(bytes([number + 1]) * 5000, 5000)
            assert _access(peer, IBV_WR_RDMA_WRITE, region, 5000) == IBV_WC_SUCCESS
        for number, region in enumerate(regions):
            assert _seen(region, 5000) == bytes([number + 1]) * 5000
            region.close()

    def test_a_domain_is_not_freed_under_it(self, ends: tuple[End, End], provider: MemoryProvider) -> None:
        ours, _ = ends
        pd = PD(ours.context)
        region = provider.register(pd, 4096, ALL)
        with pytest.raises(VerbsError, match="busy"):
            pd.close()
        region.close()
        pd.close()

    @pytest.mark.parametrize("access", [int(IBV_ACCESS_REMOTE_WRITE), 1 << 19], ids=["remote-only", "unknown"])
    def test_access_that_cannot_be_is_refused(
        self, ends: tuple[End, End], provider: MemoryProvider, access: int
    ) -> None:
        with pytest.raises(VerbsError):
            provider.register(ends[0].pd, 4096, access)


@contextmanager
def _pair() -> Iterator[tuple[Context, Context]]:
    with Pair() as pair:
        yield pair.a.context(), pair.b.context()


def _sge(region: MR, offset: int, length: int) -> SGE:
    return SGE(region.buf + offset, length, region.lkey)


def _access(peer: End, opcode: int, region: MR, length: int, offset: int = 0) -> int:
    """The status of the peer's access."""
    wr = SendWR(1, opcode, [peer.sge(0, length)], send_flags=IBV_SEND_SIGNALED)
    wr.remote_addr, wr.rkey = region.buf + offset, region.rkey
    peer.qp.post_send(wr)
    return int(peer.wait()[0].status)


def _seen(region: MR, length: int, offset: int = 0) -> bytes:
    """What the application finds in its memory."""
    return region.read(length, offset)
