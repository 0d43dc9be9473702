"""The key table: who may touch what, and the words of a refusal."""

from __future__ import annotations

import errno
import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fauxrdma.errors import VerbsError
from fauxrdma.ib.enums import AccessFlags as A
from fauxrdma.memory.regions import Fault, KeyTable, ProtectionDomain
from fauxrdma.memory.shared import SharedMemory

BASE, LENGTH = 0x1000, 100
ALL = A.IBV_ACCESS_LOCAL_WRITE | A.IBV_ACCESS_REMOTE_WRITE | A.IBV_ACCESS_REMOTE_READ


def table() -> tuple[KeyTable, ProtectionDomain]:
    return KeyTable(random.Random(1)), ProtectionDomain(1)


@given(st.integers(0, 0x1200), st.integers(1, 300))
def test_exactly_the_ranges_inside_are_granted(addr: int, length: int) -> None:
    keys, pd = table()
    region = keys.register(1, pd, BASE, LENGTH, ALL, memoryview(bytearray(LENGTH)))
    got = keys.remote(pd, addr, length, region.rkey, A.IBV_ACCESS_REMOTE_WRITE)
    if addr >= BASE and addr + length <= BASE + LENGTH:
        assert isinstance(got, memoryview)
        assert len(got) == length
    else:
        assert isinstance(got, Fault)
        assert f"0x{region.rkey:x}" in got.reason
        assert "0x1000, 0x1064" in got.reason
        assert f"0x{addr:x}" in got.reason


def test_views_are_the_memory_itself() -> None:
    keys, pd = table()
    data = bytearray(LENGTH)
    region = keys.register(1, pd, BASE, LENGTH, ALL, memoryview(data))
    view = keys.local(pd, BASE + 10, 3, region.lkey, writing=True)
    assert isinstance(view, memoryview)
    view[:] = b"abc"
    assert data[10:13] == b"abc"


def test_the_two_keys_differ_and_do_not_stand_in_for_each_other() -> None:
    keys, pd = table()
    region = keys.register(1, pd, BASE, LENGTH, ALL, memoryview(bytearray(LENGTH)))
    assert region.lkey != region.rkey
    assert isinstance(keys.remote(pd, BASE, 1, region.lkey, A.IBV_ACCESS_REMOTE_READ), Fault)
    assert isinstance(keys.local(pd, BASE, 1, region.rkey, writing=False), Fault)


@pytest.mark.parametrize("need", [A.IBV_ACCESS_REMOTE_WRITE, A.IBV_ACCESS_REMOTE_READ])
def test_missing_access_is_named(need: A) -> None:
    keys, pd = table()
    region = keys.register(1, pd, BASE, LENGTH, ALL & ~need, memoryview(bytearray(LENGTH)))
    fault = keys.remote(pd, BASE, 4, region.rkey, need)
    assert isinstance(fault, Fault)
    assert str(need.name) in fault.reason


def test_reading_needs_no_local_write_but_writing_does() -> None:
    keys, pd = table()
    region = keys.register(1, pd, BASE, LENGTH, 0, memoryview(bytearray(LENGTH)))
    assert isinstance(keys.local(pd, BASE, 4, region.lkey, writing=False), memoryview)
    assert isinstance(keys.local(pd, BASE, 4, region.lkey, writing=True), Fault)


def test_another_protection_domain_is_refused() -> None:
    keys, pd = table()
    region = keys.register(1, pd, BASE, LENGTH, ALL, memoryview(bytearray(LENGTH)))
    fault = keys.remote(ProtectionDomain(2), BASE, 4, region.rkey, A.IBV_ACCESS_REMOTE_READ)
    assert isinstance(fault, Fault)
    assert "another protection domain" in fault.reason


def test_zero_based_regions_count_from_zero() -> None:
    keys, pd = table()
    region = keys.register(1, pd, BASE, LENGTH, ALL | A.IBV_ACCESS_ZERO_BASED, memoryview(bytearray(LENGTH)))
    assert isinstance(keys.remote(pd, 0, LENGTH, region.rkey, A.IBV_ACCESS_REMOTE_READ), memoryview)
    assert isinstance(keys.remote(pd, BASE, 1, region.rkey, A.IBV_ACCESS_REMOTE_READ), Fault)


@pytest.mark.parametrize("access", [A.IBV_ACCESS_REMOTE_WRITE, A.IBV_ACCESS_REMOTE_ATOMIC, 1 << 30])
def test_illegal_flags_are_einval(access: int) -> None:
    keys, pd = table()
    with pytest.raises(VerbsError) as caught:
        keys.register(1, pd, BASE, LENGTH, access, memoryview(bytearray(LENGTH)))
    assert caught.value.errno == errno.EINVAL
    assert len(keys) == 0
    assert pd.children == 0


def test_keys_are_not_counted_up_and_stale_ones_stay_dead() -> None:
    keys, pd = table()
    seen: list[int] = []
    for i in range(500):
        region = keys.register(i, pd, BASE, LENGTH, ALL, memoryview(bytearray(LENGTH)))
        seen += (region.lkey, region.rkey)
        keys.deregister(region)
        assert isinstance(keys.remote(pd, BASE, 1, region.rkey, A.IBV_ACCESS_REMOTE_READ), Fault)
    assert len(set(seen)) == len(seen)
    steps = {b - a for a, b in itertools.pairwise(seen)}
    assert len(steps) == len(seen) - 1
    assert pd.children == 0


def test_shared_memory_is_shared_and_checked() -> None:
    import os

    memory = SharedMemory.create(5000)
    other = SharedMemory.attach(os.dup(memory.fd), 5000)
    memory.view[4999] = 7
    assert other.view[4999] == 7
    with pytest.raises(ValueError, match="5000 bytes, 6000"):
        SharedMemory.attach(os.dup(memory.fd), 6000)
    with pytest.raises(OSError):
        os.ftruncate(memory.fd, 10)  # sealed: nobody can pull the pages away from under the daemon
    unsealed = os.memfd_create("x")
    os.ftruncate(unsealed, 5000)
    with pytest.raises(ValueError, match="not sealed"):
        SharedMemory.attach(unsealed, 5000)
    memory.close_fd()
    other.close_fd()


def test_a_key_is_an_index_and_a_tag_and_no_two_share_an_index() -> None:
    """24 bits of index, 8 of tag (A6): consumers may change the tag, so indices must differ."""
    keys, pd = table()
    regions = [keys.register(i, pd, BASE, LENGTH, ALL, memoryview(bytearray(LENGTH))) for i in range(2000)]
    used = [key for region in regions for key in (region.lkey, region.rkey)]
    indices = [key >> 8 for key in used]
    assert len(set(indices)) == len(indices)
    assert not {0, 0xFFFFFF} & set(indices)
    assert len({key & 0xFF for key in used}) > 200
    # Neither by counting nor by the tag alone does a guess hit.
    for region in regions[:50]:
        for guess in (region.rkey + 1, region.rkey ^ 1, region.rkey + 256):
            assert isinstance(keys.remote(pd, BASE, 1, guess & 0xFFFFFFFF, A.IBV_ACCESS_REMOTE_READ), Fault)


def test_freed_indices_come_back_only_after_many_others() -> None:
    from fauxrdma.memory import regions

    keys, pd = table()
    first = keys.new_key() >> 8
    keys.free_key(first << 8)
    for _ in range(regions._QUARANTINE):
        assert first in keys._indices
        key = keys.new_key()
        assert key >> 8 != first
        keys.free_key(key)
    assert first not in keys._indices
    assert len(keys._indices) == regions._QUARANTINE
    assert pd.children == 0


@pytest.mark.parametrize(
    ("base", "length", "legal"),
    [
        ((1 << 64) - 100, 100, True),
        ((1 << 64) - 99, 100, False),
        (0, 100, True),
        (-1, 100, False),
        (BASE, 0, False),
        (BASE, 99, False),
    ],
)
def test_ranges_of_the_address_space(base: int, length: int, legal: bool) -> None:
    keys, pd = table()
    if not legal:
        with pytest.raises(VerbsError) as caught:
            keys.register(1, pd, base, length, ALL, memoryview(bytearray(LENGTH)))
        assert caught.value.errno == errno.EINVAL
        assert pd.children == 0
        return
    region = keys.register(1, pd, base, length, ALL, memoryview(bytearray(LENGTH)))
    last = base + length - 1
    assert isinstance(keys.remote(pd, last, 1, region.rkey, A.IBV_ACCESS_REMOTE_READ), memoryview)
    for va, size in ((last, 2), (last + 1, 1), (base - 1, 1), (base - 1, length + 1)):
        # A range that wraps around the address space is outside, too.
        assert isinstance(keys.remote(pd, va, size, region.rkey, A.IBV_ACCESS_REMOTE_READ), Fault)
    assert isinstance(keys.local(pd, last + 1, 0, region.lkey, writing=True), memoryview)


@pytest.mark.parametrize("flag", [A.IBV_ACCESS_ON_DEMAND, A.IBV_ACCESS_RELAXED_ORDERING, A.IBV_ACCESS_MW_BIND])
def test_flags_that_change_nothing_are_accepted(flag: A) -> None:
    keys, pd = table()
    region = keys.register(1, pd, BASE, LENGTH, ALL | flag, memoryview(bytearray(LENGTH)))
    assert isinstance(keys.remote(pd, BASE, LENGTH, region.rkey, A.IBV_ACCESS_REMOTE_WRITE), memoryview)


def test_a_region_with_windows_stays() -> None:
    keys, pd = table()
    region = keys.register(1, pd, BASE, LENGTH, ALL, memoryview(bytearray(LENGTH)))
    region.windows = 2
    with pytest.raises(VerbsError, match="2 memory windows") as caught:
        keys.deregister(region)
    assert caught.value.errno == errno.EBUSY
    assert isinstance(keys.local(pd, BASE, 1, region.lkey, writing=True), memoryview)
    region.windows = 0
    keys.deregister(region)
    keys.deregister(region)
    assert pd.children == 0
