"""Connections made and unmade leave nothing behind in the daemon (A6); `benchmarks/device_limits.py` does 5,000."""

from __future__ import annotations

from leaks import descriptors, memfd_mappings, settles
from pairs import End, connect

from fauxrdma.ib.enums import IBV_WC_SUCCESS
from fauxrdma.lab.local import LocalLab
from fauxrdma.verbs import QP, QPCap, QPInitAttr


def test_connect_and_disconnect_many_times(unshaped: LocalLab) -> None:
    a, b = End(unshaped, 0), End(unshaped, 1)
    connect(a, b)
    for one, other in ((a, b), (b, a)):  # the daemons connect to each other at the first message
        one.qp.post_send(one.write(other, 64))
        one.wait()
    held = [(len(descriptors(pid)), memfd_mappings(pid)) for pid in unshaped.daemons]
    cap = QPCap(4, 4)
    for i in range(150):
        one, two = (QP(end.pd, QPInitAttr(scq=end.cq, rcq=end.cq, cap=cap)) for end in (a, b))
        one.connect(two.endpoint())
        two.connect(one.endpoint())
        if i % 10 == 0:
            one.post_send(a.write(b, 64))
            assert a.wait()[0].status == IBV_WC_SUCCESS
        one.close()
        two.close()
    for pid, (files, mappings) in zip(unshaped.daemons, held, strict=True):
        # Not more than before; what tests before this one held may have gone meanwhile.
        assert settles(lambda pid=pid, limit=files: len(descriptors(pid)) <= limit, True)  # type: ignore[misc]
        assert settles(lambda pid=pid, limit=mappings: memfd_mappings(pid) <= limit, True)  # type: ignore[misc]
    a.close()
    b.close()
