"""What differs on a machine that is not the subnet manager's: its clock."""

from __future__ import annotations

import time

from fauxrdma.runtime.host_identity import boot_id, epoch_here


def test_the_epoch_of_the_same_machine_is_the_same() -> None:
    assert epoch_here(123, boot_id(), 456) == 123
    assert epoch_here(123, "", 456) == 123  # a system that does not say


def test_another_machine_counts_from_another_boot() -> None:
    theirs = 10_000_000_000
    elapsed = 4_000_000_000
    before = time.monotonic_ns()
    epoch = epoch_here(theirs - elapsed, "another boot", theirs)
    after = time.monotonic_ns()
    assert before - elapsed <= epoch <= after - elapsed
